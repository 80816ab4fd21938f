"""Checks run folders or a bundle of MLPerf Endpoints."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.endpoints.inspection import EndpointsCheckSettings, report_endpoints_checks

    i["state"].update(report_endpoints_checks(EndpointsCheckSettings.of(i["env"])))
    return {"return": 0}
