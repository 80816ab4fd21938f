"""Finds how a model is best served on a machine, before anything is loaded."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.serving.fit.advice import AdviceSettings, advice

    i["env"].update(advice(AdviceSettings.of(i["env"])).env())
    return {"return": 0}
