"""Measures one point of MLPerf Endpoints."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.endpoints.point import PointInputs, measure_point

    env = i["env"]
    record, path = measure_point(PointInputs.of(env))
    env["CM_MLPERF_ENDPOINTS_POINT_RECORD"] = str(path)
    env["CM_MLPERF_ENDPOINTS_RATE"] = str(record.samples_per_second)
    return {"return": 0}
