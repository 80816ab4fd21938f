"""The path of PTDaemon, or of the simulated one."""

from pathlib import Path
from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.power.ptd import PtdInputs, ptd_path

    path = ptd_path(PtdInputs.of(i["env"]), Path.cwd())
    i["env"]["CM_MLPERF_PTD_PATH"] = i["env"]["CM_GET_DEPENDENT_CACHED_PATH"] = str(path)
    return {"return": 0}
