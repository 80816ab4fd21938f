"""The GPUs of this machine; a machine without a driver has none."""

from pathlib import Path
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.hardware.gpus.gpu import detect_gpus
    from cm4vllm.hardware.machine_facts import gpu_env

    return {"return": 0, "env": gpu_env(detect_gpus())}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.progress import say
    from cm4vllm.hardware.gpus.gpu import detect_gpus, record_gpus, silent_gpus
    from cm4vllm.hardware.machine_facts import give_facts, gpu_env, gpu_lines

    gpus = detect_gpus()
    given = give_facts(i, "GPU", [*gpu_lines(gpus), *silent_gpus()], gpu_env(gpus), host_gpu_raw_info=gpus)
    if recording := i["env"].get("CM_GPU_RECORDING"):
        record_gpus(Path(recording))
        say(f"GPU: recorded in {recording}")
    return given
