"""The flags of the engine and those of a script: which are known or required, and the keys that they stand for."""

import itertools
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.engine.format.dependency import is_no
from cm4vllm.engine.format.inputs import REQUIRED
from cm4vllm.engine.format.meta import ScriptMeta, load_script
from cm4vllm.engine.format.script_catalogue import Catalogue
from cm4vllm.engine.format.versions import VERSION_KEYS
from cm4vllm.engine.run.environment import as_text

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


#: The flags of the engine that are followed by a value; the others may stand before the name of a script.
_VALUED = frozenset(
    {
        *("tags", "artifact", "out", "path", "input", "output", "outdirname", "outbasename", "name", "gh_token"),
        *("extra_cache_tags", "save_to_json", "save_to_yaml", "repro_prefix", "repro_dir", "debug_script_tags"),
        *("docker_folder", "docker_base_image", "docker_image", *VERSION_KEYS),
    }
)


#: The form of a flag; a word of another form, as -5 or one with a space before its =, is a value.
_FORM = re.compile(r"--?[A-Za-z_][^\s=]*(?:=.*)?", re.DOTALL)


#: The signs that look like a hyphen: the dashes of Unicode, and the minus of mathematics.
_DASHES = "".join(map(chr, range(0x2010, 0x2016))) + "\N{MINUS SIGN}"


def require_flags(words: Sequence[str]) -> None:
    """Raise UsageError for a typed word whose hyphens are dashes: CM reads it as the name of a script."""
    if typed := next((word for word in words if word.startswith(tuple(_DASHES))), ""):
        raise UsageError(
            f"{typed!r} is no flag",
            cause="it begins with a dash, as text programs and web pages write it, and flags begin with two hyphens",
            remedy=f"type {shlex.quote('--' + typed.lstrip(_DASHES + '-'))}",
        )


def require_joined_values(words: Sequence[str]) -> None:
    """Refuse `--flag value` among the typed words: CM reads the flag without a value, and the value as something else.

    Raises UsageError.
    """
    for typed, word in itertools.pairwise(words):
        if typed == "--":
            return
        name = typed.removeprefix("-").removeprefix("-").removesuffix("-").replace("-", "_")
        if not typed.startswith("-") or "=" in typed or word == "--" or word.startswith("@") or _FORM.fullmatch(word):
            continue
        if name not in ENGINE_FLAGS or name in _VALUED:
            other_flag = word.startswith("-")
            raise UsageError(
                f"{typed} {word}: the value of a flag is joined to it by =",
                cause=f"CM reads {word!r} as {'a flag of its own' if other_flag else 'the name of a script'}",
                remedy=f"type {shlex.quote(f'{typed}={word}')}"
                + ("" if other_flag else "; the name of a script comes before its flags"),
            )


def flag(inputs: Mapping[str, Any], *names: str) -> bool:
    """Return True if one of these flags is given and does not say no."""
    return any(name in inputs and not is_no(as_text(inputs[name])) for name in names)


