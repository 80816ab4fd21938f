"""The processors of this machine."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from msgspec import to_builtins

    from cm4vllm.common.progress import say_facts
    from cm4vllm.hardware.cpu import detect_cpu
    from cm4vllm.hardware.host import detect_disks, detect_host, root_bytes
    from cm4vllm.hardware.machine_facts import capacity_env, cpu_env, cpu_lines
    from cm4vllm.hardware.memory import detect_memory

    cpu, host = detect_cpu(), detect_host()
    say_facts("processors", *cpu_lines(cpu, host))
    i["env"].update(cpu_env(cpu, host) | capacity_env(detect_memory(), detect_disks(), root_bytes()))
    i["state"]["host_device_raw_info"] = to_builtins({"cpu": cpu, "host": host})
    return {"return": 0}
