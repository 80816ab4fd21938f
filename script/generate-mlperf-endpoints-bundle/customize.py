"""Builds the bundle of a curve of MLPerf Endpoints."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.endpoints.authoring import BundleInputs, require_target

    require_target(BundleInputs.of(i["env"]))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.progress import say
    from cm4vllm.endpoints.authoring import BundleInputs, author_and_build

    bundle = author_and_build(BundleInputs.of(i["env"]))
    say(f"bundle: {bundle}")
    i["env"]["CM_MLPERF_ENDPOINTS_BUNDLE"] = str(bundle)
    return {"return": 0}
