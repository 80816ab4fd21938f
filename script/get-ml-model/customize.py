"""Provides a model folder and its record."""

from pathlib import Path
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.models import ModelSettings, check
    from cm4vllm.common.settings import read_settings

    check(read_settings(ModelSettings, i["env"]))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.models import ModelSettings, model_env, provide
    from cm4vllm.common.settings import read_settings

    record = provide(read_settings(ModelSettings, i["env"]), Path.cwd())
    i["env"].update(model_env(record, Path.cwd()))
    return {"return": 0}
