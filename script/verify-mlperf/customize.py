"""Compares two capsules and their results."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    import msgspec

    from cm4vllm.report.comparison_texts import report_verification
    from cm4vllm.results.comparing.verification import VerifyInputs, refuse_differences
    from cm4vllm.submission.capsule.capsules_at_path import capsule_at

    inputs = VerifyInputs.of(i["env"])
    paths = [Path(text).absolute() for text in (inputs.capsule, inputs.other)]
    rows = report_verification([(path, capsule_at(path, inputs.of_part)) for path in paths], inputs.accuracy)
    i["state"]["compared"] = msgspec.to_builtins(rows)
    refuse_differences(rows)
    return {"return": 0}
