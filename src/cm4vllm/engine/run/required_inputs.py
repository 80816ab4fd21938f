"""The inputs that a script cannot do without: all that are missing are named at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cm4vllm.common.errors import UsageError
from cm4vllm.engine.format.inputs import REQUIRED
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.format.script_catalogue import Catalogue

__all__ = ["require_inputs"]


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
        remedy="\n".join(f"--{flag}=...{_givers(catalogue, script, flag)}" for flag in missing),
    )


def _givers(catalogue: Catalogue, script: ScriptMeta, flag: str) -> str:
    """Return the recipes of the same repository that give an input, in words; empty where none does."""
    key = script.input_mapping[flag]
    givers = [
        other.title()
        for other in catalogue.all()
        if other.repo == script.repo and other.uid != script.uid and key in other.layer.new_env_keys
    ]
    return f", as {' or '.join(givers)} gives it" if givers else ""
