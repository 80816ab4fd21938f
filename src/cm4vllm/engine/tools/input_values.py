"""The values that a script's inputs take where only its code can say: for --help and for completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.plan.recipe_code import code_of, has_hook
from cm4vllm.engine.run.hooks import Hooks
from cm4vllm.engine.run.request import Request, Task
from cm4vllm.engine.run.scope import Scope

__all__ = ["input_values"]


def input_values(
    script: ScriptMeta, given: Mapping[str, Any], beside: Callable[[str], ScriptMeta]
) -> dict[str, list[str]]:
    """Return the values of each input whose recipe has the hook `values`.

    The hook gets the environment of the script as `given` asks for it, since tags and other inputs may decide about the
    values. `beside` returns the script of an alias in the same repository: an input may be described there.
    """
    request = Request.of({**given, "tags": given.get("tags") or list(script.tags), "artifact": script.uid}, "")
    try:
        env = Scope.of(Task.of(script, request)).env
    except CmError:
        env = {}  # variations or values that this script does not take
    by_flag: dict[str, list[str]] = {}
    for alias in dict.fromkeys(
        str(entry.get("of") or script.alias)
        for entry in script.input_description.values()
        if isinstance(entry, Mapping)
    ):
        described_by = script if alias == script.alias else beside(alias)
        if has_hook(code_of(described_by), "values"):
            with suppress(CmError):  # what cannot be known is left out
                answer = Hooks(described_by).call("values", {"env": {**env}})
                by_flag |= {flag: [str(value) for value in values] for flag, values in answer.get("values", {}).items()}
    return by_flag
