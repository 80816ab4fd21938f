"""What a script's customize.py says about itself, without being run."""

from __future__ import annotations

import re

from cm4vllm.engine.format.meta import ScriptMeta

__all__ = ["code_of", "has_plan", "may_end_early", "runs_scripts"]

_PLAN = re.compile(r"^def plan\(", re.MULTILINE)
_NESTED_RUN = re.compile(r"""automation["'\]]*\.run\(|\.access\(""")


def code_of(script: ScriptMeta) -> str:
    """Return the text of customize.py; empty where there is none."""
    try:
        return (script.path / "customize.py").read_text(errors="replace")
    except OSError:
        return ""


def has_plan(code: str) -> bool:
    """Tell whether there is a hook `plan`, which says what the others will do."""
    return bool(_PLAN.search(code))


def runs_scripts(code: str) -> bool:
    """Tell whether a hook may run further scripts."""
    return bool(_NESTED_RUN.search(code))


def may_end_early(code: str) -> bool:
    """Tell whether preprocess may return `skip`, which ends the script before run.sh and the later dependencies."""
    return "skip" in code
