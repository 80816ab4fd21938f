"""`cm test script`: runs the inputs that metas give under tests.run_inputs."""

from __future__ import annotations

from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.engine.format.catalogue import Catalogue
from cm4vllm.engine.format.meta import ScriptMeta, split_tags
from cm4vllm.engine.run.request import Request
from cm4vllm.engine.run.selection import candidates

__all__ = ["test_scripts"]


def test_scripts(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Run the test inputs of the scripts asked for, of all scripts without tags. The first failure ends it."""
    catalogue = Catalogue(automation.cmind)
    try:
        named = split_tags(i.get("tags")) or i.get("artifact")
        scripts = candidates(catalogue, Request.of(i, "")) if named else catalogue.all()
    except CmError as error:
        return {"return": error.exit_code, "error": str(error)}
    done: list[str] = []
    for script in scripts:
        print(script.folder)
        for given in _run_inputs(script):
            result = automation.run({"quiet": True, **given, "artifact": script.uid})
            if result["return"]:
                return dict(result)
            done.append(script.alias)
    return {"return": 0, "scripts": [script.alias for script in scripts], "runs": done}


def _run_inputs(script: ScriptMeta) -> list[dict[str, Any]]:
    tests = script.raw.get("tests") or {}
    return [dict(given) for given in tests.get("run_inputs") or []]
