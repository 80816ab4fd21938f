"""`cm plan script`, and `cm run script --plan`: what a run would do, printed."""

from __future__ import annotations

import json
from typing import Any

from cm4vllm.common.errors import CmError
from cm4vllm.common.files import working_folder
from cm4vllm.common.progress import page
from cm4vllm.engine.plan.graph import as_json, as_mermaid, as_tree
from cm4vllm.engine.plan.plan import plan
from cm4vllm.engine.run.request import Request, flag
from cm4vllm.engine.run.session import Session

__all__ = ["print_plan"]


def print_plan(automation: Any, i: dict[str, Any]) -> dict[str, Any]:
    """Print the plan of a run as a tree, as Mermaid with --graph, as JSON with --out=json or -j.

    The result holds the plan as data. Its code is that of the first error that the run is certain to meet.
    """
    session = Session(automation, i)
    with session.vault.guarded_output():
        return _printed(session, i)


def _printed(session: Session, i: dict[str, Any]) -> dict[str, Any]:
    try:
        root = plan(session, Request.of(i, working_folder(), from_person=bool(i.get("cmd"))))
    except CmError as error:
        return {"return": error.exit_code, "error": session.explained(error)}
    data: dict[str, Any] = session.vault.cleaned(as_json(root))
    if flag(i, "j", "json"):
        page(json.dumps(data, indent=2))
    elif flag(i, "graph"):
        page(as_mermaid(root))
    elif not session.as_json:
        page(as_tree(root))
    if (failure := root.failure()) is not None:
        return {"return": failure.exit_code, "error": f"the run would fail\n{failure}", **data}
    return {"return": 0, **data}
