"""Prints results side by side and writes them as a page."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.report.comparison_texts import report_comparison

    env = i["env"]
    page = Path(env.get("CM_MLPERF_COMPARISON_PAGE", "") or "comparison.html").absolute()
    i["state"].update(report_comparison(env["CM_MLPERF_COMPARED_RESULTS"], page))
    return {"return": 0}
