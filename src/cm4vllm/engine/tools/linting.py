"""`cm lint script`: what is suspicious in metas, told by file and line."""

from __future__ import annotations

from typing import Any

from cm4vllm.common.errors import CmError, RecipeError
from cm4vllm.common.progress import page
from cm4vllm.engine.format.catalogue import Catalogue
from cm4vllm.engine.tools.asked import asked_scripts
from cm4vllm.engine.tools.lint import Finding, Linter

__all__ = ["lint_scripts"]


def lint_scripts(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Print what is wrong with the scripts asked for, with all of them without tags or name; 3 if anything is."""
    catalogue = Catalogue(automation.cmind)
    linter = Linter(catalogue)
    try:
        scripts = asked_scripts(catalogue, i) if i.get("artifact") or i.get("tags") else linter.every()
    except CmError as error:
        return {"return": error.exit_code, "error": str(error)}
    folders = {script.path for script in scripts}
    found = [one for one in linter.duplicates() if one.path in folders or not (i.get("artifact") or i.get("tags"))]
    for script in scripts:
        found += linter.findings(script)
    data = [_as_json(one) for one in found]
    if i.get("out") != "json":
        for one in found:
            page(str(one))
        wrong = len({one.path.parent if one.path.suffix else one.path for one in found})
        page(f"{len(scripts)} scripts, " + (f"{len(found)} findings in {wrong} of them" if found else "all clean"))
    if not found:
        return {"return": 0, "scripts": len(scripts), "findings": []}
    told = RecipeError(f"lint found something in {len(found)} places", remedy="each line above names its place")
    return {"return": told.exit_code, "error": str(told), "scripts": len(scripts), "findings": data}


def _as_json(finding: Finding) -> dict[str, Any]:
    return {"path": str(finding.path), "line": finding.line or None, "finding": finding.text}
