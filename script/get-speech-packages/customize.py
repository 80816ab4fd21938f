"""Installs the packages for speech into the cache entry."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.tool_packages import install_packages
    from cm4vllm.common.input_types import VllmPythonInput

    lock = Path(i["artifact"].path) / "requirements.txt"
    names = "the packages for speech: audio readers and whisper's normaliser"
    i["env"]["CM_SPEECH_PACKAGES"] = str(install_packages(Path.cwd(), lock, names, VllmPythonInput.of(i["env"]).python))
    return {"return": 0}
