"""Makes one LoadGen run against a vLLM server."""

from typing import Any


def values(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.compliance.verification import verified_tests

    return {"return": 0, "values": {"compliance_test": list(verified_tests())}}


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.links import completed_link

    i["env"].update(
        completed_link("app,mlperf,inference,vllm", i["env"], i["input"].get("adr"), i["automation"].adr_targets)
    )
    return {"return": 0}


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.links import Link, planned_exports

    return {"return": 0, **planned_exports(Link.of(i["env"]), {"CM_MLPERF_RUN_RECORD": "run.json"})}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.links import Link, kept_server

    i["env"].update(kept_server("app,mlperf,inference,vllm", Link.of(i["env"])).env())
    return {"return": 0}


def postprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.links import Link, make_run

    i["env"]["CM_MLPERF_RUN_RECORD"] = str(make_run(Link.of(i["env"])))
    return {"return": 0}
