"""The inputs of a script: each described once, where it is defined, and referred to elsewhere.

    inputs:
      max_num_seqs: {key: CM_VLLM_SERVER_MAX_NUM_SEQS, type: integer, help: "sequences of one step", default: "256"}
    inputs_of:
      run-vllm-server: [tp_size, pp_size]     # as that script, in the folder beside this one, describes them
    input_defaults:
      tp_size: "2"                            # where the default of this script is another

`key` is the environment key that the flag sets, `also` are further names of the flag, `values` all that it takes;
`type` is text where it is left out. `input_mapping` and `input_description` of the public format say the same in two
parts; they are what these become when a meta is read, and both forms may stand in one meta.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from cm4vllm.common.errors import RecipeError, nearest

__all__ = ["INPUT_KEYS", "INPUT_TYPES", "with_inputs"]

INPUT_KEYS = frozenset({"key", "help", "type", "values", "default", "example", "also"})
INPUT_TYPES = ("text", "integer", "number", "switch", "path")

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
        other = _inputs_of(str(alias), folder, read)
        for flag in [flags] if isinstance(flags, str) else flags or ():
            if flag not in other:
                raise RecipeError(
                    f"inputs_of in {folder} names {flag!r} of {alias}, which describes no such input",
                    remedy=nearest(flag, other),
                )
            mapping[flag], described[flag] = other[flag][0], {**other[flag][1], "of": alias}
    for flag, (key, entry) in _described(raw.get("inputs") or {}).items():
        mapping[flag], described[flag] = key, entry
    for flag, default in (raw.get("input_defaults") or {}).items():
        if flag not in described:
            raise RecipeError(
                f"input_defaults in {folder} names {flag!r}, which is no input of this script",
                remedy=nearest(flag, described),
            )
        described[flag] = {**described[flag], "default": default}
    return {
        **raw,
        "input_mapping": {**mapping, **(raw.get("input_mapping") or {})},
        "input_description": {**described, **(raw.get("input_description") or {})},
    }


def _inputs_of(alias: str, folder: str, read: Callable[[str], Raw]) -> dict[str, tuple[str, dict[str, Any]]]:
    path = os.path.join(os.path.dirname(folder), alias)
    if not os.path.isdir(path):
        raise RecipeError(f"inputs_of in {folder} names {alias!r}, which is not a recipe of the same repository")
    return _described(read(path).get("inputs") or {})


def _described(inputs: Raw) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return environment key and description of each flag, under all its names."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for flag, entry in inputs.items():
        description: dict[str, Any] = {"desc": str(entry.get("help") or ""), "type": str(entry.get("type") or "text")}
        if values := entry.get("values"):
            description["choices"] = list(values)
        description |= {key: entry[key] for key in ("default", "example") if entry.get(key) is not None}
        found[flag] = str(entry["key"]), description
        for name in entry.get("also") or ():
            found[name] = str(entry["key"]), {**description, "same_as": flag}
    return found
