"""Provides a model folder and its record."""

from pathlib import Path
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.models import ModelSettings, check

    check(ModelSettings.of(i["env"]))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.models import ModelSettings, model_env, provide

    record = provide(ModelSettings.of(i["env"]), Path.cwd())
    i["env"].update(model_env(record, Path.cwd()))
    return {"return": 0}
