"""The inputs of a script as `--help` and docs/recipes.md list them: flag and explanation, by the group of each."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cm4vllm.engine.format.inputs import INPUT_TITLES, REQUIRED
from cm4vllm.engine.format.meta import ScriptMeta

Row = tuple[str, str]

#: So many inputs are one list: titles would be harder to read than they are.
ONE_LIST = 15
_FIRST, _OTHERS = "to begin with", "others"
#: The flags of the engine that a script can have among its `first_inputs`.
FIRST_FLAGS = {"plan": "show what a run would do; nothing is run"}
#: The words for the values of a type.
_PLACEHOLDERS = {"integer": "=N", "number": "=X.Y", "switch": "=yes|no", "path": "=PATH"}


def input_lists(script: ScriptMeta, values: Mapping[str, Sequence[str]] = MappingProxyType({})) -> dict[str, list[Row]]:
    """Return flag and explanation of each input, in lists by title: the script's `first_inputs`, then each group.

    Few inputs, and inputs of a meta that names no groups, are one list without a title. `values` are what inputs take,
    beside those that the meta says.
    """
    flags = sorted({*script.input_mapping, *script.input_description})
    groups = {flag: str(_entry(script, flag).get("group") or "") for flag in flags}
    lists: dict[str, Sequence[str]] = {"": flags}
    if len(flags) > ONE_LIST and any(groups.values()):
        ordered = (*INPUT_TITLES, *sorted({*groups.values()} - {*INPUT_TITLES, ""}), "")
        later = [flag for flag in flags if flag not in script.first_inputs]
        lists = {_FIRST: script.first_inputs} | {
            INPUT_TITLES.get(group, group or _OTHERS): [flag for flag in later if groups[flag] == group]
            for group in ordered
        }
    return {
        title: [_row(script, flag, values.get(flag, ())) for flag in listed]
        for title, listed in lists.items()
        if listed
    }


def _entry(script: ScriptMeta, flag: str) -> Mapping[str, Any]:
    """Return what is said of a flag; the public format may say it in a text alone."""
    described = script.input_description.get(flag, FIRST_FLAGS.get(flag))
    return described if isinstance(described, Mapping) else {"desc": described or ""}


def _row(script: ScriptMeta, flag: str, values: Sequence[str]) -> Row:
    entry = _entry(script, flag)
    placeholder = _PLACEHOLDERS.get(str(entry.get("type") or ""), "")
    return f"--{flag}{placeholder}", _input_text(script, flag, entry, values)


def _input_text(script: ScriptMeta, flag: str, entry: Mapping[str, Any], values: Sequence[str]) -> str:
    """Return the help of a flag: its description, values, default and example."""
    key = script.input_mapping.get(flag, "")
    # The mapping shows what an input sets where it is not described.
    text = str(entry.get("desc") or "") or f"sets {key}"
    if entry.get("same_as") in script.input_mapping:
        return f"the same as --{entry['same_as']}"
    default = entry.get("default")
    if default is None:
        default = script.layer.default_env.get(key)
    choices = [str(choice) for choice in (*(entry.get("choices") or ()), *values)]
    notes = [
        _choice_words(choices, several=bool(entry.get("several"))),
        "" if default in (None, "") else "required" if default == REQUIRED else f"default: {default}",
        f"for example {entry['example']}" if entry.get("example") else "",
    ]
    return text + (f" ({'; '.join(filter(None, notes))})" if any(notes) else "")


def _choice_words(choices: Sequence[str], *, several: bool) -> str:
    if not choices:
        return "several are separated by commas" if several else ""
    count = "only" if len(choices) == 1 else "one or more, separated by commas, of" if several else "one of"
    return f"{count} {', '.join(choices)}"
