"""Searches for the highest rate that keeps a scenario's latency limits."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.amendments import amendments
    from cm4vllm.campaign.links import completed_search

    changes = amendments(i["input"].get("adr"), i["automation"].reach, job="find,mlperf,inference,target-qps")
    i["env"].update(completed_search(i["env"], changes.settings))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.search.probing import find_target_rate
    from cm4vllm.common.settings import read_settings
    from cm4vllm.loadgen.measurement import RunInputs

    env = i["env"]
    record, path = find_target_rate(read_settings(RunInputs, env))
    env["CM_MLPERF_SEARCH_RECORD"] = str(path)
    env["CM_MLPERF_SEARCH_RESULT"] = record.result
    return {"return": 0}
