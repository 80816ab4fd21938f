"""Installs the packages for speech into the cache entry."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.speech_packages import install

    packages = install(Path.cwd(), Path(i["artifact"].path) / "requirements.txt")
    i["env"]["CM_SPEECH_PACKAGES"] = str(packages)
    return {"return": 0}
