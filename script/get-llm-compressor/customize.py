"""Installs llm-compressor into the cache entry."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.tool_packages import install_compressor

    python, version = install_compressor(Path.cwd(), Path(i["artifact"].path) / "requirements.txt")
    i["env"]["CM_LLM_COMPRESSOR_PYTHON_BIN_WITH_PATH"] = str(python)
    i["env"]["CM_LLM_COMPRESSOR_VERSION"] = version
    return {"return": 0, "version": version}
