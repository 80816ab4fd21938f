"""Starts a vLLM server or checks one that runs already, lists those that run, or stops one."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.links import LinkInputs, completed_server
    from cm4vllm.serving.launch_settings import LaunchSettings, node_notes

    i["env"].update(completed_server(LaunchSettings.of(i["env"]), LinkInputs.of(i["env"])).env())
    return {"return": 0, "notes": node_notes(LaunchSettings.of(i["env"]))}


def values(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.clusters.launchers import LAUNCHERS
    from cm4vllm.serving.options.presets import presets

    return {"return": 0, "values": {"launcher": [*LAUNCHERS], "preset": [preset.name for preset in presets()]}}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.launch import act
    from cm4vllm.serving.launch_settings import LaunchSettings

    i["env"].update(act(LaunchSettings.of(i["env"])).env())
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
