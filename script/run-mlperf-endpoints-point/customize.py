"""Measures one point of MLPerf Endpoints."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from pathlib import Path

    from cm4vllm.common.folders.ownership_notes import require_replaceable
    from cm4vllm.endpoints.point import POINT, PointInputs

    if folder := PointInputs.of(i["env"]).output_dir:
        require_replaceable(Path(folder).absolute(), POINT)
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.endpoints.point import PointInputs, measure_point

    env = i["env"]
    record, path = measure_point(PointInputs.of(env))
    env["CM_MLPERF_ENDPOINTS_POINT_RECORD"] = str(path)
    env["CM_MLPERF_ENDPOINTS_RATE"] = str(record.samples_per_second)
    return {"return": 0}
