"""Runs the command of a capsule again, and compares the new results with the capsule's."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    import os

    import msgspec
    from cmind import cli

    from cm4vllm.common.command_lines import stored_command
    from cm4vllm.common.errors import CmError, UsageError
    from cm4vllm.common.progress import say
    from cm4vllm.submission.capsule import CAPSULE_FILE, write_capsule
    from cm4vllm.submission.capsule_of_results import capsule_of_results
    from cm4vllm.submission.comparison import ACCURACY_TOLERANCE, compare, environment, judge, report
    from cm4vllm.submission.replay import capsule_at, replay_words, this_place, with_scenarios

    env = i["env"]
    if not env.get("CM_MLPERF_CAPSULE"):
        raise UsageError("no capsule was given", remedy="give its file with --capsule")
    capsule = capsule_at(Path(env["CM_MLPERF_CAPSULE"]).absolute(), env.get("CM_MLPERF_CAPSULE_OF", ""))
    say("before the run, this machine and program against the capsule's:")
    report(environment(capsule, this_place(capsule)))
    given = {
        flag: str(value)
        for flag, value in i["input"].items()
        if flag in ("api_server", "dataset_path", "extra_args", "inference_src", "scenario", "submitter")
    }
    folder = str(Path(env.get("CM_MLPERF_REPLAY_DIR") or "mlperf-replay").absolute())
    words = replay_words(capsule, {**given, "output_dir": folder}, os.environ)
    say(f"running: {stored_command(['cm', 'run', 'script', *words])}")
    typed = cli.parse(["run", "script", *words])["cm_input"]
    done = i["automation"].run({**typed, "quiet": True, "out": ""})
    if done["return"]:
        raise CmError.again(done["return"], done["error"])
    out = Path(done["new_env"]["CM_MLPERF_RESULTS_DIR"])
    again = capsule_of_results(out)
    write_capsule(out / CAPSULE_FILE, again)
    if given.get("scenario"):
        capsule = with_scenarios(capsule, {run.scenario for run in again.runs})
    rows = compare(capsule, again, float(env.get("CM_MLPERF_VERIFY_ACCURACY") or ACCURACY_TOLERANCE))
    report(rows)
    i["state"]["compared"] = msgspec.to_builtins(rows)
    env.update(CM_MLPERF_RESULTS_DIR=str(out), CM_MLPERF_CAPSULE=str(out / CAPSULE_FILE))
    judge(rows)
    return {"return": 0}
