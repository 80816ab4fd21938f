"""Dependencies of a script as its meta lists them, and changes to them by name (`adr`, `ad`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cm4vllm.common.errors import CmError, RecipeError
from cm4vllm.engine.format.conditions import CONDITION_KEYS, Conditions
from cm4vllm.engine.format.documents import merge
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.format.versions import VERSION_KEYS, Wanted

#: The four moments at which dependencies run.
PHASES = ("deps", "prehook_deps", "posthook_deps", "post_deps")

#: A part of a meta as it was read.
Raw = Mapping[str, Any]


def split_tags(tags: Any) -> tuple[str, ...]:
    """Return tags given as a list or as comma-separated text, trimmed, without empty ones and without repeats."""
    if isinstance(tags, bool):
        return ()  # a flag without a value
    words = tags.split(",") if isinstance(tags, str) else [str(tag) for tag in tags or ()]
    return tuple(dict.fromkeys(word.strip() for word in words if word.strip()))


def texts(value: Any) -> tuple[str, ...]:
    """Return a text, or a list of texts, as a tuple."""
    return (value,) if isinstance(value, str) else tuple(str(item) for item in value or ())


class Dependency(Value):
    """One entry of deps. `inputs` are the keys that are none of the dependency's own: flags for the script it names.

    `replacing` are the variations that each amendment has added, in their order: each replaces those of its group.
    """

    tags: tuple[str, ...]
    names: frozenset[str]
    conditions: Conditions
    env: Raw
    wanted: Wanted
    force_env_keys: tuple[str, ...]
    force_new_env_keys: tuple[str, ...]
    update_tags_from_env: tuple[str, ...]
    update_tags_with_prefix: Mapping[str, tuple[str, ...]]
    skip_inherit_groups: frozenset[str]
    extra_cache_tags: tuple[str, ...]
    inherit_variation_tags: bool
    reuse_version: bool
    dynamic: bool
    force_cache: bool
    skip_if_fake_run: bool
    inputs: Raw
    raw: Raw
    replacing: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, raw: Raw) -> Dependency:
        """Return the dependency that an entry of a meta describes."""
        return cls(
            tags=split_tags(raw.get("tags")),
            names=frozenset(texts(raw.get("names"))),
            conditions=Conditions.of(raw),
            env=raw.get("env") or {},
            wanted=Wanted.of(raw),
            force_env_keys=texts(raw.get("force_env_keys")),
            force_new_env_keys=texts(raw.get("force_new_env_keys")),
            update_tags_from_env=texts(raw.get("update_tags_from_env")),
            update_tags_with_prefix={
                prefix: texts(keys) for prefix, keys in (raw.get("update_tags_from_env_with_prefix") or {}).items()
            },
            skip_inherit_groups=frozenset(texts(raw.get("skip_inherit_variation_groups"))),
            extra_cache_tags=split_tags(raw.get("extra_cache_tags")),
            inherit_variation_tags=bool(raw.get("inherit_variation_tags")),
            reuse_version=bool(raw.get("reuse_version")),
            dynamic=bool(raw.get("dynamic")),
            force_cache=bool(raw.get("force_cache")),
            skip_if_fake_run=bool(raw.get("skip_if_fake_run")),
            inputs={key: value for key, value in raw.items() if key not in DEPENDENCY_KEYS},
            raw=raw,
            replacing=(),
        )

    def with_change(self, change: Raw) -> Dependency:
        """Return this dependency with `change` merged in: tags appended, mappings merged, all else replaced."""
        raw = merge(self.raw, {key: value for key, value in change.items() if key != "tags"})
        added = split_tags(change.get("tags"))
        if added:
            raw = {**raw, "tags": list(dict.fromkeys((*self.tags, *added)))}
        variations = tuple(tag[1:] for tag in added if tag.startswith("_") and not tag.startswith("_-"))
        replacing = (*self.replacing, variations) if variations else self.replacing
        return Dependency.of(raw).but(replacing=replacing)


DEPENDENCY_KEYS = frozenset(
    {
        "tags",
        "names",
        "env",
        "force_env_keys",
        "force_new_env_keys",
        "update_tags_from_env",
        "update_tags_from_env_with_prefix",
        "skip_inherit_variation_groups",
        "extra_cache_tags",
        "inherit_variation_tags",
        "reuse_version",
        "dynamic",
        "force_cache",
        "skip_if_fake_run",
        *CONDITION_KEYS,
        *VERSION_KEYS,
    }
)


class Amendment(Value):
    """A change to the dependencies that carry a name, under conditions of its own."""

    name: str
    change: Raw
    conditions: Conditions


def amendments_of(raw: Any, wrong: type[CmError] = RecipeError) -> tuple[Amendment, ...]:
    """Read an `adr` or `ad` mapping: name -> what to merge into the dependencies of that name.

    Raises `wrong` when it is none.
    """
    if not isinstance(raw, Mapping):
        raise wrong(f"adr/ad must map names to changes, not be {raw!r}")
    amendments = []
    for name, change in raw.items():
        for part in change if isinstance(change, list) else [change]:
            if not isinstance(part, Mapping):
                raise wrong(
                    f"adr.{name} must name what is changed, not {part!r}",
                    remedy=f"for example: --adr.{name}.tags=_variation, or --adr.{name}.version=1.2",
                )
            amendments.append(
                Amendment(str(name), {k: v for k, v in part.items() if k not in CONDITION_KEYS}, Conditions.of(part))
            )
    return tuple(amendments)
