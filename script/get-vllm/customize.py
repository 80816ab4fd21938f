"""Installs vLLM into the cache entry."""

from pathlib import Path


def preprocess(i):
    from cm4vllm.serving.install import VLLM_FILE, install_cpu

    folder = Path.cwd()
    record = install_cpu(folder, Path(i["artifact"].path) / "requirements-cpu.txt")
    i["env"]["CM_VLLM_PYTHON_BIN_WITH_PATH"] = record.python
    i["env"]["CM_VLLM_VERSION"] = record.packages["vllm"]
    i["env"]["CM_VLLM_DEVICE"] = record.device
    i["env"]["CM_VLLM_INSTALLATION"] = str(folder / VLLM_FILE)
    return {"return": 0, "version": record.packages["vllm"]}
