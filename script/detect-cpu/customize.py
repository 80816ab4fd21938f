"""The processors of this machine."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.hardware.cpu import detect_cpu
    from cm4vllm.hardware.host import detect_host
    from cm4vllm.hardware.machine_facts import capacity_env, cpu_env, cpu_lines, give_facts

    cpu, host = detect_cpu(), detect_host()
    env = cpu_env(cpu, host) | capacity_env()
    return give_facts(i, "processors", cpu_lines(cpu, host), env, host_device_raw_info={"cpu": cpu, "host": host})
