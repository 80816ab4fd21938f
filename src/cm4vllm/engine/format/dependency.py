"""Dependencies of a script as its meta lists them, their conditions, and changes to them by name (`adr`, `ad`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cm4vllm.common.errors import CmError, RecipeError
from cm4vllm.engine.format.meta_files import merge
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.format.versions import VERSION_KEYS, Wanted

CONDITION_KEYS = ("enable_if_env", "skip_if_env", "enable_if_any_env", "skip_if_any_env")

_YES = frozenset({"yes", "on", "true", "1"})
_NO = frozenset({"no", "off", "false", "0", ""})

#: True, False, or, in a plan, the keys of the facts on which it depends.
Truth = bool | frozenset[str]

Clause = Mapping[str, frozenset[str]]
#: Tells whether one key of a clause matches, of its name, its values, and whether a missing key says no.
Match = Callable[[str, frozenset[str], bool], Truth]


def is_no(value: Any) -> bool:
    """Return True if a value says no, or nothing."""
    return str(value).strip().lower() in _NO


class Conditions(Value):
    """All clauses of one entry. A clause maps an environment key to the values that match it."""

    enable_all: Clause | None = None
    skip_all: Clause | None = None
    enable_any: Clause | None = None
    skip_any: Clause | None = None

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Conditions:
        """Read the four condition keys of a raw mapping; other keys are ignored."""
        return cls(*(_clause(raw[key]) if key in raw else None for key in CONDITION_KEYS))

    def hold(self, env: Mapping[str, Any]) -> bool:
        """Return True if the entry takes part under `env`.

        A value list with `yes` matches every set value that does not say no; one with `no` matches what says no, and in
        the `all` forms also a missing key. Other values are compared without regard to case.
        """
        return self.decide(partial(matches, env)) is True

    def decide(self, match: Match) -> Truth:
        """Return True or False for an entry that takes part or not, else the facts on which it depends.

        `match` decides about a key of a clause. A missing key says no in the `all` forms alone.
        """
        parts: list[Truth] = [match(key, values, True) for key, values in (self.enable_all or {}).items()]
        parts += [_negate(match(key, values, False)) for key, values in (self.skip_any or {}).items()]
        if self.enable_any is not None:
            unmatched = [_negate(match(key, values, False)) for key, values in self.enable_any.items()]
            parts.append(_negate(both(*unmatched)))
        if self.skip_all is not None:
            parts.append(_negate(both(*(match(key, values, True) for key, values in self.skip_all.items()))))
        return both(*parts)


def both(*parts: Truth) -> Truth:
    """Return True if all of these hold, False if one does not, else the facts on which it depends."""
    if any(part is False for part in parts):
        return False
    return frozenset(key for part in parts if isinstance(part, frozenset) for key in part) or True


def _negate(truth: Truth) -> Truth:
    return truth if isinstance(truth, frozenset) else not truth


def _clause(raw: Mapping[str, Any]) -> Clause:
    return {
        key: frozenset(_word(v) for v in (values if isinstance(values, list) else [values]))
        for key, values in raw.items()
    }


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value).strip().lower()


def says_yes(values: frozenset[str]) -> bool:
    """Return True if a value list matches whatever is set and does not say no."""
    return bool(values & _YES)


def says_no(values: frozenset[str]) -> bool:
    """Return True if a value list matches only what says no."""
    return not says_yes(values) and bool(values & (_NO - {""}))


def matches(env: Mapping[str, Any], key: str, values: frozenset[str], missing_is_no: bool) -> bool:
    """Return True if one key of a clause matches; `missing_is_no` is the rule of the `all` forms."""
    if key not in env:
        return missing_is_no and bool(values & _NO)
    value = _word(env[key])
    if says_yes(values):
        return value not in _NO
    if says_no(values):
        return value in _NO
    return value in values


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
