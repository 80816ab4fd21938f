"""Prints results side by side and writes them as a page."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.report.comparison_texts import ComparisonInputs, report_comparison

    inputs = ComparisonInputs.of(i["env"])
    i["state"].update(report_comparison(inputs.compared, Path(inputs.page).absolute()))
    return {"return": 0}
