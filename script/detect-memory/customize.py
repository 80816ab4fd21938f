"""The memory of this machine."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.hardware.machine_facts import give_facts, memory_env, memory_lines
    from cm4vllm.hardware.memory import detect_memory

    memory = detect_memory()
    return give_facts(i, "memory", memory_lines(memory), memory_env(memory), host_memory_raw_info=memory)
