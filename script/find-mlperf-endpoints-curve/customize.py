"""Places the points of a curve of MLPerf Endpoints."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.endpoints.curve_search import CurveInputs, find_curve
    from cm4vllm.endpoints.point import PointInputs

    env = i["env"]
    _, path = find_curve(CurveInputs.of(env), PointInputs.of(env))
    env["CM_MLPERF_ENDPOINTS_CURVE"] = str(path)
    return {"return": 0}
