"""The GPUs of this machine; a machine without a driver has none."""

from pathlib import Path
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.hardware.gpus.gpu import detect_gpus
    from cm4vllm.hardware.machine_facts import gpu_env

    return {"return": 0, "env": gpu_env(detect_gpus())}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from msgspec import to_builtins

    from cm4vllm.common.progress import say, say_facts
    from cm4vllm.hardware.gpus.gpu import RecordingInputs, detect_gpus, record_gpus, silent_gpus
    from cm4vllm.hardware.machine_facts import gpu_env, gpu_lines

    gpus = detect_gpus()
    say_facts("GPU", *gpu_lines(gpus), *silent_gpus())
    i["env"].update(gpu_env(gpus))
    i["state"]["host_gpu_raw_info"] = to_builtins(gpus)
    if recording := RecordingInputs.of(i["env"]).folder:
        record_gpus(Path(recording))
        say(f"GPU: recorded in {recording}")
    return {"return": 0}
