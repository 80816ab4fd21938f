"""Chooses the vLLM for what was detected; the recipe install,vllm has it."""

from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.settings import read_settings
    from cm4vllm.serving.vllm_choice import Choice, choose

    return {"return": 0, "env": choose(read_settings(Choice, i["env"]))}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.settings import read_settings
    from cm4vllm.serving.vllm_choice import Choice, choose, say_choice

    choice = read_settings(Choice, i["env"])
    say_choice(choice)
    i["env"].update(choose(choice))
    return {"return": 0}
