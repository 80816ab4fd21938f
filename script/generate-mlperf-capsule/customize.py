"""Writes the capsule of a job's results, or those of a submission tree."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.progress import say
    from cm4vllm.results.capsule import RUN_RECORDS
    from cm4vllm.submission.capsule.capsules_at_path import capsules_at
    from cm4vllm.submission.capsule.rerun_file import CAPSULE_FILE, write_capsule

    env = i["env"]
    source = Path(env["CM_MLPERF_CAPSULE_SOURCE"]).absolute()
    capsules = capsules_at(source)
    own = len(capsules) == 1 and capsules[0].made_from == RUN_RECORDS
    folder = Path(env.get("CM_MLPERF_CAPSULES_DIR") or (source if own else ".")).absolute()
    for capsule in capsules:
        path = folder / (CAPSULE_FILE if own else f"rerun-{capsule.system}-{capsule.model['name']}.yaml")
        write_capsule(path, capsule)
        runs = sum(len(result.parts) for result in capsule.results)
        say(f"capsule: {path}, {runs} runs, {len(capsule.unknown)} fields unknown")
        for field in capsule.unknown:
            say(f"  not known: {field}")
    env["CM_MLPERF_CAPSULE"] = str(path)
    return {"return": 0}
