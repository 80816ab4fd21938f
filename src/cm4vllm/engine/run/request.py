"""A request: tags, flags and environment of one run, and what is decided before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cm4vllm.common.errors import UsageError
from cm4vllm.engine.format.dependency import Amendment, amendments_of, split_tags
from cm4vllm.engine.format.meta import Layer, ScriptMeta
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.format.variations import Resolution, resolve
from cm4vllm.engine.format.versions import ANY, Wanted
from cm4vllm.engine.run.flags import check_flags, flag, require_joined_values


def parse_tags(tags: Any) -> tuple[tuple[str, ...], ...]:
    """Split tags into script tags, excluded script tags, variations and excluded variations.

    Raises UsageError for one that is both asked for and excluded.
    """
    kinds: tuple[list[str], list[str], list[str], list[str]] = ([], [], [], [])
    for tag in split_tags(tags):
        for prefix, kind in (("-_", 3), ("_-", 3), ("_", 2), ("-", 1), ("", 0)):
            if tag.startswith(prefix):
                kinds[kind].append(tag[len(prefix) :])
                break
    for wanted, excluded in ((kinds[0], kinds[1]), (kinds[2], kinds[3])):
        if both := set(wanted) & set(excluded):
            raise UsageError(f"{min(both)!r} is both asked for and excluded", remedy="remove one of the two")
    return tuple(tuple(kind) for kind in kinds)


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Request(Value):
    """One run of one script. `inputs` is all that was given, as given; `folder` is where it works unless cached.

    `explicit` names the environment keys that a person gave on the command line, `replacing` the variations that
    amendments have added, each of which replaces those of its group.
    """

    folder: str
    tags: tuple[str, ...] = ()
    excluded_tags: tuple[str, ...] = ()
    variations: tuple[str, ...] = ()
    excluded_variations: tuple[str, ...] = ()
    name: str = ""
    repo: str = ""
    env: Mapping[str, Any] = _NOTHING
    const: Mapping[str, Any] = _NOTHING
    state: Mapping[str, Any] = _NOTHING
    const_state: Mapping[str, Any] = _NOTHING
    adr: tuple[Amendment, ...] = ()
    ad: tuple[Amendment, ...] = ()
    wanted: Wanted = ANY
    extra_cache_tags: tuple[str, ...] = ()
    force_new_env_keys: tuple[str, ...] = ()
    explicit: frozenset[str] = frozenset()
    replacing: tuple[tuple[str, ...], ...] = ()
    inputs: Mapping[str, Any] = _NOTHING
    is_dependency: bool = False
    from_person: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any], folder: str, *, from_person: bool = False) -> Request:
        """Read the input dictionary of an action. Raises UsageError when it names no script."""
        if from_person:
            require_joined_values([str(word) for word in given.get("cmd") or ()])
        tags, name, repo = _tags_or_name(given)
        if not isinstance(tags, (str, list, tuple, bool, type(None))):
            raise UsageError(f"{tags!r} are not tags", remedy="tags are words separated by commas, or a list of words")
        env = _mapping(given, "env")
        script_tags, excluded_tags, variations, excluded_variations = parse_tags(tags)
        if not script_tags and not name:
            raise UsageError(
                "which script?",
                cause="neither tags nor a name are given",
                remedy="for example: cm run script --tags=detect,os",
            )
        return cls(
            tags=script_tags,
            excluded_tags=excluded_tags,
            variations=variations,
            excluded_variations=excluded_variations,
            name=name,
            repo=repo,
            env=env,
            const=_mapping(given, "const"),
            state=_mapping(given, "state"),
            const_state=_mapping(given, "const_state"),
            adr=_amendments(given, "adr") + _amendments(given, "add_deps_recursive"),
            ad=_amendments(given, "ad") + _amendments(given, "add_deps"),
            wanted=Wanted.of(given),
            extra_cache_tags=split_tags(given.get("extra_cache_tags")),
            explicit=frozenset(env) if from_person else frozenset(),
            inputs=given,
            folder=folder,
            from_person=from_person,
        )

    def same_run(self, other: Request) -> bool:
        """Return True if a script does the same for both: all that it is asked for is equal, where it works aside."""
        return all(getattr(self, name) == getattr(other, name) for name in _MEANING)

    def title(self) -> str:
        """Return the request as its tags would be typed."""
        words = [
            *self.tags,
            *(f"-{tag}" for tag in self.excluded_tags),
            *(f"_{name}" for name in self.variations),
            *(f"-_{name}" for name in self.excluded_variations),
        ]
        return ",".join(words) or self.name


def _amendments(given: Mapping[str, Any], key: str) -> tuple[Amendment, ...]:
    return amendments_of(_mapping(given, key), UsageError)


_MEANING = (
    "variations",
    "excluded_variations",
    "env",
    "const",
    "state",
    "const_state",
    "adr",
    "ad",
    "wanted",
    "extra_cache_tags",
)


def _tags_or_name(given: Mapping[str, Any]) -> tuple[Any, str, str]:
    """Return the tags that an action's input has, or the name of a script and of its repository."""
    tags, parsed, artifact = given.get("tags"), given.get("parsed_artifact"), str(given.get("artifact") or "")
    if " " in artifact.strip():
        return [*split_tags(tags), *artifact.split()], "", ""
    if isinstance(parsed, list) and parsed:
        return tags, parsed[0][1] or parsed[0][0], (parsed[1][1] or parsed[1][0]) if len(parsed) > 1 else ""
    return tags, artifact, ""


