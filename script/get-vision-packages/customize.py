"""Installs the packages for pictures into the cache entry."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.tool_packages import install_packages
    from cm4vllm.common.input_types import VllmPythonInput

    lock = Path(i["artifact"].path) / "requirements.txt"
    names = "the packages for pictures: torchvision and Pillow"
    i["env"]["CM_VISION_PACKAGES"] = str(install_packages(Path.cwd(), lock, names, VllmPythonInput.of(i["env"]).python))
    return {"return": 0}
