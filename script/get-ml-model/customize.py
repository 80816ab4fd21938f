"""Provides a model folder and its record."""

from pathlib import Path
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.models import ModelSettings, planned_model

    brings = planned_model(ModelSettings.of(i["env"]))
    return {"return": 0} if brings is None else {"return": 0, "brings": brings}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.assets.models import ModelSettings, model_exports, provide

    record = provide(ModelSettings.of(i["env"]), Path.cwd(), Path(i["artifact"].path))
    i["env"].update(model_exports(record, Path.cwd()).env())
    return {"return": 0}