def _mapping(given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = given.get(key) or {}
    if not isinstance(value, Mapping):
        raise UsageError(f"--{key} needs a key, as in --{key}.KEY=value", cause=f"got {value!r}")
    return value


class Task(Value):
    """A script to run, immutable. `layers` are its meta, its variations in order, and the meta of its version."""

    request: Request
    script: ScriptMeta
    variations: Resolution
    wanted: Wanted
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, script: ScriptMeta, request: Request) -> Task:
        """Return the task of a request: the script with its variations and versions settled.

        Raises UsageError for impossible variations, and for unknown flags where the script is strict about its input;
        else these are `notes`.
        """
        notes = check_flags(script, request.inputs)
        variations = resolve(script, request.variations, request.excluded_variations)
        wanted = request.wanted.or_else(Wanted.from_environment(request.env)).or_else(script.wanted)
        # A value that a recipe passes on was not typed by a person.
        warnings = tuple(f"WARNING: {note}" for note in notes) if request.from_person else ()
        return cls(request, script, variations, wanted, (), warnings).of_version(wanted)

    def of_version(self, wanted: Wanted) -> Task:
        """Return this task for the version `wanted`; the part of the meta for that version is its last layer."""
        layers = (self.script.layer, *(variation.layer for variation in self.variations.layers))
        version = self.script.version(wanted.version)
        return self.but(wanted=wanted, layers=layers if version is None else (*layers, version))

    def with_default_version(self) -> Task:
        """Return this task with the default version where none was asked for: it counts only when nothing is cached."""
        default = next((layer.default_version for layer in reversed(self.layers) if layer.default_version), "")
        wanted = self.wanted.with_default(default)
        return self if wanted == self.wanted else self.of_version(wanted)

    @property
    def ad(self) -> tuple[Amendment, ...]:
        """Changes to dependencies of this script alone."""
        return tuple(amendment for layer in self.layers for amendment in layer.ad) + self.request.ad

    @property
    def adr(self) -> tuple[Amendment, ...]:
        """Changes that are passed down to all dependencies; those of the command line come last and win."""
        return tuple(amendment for layer in self.layers for amendment in layer.adr) + self.request.adr

    @property
    def script_name(self) -> str:
        """Return the name of the shell file that is asked for; empty for the usual one."""
        return next((layer.script_name for layer in reversed(self.layers) if layer.script_name), "")

    @property
    def new_env_keys(self) -> tuple[str, ...]:
        """The patterns of the keys that it returns: the caller's, where it forces them, or those of the layers."""
        return self.request.force_new_env_keys or tuple(key for layer in self.layers for key in layer.new_env_keys)

    @property
    def promised_env_keys(self) -> tuple[str, ...]:
        """The keys that it always returns, set to a value that is not false."""
        return tuple(key for layer in self.layers for key in layer.promised_env_keys)

    @property
    def is_cached(self) -> bool:
        """Return True if the cache keeps what the script makes."""
        inputs: Mapping[str, object] = self.request.inputs
        asked_not_to = flag(inputs, "skip_cache", "force_skip_cache")
        return (self.script.cache and not asked_not_to) or (self.script.can_force_cache and flag(inputs, "force_cache"))

    def title(self) -> str:
        """Return the script's own tags and the variations that are on, as they would be typed."""
        return ",".join((*self.script.tags, *(f"_{name}" for name in self.variations.names)))
