"""The memory of this machine."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from msgspec import to_builtins

    from cm4vllm.common.progress import say_facts
    from cm4vllm.hardware.machine_facts import memory_env, memory_lines
    from cm4vllm.hardware.memory import detect_memory

    memory = detect_memory()
    say_facts("memory", *memory_lines(memory))
    i["env"].update(memory_env(memory))
    i["state"]["host_memory_raw_info"] = to_builtins(memory)
    return {"return": 0}
