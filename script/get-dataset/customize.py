"""Provides a dataset file and its record."""

from pathlib import Path
from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.datasets import reads_pictures
    from cm4vllm.assets.samples.dataset_files import DatasetSettings

    if reads_pictures(DatasetSettings.of(i["env"])):
        i["env"]["CM_DATASET_NEEDS_VISION_PACKAGES"] = "yes"
    return {"return": 0}


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.datasets import check
    from cm4vllm.assets.samples.dataset_files import DatasetSettings

    check(DatasetSettings.of(i["env"]))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.datasets import DATASET_FILE, provide
    from cm4vllm.assets.samples.dataset_files import DatasetSettings

    env = i["env"]
    settings = DatasetSettings.of(env)
    record = provide(settings, Path.cwd())
    if settings.source == "path":
        env["CM_GET_DEPENDENT_CACHED_PATH"] = str(Path(settings.location).expanduser())
    kind = "CM_CALIBRATION_DATASET" if settings.calibration else f"CM_{settings.kind.upper()}"
    env[f"{kind}_PATH"] = record.path
    env[f"{kind}_RECORD"] = str(Path.cwd() / DATASET_FILE)
    return {"return": 0}
