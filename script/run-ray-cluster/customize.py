"""Makes this machine the head or a worker of a Ray cluster, or reports what a cluster can hold."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.clusters.ray_cluster import RaySettings, show, start

    env = i["env"]
    settings = RaySettings.of(env)
    if settings.role == "status":
        show(settings)
        return {"return": 0}
    record, path = start(settings)
    env["CM_RAY_HEAD_ADDRESS"] = record.address
    env["CM_RAY_RECORD"] = str(path)
    return {"return": 0}


def postprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.clusters.ray_cluster import wait_in_foreground

    if i["env"]["CM_RAY_BACKGROUND"] != "yes" and i["env"].get("CM_RAY_RECORD"):
        wait_in_foreground(i["env"]["CM_RAY_RECORD"])
    return {"return": 0}


def cleanup(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.clusters.ray_cluster import end

    end(i["env"].get("CM_RAY_RECORD", ""))
    return {"return": 0}
