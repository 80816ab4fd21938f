"""Gives the NVIDIA GPUs of this machine; a machine without the driver has none."""


def preprocess(i):
    from msgspec import to_builtins

    from cm4vllm.hardware.gpu import detect_gpus
    from cm4vllm.hardware.machine import gpu_env

    gpus = detect_gpus()
    i["env"].update(gpu_env(gpus))
    i["state"]["host_gpu_raw_info"] = to_builtins(gpus)
    return {"return": 0}
