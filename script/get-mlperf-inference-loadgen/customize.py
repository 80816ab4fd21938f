"""Provides the LoadGen wheel whose compiled-in seeds are those of the round."""

from pathlib import Path
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.loadgen.wheel import LoadGenSettings, usable_wheel

    usable_wheel(LoadGenSettings.of(i["env"]))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.loadgen.wheel import LoadGenSettings, provide

    env = i["env"]
    wheel = provide(LoadGenSettings.of(env), Path.cwd())
    env["CM_MLPERF_LOADGEN_VERSION"] = wheel.version
    env["CM_MLPERF_LOADGEN_PYTHONPATH"] = wheel.pythonpath
    return {"return": 0, "version": wheel.version}
