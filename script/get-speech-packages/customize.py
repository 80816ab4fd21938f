"""Installs the packages for speech into the cache entry."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.speech_packages import install

    lock = Path(i["artifact"].path) / "requirements.txt"
    packages = install(Path.cwd(), lock, i["env"].get("CM_VLLM_PYTHON_BIN_WITH_PATH", ""))
    i["env"]["CM_SPEECH_PACKAGES"] = str(packages)
    return {"return": 0}
