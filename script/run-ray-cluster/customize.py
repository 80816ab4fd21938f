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
    from cm4vllm.serving.clusters.ray_cluster import StartedNode, wait_in_foreground

    node = StartedNode.of(i["env"])
    if node.record and not node.background:
        wait_in_foreground(node.record)
    return {"return": 0}


def cleanup(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.clusters.ray_cluster import StartedNode, end

    end(StartedNode.of(i["env"]).record)
    return {"return": 0}
