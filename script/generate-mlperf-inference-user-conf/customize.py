"""Writes user.conf for one run."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.loadgen.measurement import RunInputs, require_run

    require_run(RunInputs.of(i["env"]))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.loadgen.measurement import RunInputs, write_user_conf

    env = i["env"]
    env["CM_MLPERF_USER_CONF"] = str(write_user_conf(RunInputs.of(env)))
    return {"return": 0}
