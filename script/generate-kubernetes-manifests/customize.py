"""Writes Kubernetes manifests of a vLLM server, checked against their published schemas."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.clusters.kubernetes_manifests import PodSettings, write_manifests

    i["env"].update(write_manifests(PodSettings.of(i["env"])).env())
    return {"return": 0}
