"""Gives the processors, memory and disks of this machine."""


def preprocess(i):
    from msgspec import to_builtins

    from cm4vllm.hardware.cpu import detect_cpu
    from cm4vllm.hardware.host import detect_host
    from cm4vllm.hardware.machine import cpu_env

    cpu, host = detect_cpu(), detect_host()
    i["env"].update(cpu_env(cpu, host))
    i["state"]["host_device_raw_info"] = {"cpu": to_builtins(cpu), "host": to_builtins(host)}
    return {"return": 0}
