"""Takes the official checker's sources from the folder that the user names; they are fetched otherwise."""

from pathlib import Path
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.submission.checker.source import SourceInputs

    _ = SourceInputs.of(i["env"]).given
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    if getattr(i["automation"], "engine", "") != "cm4vllm":
        from runpy import run_path

        return dict(run_path(str(Path(__file__).parents[1] / "another_engine.py"))["refusal"](i))
    from cm4vllm.submission.checker.source import SourceInputs

    if source := SourceInputs.of(i["env"]).given:
        i["env"].update(source.env())
    return {"return": 0}
