"""Reads a repository of published results and writes a page of them."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.report.explorer import ExplorerInputs, report_published

    inputs = ExplorerInputs.of(i["env"])
    own = Path(inputs.own).absolute() if inputs.own else None
    i["state"]["explored"] = report_published(inputs.published, Path(inputs.page).absolute(), own)
    return {"return": 0}