def check_flags(script: ScriptMeta, inputs: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each flag that neither the engine nor the script knows.

    Raises UsageError for the first of them, and for words after --, where the script has strict_input, and for a flag
    that needs a value and is given without one.
    """
    unknown = unknown_flags(script, inputs)
    sentences = [f"{script.title()} has no input --{key}" for key in unknown]
    hints = [_near_flag(key, _own_flags(script), script) for key in unknown]
    if unknown and script.strict_input:
        raise UsageError(sentences[0], remedy=hints[0])
    if script.strict_input and (ignored := inputs.get("unparsed_cmd")):
        raise UsageError(
            f"-- {shlex.join(ignored)}: CM reads no flags after a -- that stands alone",
            remedy="leave the -- out; an empty variable before a flag makes one",
        )
    _require_values(script, inputs)
    return [f"{sentence}; {hint}" for sentence, hint in zip(sentences, hints, strict=True)]


def _require_values(script: ScriptMeta, inputs: Mapping[str, Any]) -> None:
    """Raise UsageError for a flag without a value, which CM reads as True, where the input does not take yes."""
    described = {key.replace("-", "_"): entry for key, entry in script.input_description.items()}
    for key, value in inputs.items():
        entry = described.get(key.replace("-", "_"))
        if value is True and isinstance(entry, Mapping) and not _takes_yes(entry):
            form = shlex.quote(f"--{key}={entry.get('example') or 'VALUE'}")
            raise UsageError(
                f"--{key} is given without a value",
                cause=str(entry.get("desc")),
                remedy=f"join the value to it by =, as {form}, or leave it out",
            )


def _takes_yes(entry: Mapping[str, Any]) -> bool:
    """Return True for a switch, a choice of which one is yes, and a text whose default is no."""
    words = map(as_text, (*(entry.get("choices") or ()), entry.get("default")))
    return entry.get("type", "switch") == "switch" or not {"yes", "no"}.isdisjoint(words)


def unknown_flags(script: ScriptMeta, inputs: Mapping[str, Any]) -> list[str]:
    """Return the flags that neither the engine nor the script knows, in their order."""
    own = _own_flags(script)
    return [
        key
        for key in inputs
        if key.replace("-", "_") not in own and key not in ENGINE_FLAGS and not key.startswith("_")
    ]


def _own_flags(script: ScriptMeta) -> set[str]:
    return {key.replace("-", "_") for key in (*script.input_mapping, *script.input_description)}


def _near_flag(key: str, own: Collection[str], script: ScriptMeta) -> str:
    """Return what to give in place of a flag that a script does not have."""
    if taken_over := script.removed_inputs.get(key.replace("-", "_")):
        return taken_over
    if variations := _variations_for(key, script):
        return f"it is given among the tags: {', '.join(f'_{name}' for name in variations)}"
    hint = nearest(key, own, f"list them with: cm show script {script.alias}")
    if not hint.startswith("did you mean") and (close := nearest(key, ENGINE_FLAGS)).startswith("did you mean"):
        return close
    return hint or "it has no inputs"


def _variations_for(key: str, script: ScriptMeta) -> list[str]:
    """Return the variations that a flag stands for: that of its name, or those that set an environment key of it."""
    word = key.replace("-", "_").lower()
    named = [name for name in script.variations if name.replace("-", "_").lower() == word]
    suffix = f"_{word.upper()}"
    return named or [
        name
        for name, raw in script.variations.items()
        if "#" not in name and "," not in name and any(str(each).endswith(suffix) for each in raw.get("env") or {})
    ]


def parse_command(folder: str, words: Sequence[str]) -> tuple[ScriptMeta, dict[str, Any], dict[str, Any]]:
    """Return the script in a folder, the words of its command as cm reads them, and the keys of its own flags."""
    from cmind import cli

    script = load_script(folder, "cm4vllm")
    typed: dict[str, Any] = cli.parse(["run", "script", *words])["cm_input"]
    return script, typed, mapped_inputs(script, typed)[1]


def mapped_inputs(script: ScriptMeta, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the environment keys of flags: the special flags of all scripts, and those of input_mapping.

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


def require_inputs(catalogue: Catalogue, script: ScriptMeta, env: Mapping[str, Any]) -> None:
    """Raise UsageError for required inputs without a value: each by its flag, with the recipes that give it."""
    missing = {
        flag: entry
        for flag, entry in script.input_description.items()
        if isinstance(entry, Mapping) and entry.get("default") == REQUIRED and "same_as" not in entry
        if env.get(script.input_mapping.get(flag, "")) in (None, "")
    }
    if not missing:
        return
    flags = [f"--{flag}" for flag in missing]
    raise UsageError(
        f"{script.title()} is not given {', '.join(flags[:-1])}{' and ' if flags[1:] else ''}{flags[-1]}",
        cause="\n".join(f"--{flag}: {entry.get('desc')}" for flag, entry in missing.items()),
        remedy="\n".join(f"--{flag}=...{_scripts_that_give(catalogue, script, flag)}" for flag in missing),
    )


def _scripts_that_give(catalogue: Catalogue, script: ScriptMeta, flag: str) -> str:
    """Return the recipes of the same repository that give an input, in words; empty where none does."""
    key = script.input_mapping[flag]
    givers = [
        other.title()
        for other in catalogue.all()
        if other.repo == script.repo and other.uid != script.uid and key in other.layer.new_env_keys
    ]
    return f", as {' or '.join(givers)} gives it" if givers else ""


def with_usable_flags(text: str, scripts: Sequence[ScriptMeta]) -> str:
    """Return the text of an error in which every flag is one that the script that was asked for accepts.

    `scripts` are those under way, from that one to the one that failed. A flag of the latter becomes the environment
    key that it stands for, which dependencies inherit. Lines that name a command of their own stay as they are.
    """
    asked, *below = scripts
    known = {*asked.input_mapping, *asked.input_description, *ENGINE_FLAGS}
    keys = {flag: key for script in below for flag, key in script.input_mapping.items()}

    def usable(match: re.Match[str]) -> str:
        """Return a flag of a text as the script takes it: `--env.KEY` where it has no such flag."""
        flag = match[1]
        return match[0] if flag in known or flag not in keys else f"--env.{keys[flag]}"

    return "\n".join(line if "cm run script" in line else _FLAG.sub(usable, line) for line in text.splitlines())
