"""Provides the LoadGen wheel whose compiled-in seeds are those of the round."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.loadgen.wheel import provide
    from cm4vllm.rules import round_terms

    env = i["env"]
    wheel = provide(round_terms(env["CM_MLPERF_ROUND"]), Path.cwd())
    env["CM_MLPERF_LOADGEN_VERSION"] = wheel.version
    env["CM_MLPERF_LOADGEN_PYTHONPATH"] = wheel.pythonpath
    return {"return": 0, "version": wheel.version}
