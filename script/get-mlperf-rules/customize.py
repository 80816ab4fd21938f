"""Writes the rules of MLPerf Endpoints that the inputs name into the CM home."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.endpoints.rules_source import RenewalSettings, renew_rules

    path = renew_rules(RenewalSettings.of(i["env"]), Path(i["automation"].cmind.repos_path))
    i["env"]["CM_MLPERF_RULES"] = str(path)
    return {"return": 0}
