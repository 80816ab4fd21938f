"""Takes the official checker's sources from the folder that the user names; they are fetched otherwise."""

from pathlib import Path
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.submission.checker.source import open_source

    if given := i["env"].get("CM_MLPERF_INFERENCE_SOURCE_DIR"):
        open_source(Path(given).expanduser().absolute())
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    if getattr(i["automation"], "engine", "") != "cm4vllm":
        from runpy import run_path

        return dict(run_path(str(Path(__file__).parents[1] / "another_engine.py"))["refusal"](i))
    from cm4vllm.submission.checker.source import open_source

    env = i["env"]
    if given := env.get("CM_MLPERF_INFERENCE_SOURCE_DIR"):
        source = open_source(Path(given).expanduser().absolute())
        env["CM_MLPERF_INFERENCE_SOURCE"] = str(source.path)
        env["CM_MLPERF_INFERENCE_SOURCE_COMMIT"] = source.commit
    return {"return": 0}
