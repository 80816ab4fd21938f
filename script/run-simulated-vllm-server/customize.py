"""Starts a simulated server for a rehearsal; by itself it runs until Ctrl-C."""

from typing import Any


def values(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.rehearsal.profile import named_profiles

    return {"return": 0, "values": {"rehearse": list(named_profiles())}}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.rehearsal.launch import act

    i["env"].update(act(i["env"]))
    return {"return": 0}


def postprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.launch import attend

    attend(i["env"])
    return {"return": 0}


def cleanup(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.launch import end

    end(i["env"].get("CM_VLLM_SERVER_RECORD", ""))
    return {"return": 0}
