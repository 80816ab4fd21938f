"""Installs vLLM into the cache entry, or proves the one that is installed."""

from pathlib import Path
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.installation.builds import VARIANTS, planned_install
    from cm4vllm.serving.installation.install import InstallSettings, check

    settings = InstallSettings.of(i["env"])
    check(settings)
    if not (settings.version and settings.variant in VARIANTS):
        return {"return": 0}
    return {"return": 0, "brings": [planned_install(settings.variant, settings.version)]}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.installation.install import VLLM_FILE, InstallSettings, install

    env, folder = i["env"], Path.cwd()
    record = install(InstallSettings.of(env), folder, Path(i["artifact"].path))
    env["CM_VLLM_PYTHON_BIN_WITH_PATH"] = record.python
    env["CM_VLLM_VERSION"] = record.packages["vllm"]
    env["CM_VLLM_DEVICE"] = record.device
    env["CM_VLLM_INSTALLATION"] = str(folder / VLLM_FILE)
    return {"return": 0, "version": record.packages["vllm"]}
