"""Runs the command of a capsule again, and compares the new results with the capsule's."""

from pathlib import Path
from typing import Any

MAIN_JOB = str(Path(__file__).resolve().parents[1] / "run-mlperf-inference-app")


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.replay import replayed_command
    from cm4vllm.engine.format.meta import load_script
    from cm4vllm.engine.run.flags import parse_command
    from cm4vllm.submission.capsule.replay import ReplayInputs

    described = load_script(MAIN_JOB, "cm4vllm").input_description
    _, words = replayed_command(ReplayInputs.of(i["env"]), i["input"], described, asks=False)
    _, typed, keys = parse_command(MAIN_JOB, words)
    return {"return": 0, "steps": [{"name": "job", "tags": typed["tags"], "env": keys}]}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from msgspec import to_builtins

    from cm4vllm.campaign.replay import replay
    from cm4vllm.engine.format.meta import load_script
    from cm4vllm.engine.run.flags import parse_command
    from cm4vllm.results.comparing.verification import refuse_differences
    from cm4vllm.submission.capsule.replay import ReplayInputs

    def run(words: list[str]) -> dict[str, Any]:
        return dict(i["automation"].run({**parse_command(MAIN_JOB, words)[1], "quiet": True, "out": ""}))

    described = load_script(MAIN_JOB, "cm4vllm").input_description
    rows, out = replay(ReplayInputs.of(i["env"]), i["input"], described, run)
    i["state"]["compared"] = to_builtins(rows)
    i["env"].update(CM_MLPERF_RESULTS_DIR=str(out), CM_MLPERF_CAPSULE=str(out / "rerun.yaml"))
    refuse_differences(rows)
    return {"return": 0}
