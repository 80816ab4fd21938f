"""A request: tags, flags and environment of one run, and what is decided before anything runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.engine.format.conditions import is_no
from cm4vllm.engine.format.dependency import Amendment, amendments_of, split_tags
from cm4vllm.engine.format.meta import Layer, ScriptMeta
from cm4vllm.engine.format.value import Value
from cm4vllm.engine.format.variations import Resolution, resolve
from cm4vllm.engine.format.versions import ANY, VERSION_KEYS, Wanted
from cm4vllm.engine.run.environment import as_text

__all__ = [
    "ENGINE_FLAGS",
    "NOT_DONE",
    "PROVENANCE_FLAGS",
    "Request",
    "Task",
    "check_flags",
    "flag",
    "mapped_inputs",
    "parse_tags",
    "with_usable_flags",
]

_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9_]*)(?![\w-])")
#: Flags that become environment keys of the same meaning for every script.
SPECIAL_INPUTS = {
    "path": "CM_TMP_PATH",
    "input": "CM_INPUT",
    "output": "CM_OUTPUT",
    "outdirname": "CM_OUTDIRNAME",
    "outbasename": "CM_OUTBASENAME",
    "name": "CM_NAME",
    "extra_cache_tags": "CM_EXTRA_CACHE_TAGS",
    "skip_compile": "CM_SKIP_COMPILE",
    "skip_run": "CM_SKIP_RUN",
    "accept_license": "CM_ACCEPT_LICENSE",
    "skip_system_deps": "CM_SKIP_SYSTEM_DEPS",
    "git_ssh": "CM_GIT_SSH",
    "gh_token": "CM_GH_TOKEN",
    "quiet": "CM_QUIET",
    "verbose": "CM_VERBOSE",
    "v": "CM_VERBOSE",
}

#: Flags of the engine itself and what cmind adds; a script with strict_input knows these and its own.
ENGINE_FLAGS = frozenset(
    {
        *SPECIAL_INPUTS,
        *VERSION_KEYS,
        "action",
        "automation",
        "artifact",
        "artifacts",
        "parsed_automation",
        "parsed_artifact",
        "parsed_artifacts",
        "cmd",
        "unparsed_cmd",
        "out",
        "tags",
        "env",
        "const",
        "state",
        "const_state",
        "adr",
        "ad",
        "add_deps",
        "add_deps_recursive",
        "new",
        "renew",
        "skip_cache",
        "force_cache",
        "force_skip_cache",
        "silent",
        "s",
        "j",
        "json",
        "time",
        "space",
        "help",
        "h",
        "dirty",
        "debug",
        "debug_script",
        "debug_script_tags",
        "debug_uid",
        "detected_versions",
        "fake_run",
        "prepare",
        "fake_deps",
        "print_deps",
        "print_env",
        "print_versions",
        "print_readme",
        "save_env",
        "shell",
        "repro",
        "repro_prefix",
        "repro_dir",
        "dump_version_info",
        "pause",
        "ignore_script_error",
        "skip_remembered_selections",
        "remembered_selections",
        "recursion",
        "recursion_spaces",
        "run_state",
        "save_to_json",
        "save_to_yaml",
        "common",
        "ignore_inheritance",
        "cm_debug",
        "docker_cache",
        "verify",
        "fail",
        "force",
        "f",
        "plan",
        "graph",
        "docker_folder",
        "docker_base_image",
        "docker_image",
        "no_run",
    }
)


#: Flags of the public engine that this one knows by name and does nothing for; a run says so.
NOT_DONE = {
    "skip_remembered_selections": "accepted without effect: of several scripts or entries the first is always taken, "
    "without a question",
    "remembered_selections": "accepted without effect: of several scripts or entries the first is always taken, "
    "without a question",
    "detected_versions": "",
    "debug_uid": "",
    "docker_cache": "",
    "ignore_inheritance": "",
}


#: Flags that ask for files about the run.
PROVENANCE_FLAGS = ("save_env", "shell", "repro", "dump_version_info", "print_versions", "print_readme")


def flag(inputs: Mapping[str, Any], *names: str) -> bool:
    """Tell whether one of these flags is given and does not say no."""
    return any(name in inputs and not is_no(as_text(inputs[name])) for name in names)


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

    `explicit` names the environment keys that a person gave on the command line.
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
    inputs: Mapping[str, Any] = _NOTHING
    is_dependency: bool = False
    from_person: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any], folder: str, *, from_person: bool = False) -> Request:
        """Read the input dictionary of an action. Raises UsageError when it names no script."""
        tags, name, repo = given.get("tags"), "", ""
        parsed = given.get("parsed_artifact")
        artifact = str(given.get("artifact") or "")
        if " " in artifact.strip():
            tags = [*split_tags(tags), *artifact.split()]
        elif isinstance(parsed, list) and parsed:
            name = parsed[0][1] or parsed[0][0]
            repo = (parsed[1][1] or parsed[1][0]) if len(parsed) > 1 else ""
        elif artifact:
            name = artifact
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
        """Tell whether a script does the same for both: all that it is asked for is equal, where it works aside."""
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


def _mapping(given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = given.get(key) or {}
    if not isinstance(value, Mapping):
        raise UsageError(f"--{key} needs a key, as in --{key}.KEY=value", cause=f"got {value!r}")
    return value


def check_flags(script: ScriptMeta, inputs: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each flag that neither the engine nor the script knows.

    Raises UsageError for the first of them where the script has strict_input.
    """
    own = {key.replace("-", "_") for key in (*script.input_mapping, *script.input_description)}
    unknown = [
        key
        for key in inputs
        if key.replace("-", "_") not in own and key not in ENGINE_FLAGS and not key.startswith("_")
    ]
    sentences = [f"{script.title()} has no input --{key}" for key in unknown]
    hints = [_near_flag(key, own, script) for key in unknown]
    if unknown and script.strict_input:
        raise UsageError(sentences[0], remedy=hints[0])
    return [f"{sentence}; {hint}" for sentence, hint in zip(sentences, hints, strict=True)]


