"""Reads a repository of published results and writes a page of them."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.report.explorer import report_published

    env = i["env"]
    page = Path(env.get("CM_MLPERF_EXPLORER_PAGE", "") or "results.html").absolute()
    own = env.get("CM_MLPERF_OWN_RESULTS", "")
    i["state"]["explored"] = report_published(
        env["CM_MLPERF_EXPLORED_RESULTS"], page, Path(own).absolute() if own else None
    )
    return {"return": 0}
