"""The inputs of a script: each described once, where it is defined, and referred to elsewhere.

    inputs:
      max_num_seqs: {key: CM_VLLM_SERVER_MAX_NUM_SEQS, type: integer, help: "sequences of one step", default: from vLLM}
    inputs_of:
      run-vllm-server: [tp_size, engine]      # as that script, in the folder beside this one, describes them
    input_changes:
      tp_size: {default: "2"}                 # where it is another one for this script

A script names groups of its inputs, `input_groups: {engine: [max_num_seqs, tp_size]}`; a reference takes a group as a
whole.

`key` is the environment key that the flag sets, `also` are further names of the flag, `values` all that it takes;
`type` is text where it is left out; `group` names the list of `--help` that shows the input. An input with
`several: true` takes more than one value, separated by commas.

`default` says what applies where the input is left out: a value; `none`; `required`; or `from ...`, where the value is
found at run time. Cases are written `256 on a CPU, else from vLLM`. A value in the `default_env` of the script goes
before it. `input_mapping` and `input_description` of the public format say the same in two
parts; they are what these become when a meta is read, and both forms may stand in one meta.

Variations are shared in the same way, by their groups:

    variations_of:
      run-mlperf-inference-app: [model-source]  # as that script defines them; none of them is a default here
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from cm4vllm.common.errors import RecipeError, nearest

INPUT_KEYS = frozenset({"key", "group", "help", "type", "values", "several", "default", "example", "also"})
#: The default of an input that has none: without it, the script ends with an error.
REQUIRED = "required"
INPUT_TYPES = ("text", "integer", "number", "switch", "path")
#: The groups of inputs with their titles, in the order of `--help`. Another word is a title itself, and comes later.
INPUT_TITLES = {
    "measurement": "what you measure",
    "server": "the server",
    "run": "the run",
    "submission": "the submission",
    "machines": "several machines",
    "paths": "paths",
}

#: The facts of an input that `--help` and completion show, with the public format's name where it is another.
SHOWN_KEYS = INPUT_KEYS - {"key", "also"}
_PUBLIC_NAMES = {"help": "desc", "values": "choices"}

Raw = Mapping[str, Any]


def with_inputs(raw: Raw, folder: str, read: Callable[[str], Raw]) -> Raw:
    """Return a meta with its inputs, its own and those it refers to, in the two parts of the public format.

    `read` returns the meta in a folder. Raises RecipeError for a reference to an input that no recipe describes.
    """
    if "inputs" not in raw and "inputs_of" not in raw:
        return raw
    mapping: dict[str, str] = {}
    described: dict[str, Any] = {}
    for alias, flags in (raw.get("inputs_of") or {}).items():
        meta = _referred_meta(str(alias), folder, read, "inputs_of")
        other, groups = _inputs_by_flag(meta.get("inputs") or {}), meta.get("input_groups") or {}
        named = [flags] if isinstance(flags, str) else flags or ()
        for flag in (flag for name in named for flag in groups.get(name, (name,))):
            if flag not in other:
                raise RecipeError(
                    f"inputs_of in {folder} names {flag!r} of {alias}, which describes no such input",
                    remedy=nearest(flag, (*other, *groups)),
                )
            mapping[flag], described[flag] = other[flag][0], {**other[flag][1], "of": alias}
    for flag, (key, entry) in _inputs_by_flag(raw.get("inputs") or {}).items():
        mapping[flag], described[flag] = key, entry
    for flag, change in (raw.get("input_changes") or {}).items():
        if flag not in described:
            raise RecipeError(
                f"input_changes in {folder} names {flag!r}, which is no input of this script",
                remedy=nearest(flag, described),
            )
        described[flag] = {**described[flag], **_described_entry(change)}
    for flag, key in mapping.items():
        if default := (raw.get("default_env") or {}).get(key):
            described[flag] = {**described[flag], "default": default}
    return {
        **raw,
        "input_mapping": {**mapping, **(raw.get("input_mapping") or {})},
        "input_description": {**described, **(raw.get("input_description") or {})},
    }


def with_variations(raw: Raw, folder: str, read: Callable[[str], Raw]) -> Raw:
    """Return a meta with the variations of the groups that it refers to; its own of the same names come first.

    Raises RecipeError for a reference to a group that no recipe has.
    """
    if "variations_of" not in raw:
        return raw
    shared: dict[str, Any] = {}
    for alias, groups in (raw.get("variations_of") or {}).items():
        defined = _referred_meta(str(alias), folder, read, "variations_of").get("variations") or {}
        known = {str(variation.get("group")) for variation in defined.values() if variation}
        for group in [groups] if isinstance(groups, str) else groups or ():
            if group not in known:
                raise RecipeError(
                    f"variations_of in {folder} names the group {group!r} of {alias}, which has no such group",
                    remedy=nearest(group, known),
                )
            shared |= {
                name: {key: value for key, value in variation.items() if key != "default"}
                for name, variation in defined.items()
                if variation and variation.get("group") == group
            }
    return {**raw, "variations": {**shared, **(raw.get("variations") or {})}}


def _referred_meta(alias: str, folder: str, read: Callable[[str], Raw], key: str) -> Raw:
    """Return the meta of the recipe `alias`, to which `key` refers, in the folder beside `folder`."""
    path = os.path.join(os.path.dirname(folder), alias)
    if not os.path.isdir(path):
        raise RecipeError(f"{key} in {folder} names {alias!r}, which is not a recipe of the same repository")
    return read(path)


def _inputs_by_flag(inputs: Raw) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return environment key and description of each flag, under all its names."""
    described: dict[str, tuple[str, dict[str, Any]]] = {}
    for flag, entry in inputs.items():
        description = {"desc": "", "type": "text", **_described_entry(entry)}
        described[flag] = str(entry["key"]), description
        for name in entry.get("also") or ():
            described[name] = str(entry["key"]), {**description, "same_as": flag}
    return described


def _described_entry(entry: Raw) -> dict[str, Any]:
    """Return the facts of an input's entry, under the names of the public format."""
    return {
        _PUBLIC_NAMES.get(key, key): value for key, value in entry.items() if key in SHOWN_KEYS and value is not None
    }