def _near_flag(key: str, own: Collection[str], script: ScriptMeta) -> str:
    hint = nearest(key, own, f"list them with: cm show script {script.alias}")
    if not hint.startswith("did you mean") and (close := nearest(key, ENGINE_FLAGS)).startswith("did you mean"):
        return close
    return hint or "it has no inputs"


def mapped_inputs(script: ScriptMeta, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what flags say in the environment: the special ones of all scripts, and those of input_mapping.

    A list (`--key,=a,b`) becomes comma-separated text, as the same flag without the comma would give.
    """
    special = {
        SPECIAL_INPUTS[key]: _text(value)
        for key, value in inputs.items()
        if key in SPECIAL_INPUTS and value not in (None, "")
    }
    mapping = {key.replace("-", "_"): target for key, target in script.input_mapping.items()}
    mapped = {mapping[key]: _text(value) for key, value in inputs.items() if key in mapping and value is not None}
    return special, mapped


def _text(value: Any) -> Any:
    text = as_text(value)
    return ",".join(text) if isinstance(text, list) else text


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
        """Settle variations and versions.

        Raises UsageError for impossible variations, and for unknown flags where the script is strict about its input;
        else these are `notes`.
        """
        notes = check_flags(script, request.inputs)
        variations = resolve(script, request.variations, request.excluded_variations)
        wanted = request.wanted.or_else(Wanted.from_environment(request.env)).or_else(script.wanted)
        # What a recipe hands on is not what a person mistyped.
        warnings = tuple(f"WARNING: {note}" for note in notes) if request.from_person else ()
        task = cls(request, script, variations, wanted, (), warnings)
        return task.of_version(wanted)

    def of_version(self, wanted: Wanted) -> Task:
        """Return this task when `wanted` is asked for: what the meta says of that version is its last layer."""
        layers = (self.script.layer, *(variation.layer for variation in self.variations.layers))
        version = self.script.version(wanted.version)
        return self.but(wanted=wanted, layers=layers if version is None else (*layers, version))

    def settled(self) -> Task:
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
        """Changes that are passed down; the caller's come last: what is said on the command line wins."""
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
        """Tell whether the cache keeps what the script makes."""
        inputs: Mapping[str, object] = self.request.inputs
        asked_not_to = flag(inputs, "skip_cache", "force_skip_cache")
        return (self.script.cache and not asked_not_to) or (self.script.can_force_cache and flag(inputs, "force_cache"))

    def title(self) -> str:
        """Return the script's own tags and the variations that are on, as they would be typed."""
        return ",".join((*self.script.tags, *(f"_{name}" for name in self.variations.names)))


def with_usable_flags(text: str, scripts: Sequence[ScriptMeta]) -> str:
    """Return the text of an error in which every flag is one that the script that was asked for accepts.

    `scripts` are those under way, from that one to the one that failed. A flag of the latter becomes the environment
    key that it stands for, which dependencies inherit. Lines that name a command of their own stay as they are.
    """
    asked, *below = scripts
    known = {*asked.input_mapping, *asked.input_description, *ENGINE_FLAGS}
    keys = {flag: key for script in below for flag, key in script.input_mapping.items()}

    def usable(found: re.Match[str]) -> str:
        flag = found[1]
        return found[0] if flag in known or flag not in keys else f"--env.{keys[flag]}"

    return "\n".join(line if "cm run script" in line else _FLAG.sub(usable, line) for line in text.splitlines())
