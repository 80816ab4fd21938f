"""Completion of `cm` in bash and zsh: actions, tags, _variations, --flags and the values that flags take.

`python -m cm4vllm.engine.tools.completion bash` (or zsh) prints what the shell evaluates; at each TAB the shell calls
this module again with the line typed so far. It reads what the engine keeps in the CM home: cmind's index, and metas
that were read before. Where a flag's values are not in the meta, it asks the hook `values` of the recipe, as --help
does. It starts no script, and prints nothing where the home cannot be read.
"""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cm4vllm.engine.format.meta_files import json_mapping

_SCRIPTS = "5b4e0237da074764"
_ACTIONS = ("add", "docker", "dockerfile", "doctor", "find", "help", "lint", "plan", "run", "show", "test")
#: Flags of the engine, for every script; cm4vllm.engine.tools.help explains them.
_GENERAL = (
    "--help",
    "--plan",
    "--graph",
    "--quiet",
    "--env.",
    "--adr.",
    "--new",
    "--renew",
    "--out=json",
    "--version=",
)
_BREAKS = "=:"

_BASH = """\
_cm4vllm_complete() {{
  local IFS=$'\\n'
  COMPREPLY=($(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" {command} bash 2> /dev/null))
}}
complete -o nospace -o bashdefault -o default -F _cm4vllm_complete cm
"""
_ZSH = """\
(( $+functions[compdef] )) || {{ autoload -U compinit && compinit -D; }}
_cm4vllm_complete() {{
  local -a found
  found=("${{(@f)$(COMP_LINE="$BUFFER" COMP_POINT="$CURSOR" {command} zsh 2> /dev/null)}}")
  found=(${{found:#}})
  (( $#found )) && compadd -Q -S '' -- $found || _files
}}
compdef _cm4vllm_complete cm
"""


def shell_code(shell: str) -> str:
    """Return the code that a shell evaluates to complete `cm`."""
    command = f"{shlex.quote(sys.executable)} -P -m cm4vllm.engine.tools.completion"
    return {"bash": _BASH, "zsh": _ZSH}[shell].format(command=command)


def candidates(line: str, home: str) -> list[str]:
    """Return the completions of the last word of a line, each as the whole word; a trailing space ends it."""
    words = line.split()
    last = "" if line.endswith((" ", "\t")) or not words else words.pop()
    if len(words) == 1:
        return [f"{name} " for name in _ACTIONS if name.startswith(last)]
    if len(words) == 2:
        return ["script "] if "script".startswith(last) else []
    if len(words) < 3 or words[2].rpartition(":")[2] != "script":
        return []
    indexed = _indexed_scripts(home)
    if last.startswith("--tags="):
        return sorted(_tags(last, indexed, home))
    tags = next((word.removeprefix("--tags=") for word in words if word.startswith("--tags=")), "")
    if not tags:
        return ["--tags="] if "--tags=".startswith(last) else []
    given = dict(word[2:].partition("=")[::2] for word in words[3:] if word.startswith("--") and "=" in word)
    return sorted(_flags(last, given, _matching_scripts(tags, indexed), home))


def _tags(word: str, indexed: Sequence[Mapping[str, Any]], home: str) -> Iterator[str]:
    """Yield `--tags=` with one tag or variation more: those of the scripts that have the tags typed before."""
    typed, comma, begun = word.removeprefix("--tags=").rpartition(",")
    before = set(typed.split(",")) if comma else set()
    scripts = _matching_scripts(typed, indexed)
    tags = {tag for entry in scripts for tag in entry["tags"]} - before
    if before and (begun.startswith("_") or len(scripts) == 1):
        # A variation that takes a value, `_name.#`, is typed as far as its dot.
        names = {name for entry in scripts for name in _meta(entry, home).get("variations") or {} if "," not in name}
        tags |= {f"_{name.removesuffix('#')}" for name in names} - before
    yield from (f"--tags={typed}{comma}{name}" for name in tags if name.startswith(begun))


