"""Takes the official power client and server out of git at the commit of the round."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.files import given_path
    from cm4vllm.power.programs import provide
    from cm4vllm.rules import default_round, round_terms

    env = i["env"]
    programs = round_terms(env.get("CM_MLPERF_ROUND") or default_round()).power
    given = env.get("CM_MLPERF_POWER_SOURCE_GIT")
    folder = provide(programs, given_path(given) if given else None, Path.cwd() / "power-dev")
    env["CM_MLPERF_POWER_SOURCE"] = env["CM_GET_DEPENDENT_CACHED_PATH"] = str(folder)
    env["CM_MLPERF_POWER_SOURCE_COMMIT"] = programs.commit
    return {"return": 0, "version": programs.commit[:12]}
