"""Starts a simulated server for a rehearsal; by itself it runs until Ctrl-C."""

from typing import Any


def values(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.rehearsal.profile import named_profiles

    return {"return": 0, "values": {"rehearse": list(named_profiles())}}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.rehearsal.launch import SimulatedSettings, act

    i["env"].update(act(SimulatedSettings.of(i["env"])).env())
    return {"return": 0}


def postprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.launch import attend
    from cm4vllm.serving.launch_settings import LaunchSettings

    attend(LaunchSettings.of(i["env"]))
    return {"return": 0}


def cleanup(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.launch import end
    from cm4vllm.serving.launch_settings import StartedServer

    end(StartedServer.of(i["env"]).server_record)
    return {"return": 0}
