"""Takes the official power client and server out of git at the commit of the round."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.power.programs import ProgramInputs, provide_asked

    env = i["env"]
    inputs = ProgramInputs.of(env)
    folder = provide_asked(inputs, Path.cwd() / "power-dev")
    env["CM_MLPERF_POWER_SOURCE"] = env["CM_GET_DEPENDENT_CACHED_PATH"] = str(folder)
    env["CM_MLPERF_POWER_SOURCE_COMMIT"] = inputs.programs.commit
    return {"return": 0, "version": inputs.programs.commit[:12]}
