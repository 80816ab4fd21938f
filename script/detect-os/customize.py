"""The operating system of this machine."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    if getattr(i["automation"], "engine", "") != "cm4vllm":
        from runpy import run_path

        return dict(run_path(str(Path(__file__).parents[1] / "another_engine.py"))["refusal"](i))
    from cm4vllm.common.progress import say_facts
    from cm4vllm.hardware.host import os_line, public_env

    env, state = public_env()
    say_facts("operating system", os_line())
    i["env"].update(env)
    i["state"].update(state)
    return {"return": 0}