def _flags(word: str, given: Mapping[str, str], scripts: Sequence[Mapping[str, Any]], home: str) -> Iterator[str]:
    """Yield the flags of the script that the tags mean, or the values of the flag that is typed.

    `given` are the flags before it with their values.
    """
    own: dict[str, Any] = {}
    if len(scripts) == 1:
        meta = _meta(scripts[0], home)
        described = meta.get("input_description") or {}
        own = {flag: described.get(flag) for flag in {*(meta.get("input_mapping") or {}), *described}}
    flag, equals, begun = word.removeprefix("--").partition("=")
    if equals:
        entry = own.get(flag)
        kind = entry if isinstance(entry, dict) else {}
        values = kind.get("choices") or (("yes", "no") if kind.get("type") == "switch" else ())
        if not values and kind.get("type") == "text":
            values = _values_by_hook(kind.get("same_as") or flag, given, scripts[0], home)
        yield from (f"--{flag}={value}" for value in _values(begun, values, several=bool(kind.get("several"))))
    elif not word or word.startswith("-"):
        listed = (*(f"--{name}=" for name in own), "--tags=", *_GENERAL)
        yield from (name if name.endswith(("=", ".")) else f"{name} " for name in listed if name.startswith(word))


def _values(begun: str, values: Iterable[Any], *, several: bool) -> Iterator[str]:
    """Yield the completions of a flag's value. Of several, separated by commas, the last one is completed.

    A space ends a value, but not one of several: a comma may follow it.
    """
    typed, comma, begun = begun.rpartition(",") if several else ("", "", begun)
    before = typed.split(",")
    end = "" if several else " "
    yield from (
        f"{typed}{comma}{value}{end}" for value in map(str, values) if value.startswith(begun) and value not in before
    )


def _values_by_hook(flag: str, given: Mapping[str, str], script: Mapping[str, Any], home: str) -> Sequence[str]:
    """Return the values of a flag that the recipe's hook gives; none where it gives none."""
    from cm4vllm.engine.format.meta import load_script
    from cm4vllm.engine.format.script_catalogue import KeptMetas
    from cm4vllm.engine.tools.help import input_values

    read = KeptMetas(os.path.join(home, "cm4vllm-metas")).read
    asked = {**given, "tags": given["tags"].split(",")}
    return input_values(load_script(script["path"], "", read), asked, read).get(flag, ())


def _matching_scripts(typed: str, indexed: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the scripts that have the tags typed so far."""
    wanted = {tag for tag in typed.split(",") if tag and not tag.startswith(("_", "-"))}
    return [entry for entry in indexed if wanted.issubset(entry["tags"])]


def _indexed_scripts(home: str) -> list[Mapping[str, Any]]:
    """Return path and tags of every script in cmind's index; none where there is no index yet."""
    scripts = (json_mapping(os.path.join(home, "index.json")) or {}).get(_SCRIPTS)
    # Each script stands twice in the index; the entry under its UID is the one that has its alias.
    return [
        entry
        for entry in (scripts.values() if isinstance(scripts, dict) else ())
        if isinstance(entry, dict) and "alias" in entry and entry.get("path") and entry.get("tags")
    ]


def _meta(script: Mapping[str, Any], home: str) -> Mapping[str, Any]:
    """Return a script's meta with its inputs, as the engine keeps it. Nothing for one that cannot be read."""
    from cm4vllm.common.errors import CmError
    from cm4vllm.engine.format.inputs import with_inputs
    from cm4vllm.engine.format.script_catalogue import KeptMetas

    kept = KeptMetas(os.path.join(home, "cm4vllm-metas"))
    try:
        meta = with_inputs(kept.read(script["path"]), script["path"], kept.read)
    except CmError:
        return {}
    kept.keep()
    return meta


def main(argv: Sequence[str]) -> int:
    """Print the code for a shell; or, where a shell asks with COMP_LINE in the environment, what fits its line."""
    if len(argv) != 1 or argv[0] not in ("bash", "zsh"):
        print("usage: python -m cm4vllm.engine.tools.completion bash|zsh", file=sys.stderr)
        return 20
    if "COMP_LINE" not in os.environ:
        print(shell_code(argv[0]), end="")
        return 0
    line = os.environ["COMP_LINE"][: int(os.environ.get("COMP_POINT") or len(os.environ["COMP_LINE"]))]
    home = os.environ.get("CM_REPOS", "").strip() or os.path.expanduser("~/CM")
    last = "" if line.endswith((" ", "\t")) else line.split()[-1]
    # bash replaces what follows the last of its word breaks, zsh the whole word.
    kept = max(map(last.rfind, _BREAKS)) + 1 if argv[0] == "bash" else 0
    print("\n".join(candidate[kept:] for candidate in candidates(line, home)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
