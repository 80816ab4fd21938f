"""Metas: the `_cm.yaml` of a script, read once into frozen types. Unknown keys are kept, for lint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from cm4vllm.common.errors import RecipeError
from cm4vllm.engine.format.dependency import (
    CONDITION_KEYS,
    PHASES,
    Amendment,
    Conditions,
    Dependency,
    Raw,
    amendments_of,
    split_tags,
    texts,
)
from cm4vllm.engine.format.inputs import with_inputs, with_variations
from cm4vllm.engine.format.meta_files import read_meta, with_texts
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.format.versions import VERSION_KEYS, Wanted

if TYPE_CHECKING:
    from pathlib import Path


class ConditionalUpdate(Value):
    """One entry of update_meta_if_env."""

    conditions: Conditions
    env: Raw
    state: Raw


class Bring(Value):
    """Something that a script's own code brings onto the machine; declared for the plan.

    `how` is download, install or make. `requirements` (a file in the script's folder, or above it) and `package` say
    which Python packages; with `shared`, only those that the Python that runs cm lacks. `disk_bytes` is what it takes
    on the disk and `download_bytes` what goes over the network, each 0 where it was not measured; `measured` says on
    what, or where the sizes come from. `conditions` decide by the script's environment whether it is brought;
    `<<<KEY>>>` in `what` stands for a key of it.
    """

    what: str
    how: str
    requirements: str
    package: str
    shared: bool
    disk_bytes: int
    download_bytes: int
    measured: str
    conditions: Conditions = Conditions()

    @classmethod
    def of(cls, raw: Raw) -> Bring:
        """Return the entry of `brings` that a meta describes."""
        return cls(
            str(raw.get("what") or ""),
            str(raw.get("how") or ""),
            str(raw.get("requirements") or ""),
            str(raw.get("package") or ""),
            bool(raw.get("shared")),
            int(raw.get("disk_bytes") or 0),
            int(raw.get("download_bytes") or 0),
            str(raw.get("measured") or ""),
            Conditions.of(raw),
        )


BRING_KEYS = frozenset({*Bring._fields, *CONDITION_KEYS} - {"conditions"})


class Layer(Value):
    """The keys that the meta itself, each variation and each version can have alike."""

    env: Raw
    default_env: Raw
    const: Raw
    state: Raw
    const_state: Raw
    deps: Mapping[str, tuple[Dependency, ...]]
    adr: tuple[Amendment, ...]
    ad: tuple[Amendment, ...]
    new_env_keys: tuple[str, ...]
    new_state_keys: tuple[str, ...]
    updates: tuple[ConditionalUpdate, ...]
    script_name: str
    default_version: str
    docker: Raw
    brings: tuple[Bring, ...]
    promised_env_keys: tuple[str, ...]
    made_by: tuple[str, ...]

    @classmethod
    def of(cls, raw: Raw) -> Layer:
        """Return the part of a meta, variation or version that a run applies as one layer."""
        return cls(
            env=raw.get("env") or {},
            default_env=raw.get("default_env") or {},
            const=raw.get("const") or {},
            state=raw.get("state") or {},
            const_state=raw.get("const_state") or {},
            deps={
                phase: tuple(Dependency.of(entry) for entry in raw.get(phase) or () if entry.get("tags"))
                for phase in PHASES
            },
            adr=amendments_of(raw.get("adr") or {}) + amendments_of(raw.get("add_deps_recursive") or {}),
            ad=amendments_of(raw.get("ad") or {}) + amendments_of(raw.get("add_deps") or {}),
            new_env_keys=texts(raw.get("new_env_keys")),
            new_state_keys=texts(raw.get("new_state_keys")),
            updates=tuple(
                ConditionalUpdate(Conditions.of(entry), entry.get("env") or {}, entry.get("state") or {})
                for entry in raw.get("update_meta_if_env") or ()
            ),
            script_name=str(raw.get("script_name") or ""),
            default_version=str(raw.get("default_version") or ""),
            docker=raw.get("docker") or {},
            brings=tuple(Bring.of(entry) for entry in raw.get("brings") or ()),
            promised_env_keys=texts(raw.get("promised_env_keys")),
            made_by=texts(raw.get("made_by")),
        )


LAYER_KEYS = frozenset(
    {
        "env",
        "default_env",
        "const",
        "state",
        "const_state",
        *PHASES,
        "adr",
        "add_deps_recursive",
        "ad",
        "add_deps",
        "new_env_keys",
        "new_state_keys",
        "update_meta_if_env",
        "script_name",
        "default_version",
        "docker",
        "brings",
        "promised_env_keys",
        "made_by",
    }
)


class Variation(Value):
    """One variation as it is written; in a dynamic one (`name.#`) the value already stands for `#`."""

    name: str
    layer: Layer
    group: str
    is_default: bool
    alias: str
    base: tuple[str, ...]
    default_variations: Mapping[str, str]
    warnings: tuple[str, ...]
    disk_space_mb: float
    unknown: tuple[str, ...]

    @classmethod
    def of(cls, name: str, raw: Raw, value: str | None = None) -> Variation:
        """Read a variation. With `value`, it replaces `#` in all texts of the variation."""
        if value is not None:
            raw = with_texts(raw, lambda text: text.replace("#", value))
        return cls(
            name=name,
            layer=Layer.of(raw),
            group=str(raw.get("group") or ""),
            is_default=bool(raw.get("default")),
            alias=str(raw.get("alias") or ""),
            base=texts(raw.get("base")),
            default_variations={str(k): str(v) for k, v in (raw.get("default_variations") or {}).items()},
            warnings=texts(raw.get("warnings")),
            disk_space_mb=float(raw.get("required_disk_space") or 0),
            unknown=tuple(sorted(str(key) for key in raw if key not in VARIATION_KEYS)),
        )


VARIATION_KEYS = LAYER_KEYS | {
    "group",
    "default",
    "alias",
    "base",
    "default_variations",
    "required_disk_space",
    "warnings",
    "default_gui",
}


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")


class ScriptMeta(Value):
    """A script: its meta, its folder and its repository.

    Of hundreds of variations and versions few are ever on: each is read when it is asked for, and variations are kept.
    """

    alias: str
    uid: str
    folder: str
    repo: str
    tags: tuple[str, ...]
    layer: Layer
    variations: Mapping[str, Raw]
    default_variation: str
    versions: Mapping[str, Raw]
    wanted: Wanted
    input_mapping: Mapping[str, str]
    input_description: Raw
    removed_inputs: Mapping[str, str]
    cache: bool
    can_force_cache: bool
    strict_input: bool
    sort: int
    local_env_keys: tuple[str, ...]
    clean_env_keys_post_deps: tuple[str, ...]
    cache_tags_from_env: tuple[tuple[str, str], ...]
    invalid_combinations: tuple[frozenset[str], ...]
    valid_combinations: tuple[frozenset[str], ...]
    env_key_mappings: Mapping[str, str]
    shell_env_keys: tuple[str, ...]
    secret_env_keys: tuple[str, ...]
    clean_files: tuple[str, ...]
    clean_output_files: tuple[str, ...]
    files_on_error: tuple[str, ...]
    env_at_the_end: Mapping[str, str]
    warnings: tuple[str, ...]
    tags_help: str
    shared_tags: tuple[str, ...]
    purpose: str
    first_inputs: tuple[str, ...]
    examples: tuple[str, ...]
    unknown: tuple[str, ...]
    raw: Raw

    @property
    def path(self) -> Path:
        """The folder, for those who do more with it than most runs do."""
        from pathlib import Path

        return Path(self.folder)

    @cached_property
    def _read(self) -> dict[tuple[str, str | None], Variation]:
        return {}

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """All words of the meta that could be environment keys."""
        return frozenset(_WORD.findall(repr(self.raw)))

    def variation(self, key: str, name: str, value: str | None = None) -> Variation:
        """Return the variation defined as `key`, by the name that it goes by; `value` replaces its `#`."""
        if (name, value) not in self._read:
            self._read[name, value] = Variation.of(name, self.variations[key], value)
        return self._read[name, value]

    def version(self, version: str) -> Layer | None:
        """Return the meta's entry of a version; None where it lists none."""
        return Layer.of(self.versions[version]) if version in self.versions else None

    def title(self) -> str:
        """Return the script's name for people: its tags_help without the command, or its alias."""
        return self.tags_help.strip().strip('"') or self.alias or self.uid


SCRIPT_KEYS = LAYER_KEYS | {
    *VERSION_KEYS,
    "alias",
    "uid",
    "automation_alias",
    "automation_uid",
    "tags",
    "variations",
    "default_variation",
    "versions",
    "input_mapping",
    "input_description",
    "cache",
    "can_force_cache",
    "strict_input",
    "sort",
    "local_env_keys",
    "clean_env_keys_post_deps",
    "extra_cache_tags_from_env",
    "invalid_variation_combinations",
    "valid_variation_combinations",
    "clean_files",
    "clean_output_files",
    "print_files_if_script_error",
    "print_env_at_the_end",
    "warnings",
    "tags_help",
    "shared_tags",
    "category",
    "category_sort",
    "name",
    "developers",
    "docker_input_mapping",
    "env_key_mappings",
    "tests",
    "gui",
    "required_disk_space",
    "min_cm_version",
    "customize",
    "variation_groups_order",
    "copyright",
    "shell_env_keys",
    "secret_env_keys",
    "inputs",
    "inputs_of",
    "input_groups",
    "variations_of",
    "input_changes",
    "removed_inputs",
    "first_inputs",
    "examples",
    "data",
}


def load_script(folder: str, repo: str, read: Callable[[str], Raw] = read_meta) -> ScriptMeta:
    """Read the script in a folder. Raises RecipeError naming the file when a part has the wrong shape."""
    raw = with_variations(with_inputs(read(folder), folder, read), folder, read)
    try:
        return ScriptMeta(
            alias=str(raw.get("alias") or ""),
            uid=str(raw.get("uid") or ""),
            folder=folder,
            repo=repo,
            tags=split_tags(raw.get("tags")),
            layer=Layer.of(raw),
            variations={str(name): variation or {} for name, variation in (raw.get("variations") or {}).items()},
            default_variation=str(raw.get("default_variation") or ""),
            versions={str(name): version or {} for name, version in (raw.get("versions") or {}).items()},
            wanted=Wanted.of(raw),
            input_mapping=raw.get("input_mapping") or {},
            input_description=raw.get("input_description") or {},
            removed_inputs={str(k): str(v) for k, v in (raw.get("removed_inputs") or {}).items()},
            cache=bool(raw.get("cache")),
            can_force_cache=bool(raw.get("can_force_cache")),
            strict_input=bool(raw.get("strict_input")),
            sort=int(raw.get("sort") or 0),
            local_env_keys=texts(raw.get("local_env_keys")),
            clean_env_keys_post_deps=texts(raw.get("clean_env_keys_post_deps")),
            cache_tags_from_env=tuple(
                (str(entry["env"]), str(entry.get("prefix") or ""))
                for entry in raw.get("extra_cache_tags_from_env") or ()
            ),
            invalid_combinations=tuple(
                frozenset(texts(entry)) for entry in raw.get("invalid_variation_combinations") or ()
            ),
            valid_combinations=tuple(
                frozenset(texts(entry)) for entry in raw.get("valid_variation_combinations") or ()
            ),
            env_key_mappings={str(k): str(v) for k, v in (raw.get("env_key_mappings") or {}).items()},
            shell_env_keys=texts(raw.get("shell_env_keys")),
            secret_env_keys=texts(raw.get("secret_env_keys")),
            clean_output_files=texts(raw.get("clean_output_files")),
            clean_files=texts(raw.get("clean_files")),
            files_on_error=texts(raw.get("print_files_if_script_error")),
            env_at_the_end=raw.get("print_env_at_the_end") or {},
            warnings=texts(raw.get("warnings")),
            tags_help=str(raw.get("tags_help") or ""),
            shared_tags=texts(raw.get("shared_tags")),
            purpose=str(raw.get("name") or ""),
            first_inputs=texts(raw.get("first_inputs")),
            examples=texts(raw.get("examples")),
            unknown=tuple(sorted(str(key) for key in raw if key not in SCRIPT_KEYS)),
            raw=raw,
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise RecipeError(f"the meta of {folder} has a part of the wrong shape", cause=str(error)) from error
