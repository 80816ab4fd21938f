"""Installs Ray over the environment of a vLLM, into the cache entry."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from pathlib import Path

    from cm4vllm.common.input_types import VllmPythonInput
    from cm4vllm.serving.clusters.ray_cluster import install_ray

    python, release = install_ray(Path(VllmPythonInput.of(i["env"]).python), Path.cwd())
    i["env"]["CM_RAY_PYTHON_BIN_WITH_PATH"] = str(python)
    i["env"]["CM_RAY_VERSION"] = release
    return {"return": 0, "version": release}
