"""Searches for the highest rate that keeps a scenario's latency limits."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.links import completed_link

    i["env"].update(
        completed_link("find,mlperf,inference,target-qps", i["env"], i["input"].get("adr"), i["automation"].adr_targets)
    )
    return {"return": 0}


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.links import Link, planned_exports

    return {"return": 0, **planned_exports(Link.of(i["env"]), {"CM_MLPERF_SEARCH_RECORD": "search.json"})}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.links import Link, kept_server

    i["env"].update(kept_server("find,mlperf,inference,target-qps", Link.of(i["env"])).env())
    return {"return": 0}


def postprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.links import Link, make_search

    i["env"].update(make_search(Link.of(i["env"])).env())
    return {"return": 0}
