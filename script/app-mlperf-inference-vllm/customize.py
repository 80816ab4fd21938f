"""Makes one LoadGen run against a vLLM server."""

from typing import Any


def values(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.compliance.verification import verified_tests

    return {"return": 0, "values": {"compliance_test": list(verified_tests())}}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from functools import partial

    from cm4vllm.accuracy.live import live_scores
    from cm4vllm.common.settings import read_settings
    from cm4vllm.compliance.audit import audit_config
    from cm4vllm.loadgen.measurement import RunInputs, measure

    env = i["env"]
    watch = partial(live_scores, nltk_data=env.get("CM_NLTK_DATA"))
    inputs = read_settings(RunInputs, env)
    _, path = measure(inputs, watch, audit_config=audit_config(inputs.compliance_test, inputs.model))
    env["CM_MLPERF_RUN_RECORD"] = str(path)
    return {"return": 0}
