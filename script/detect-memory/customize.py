"""Gives the memory of this machine."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from msgspec import to_builtins

    from cm4vllm.common.progress import say_facts
    from cm4vllm.hardware.machine import memory_env
    from cm4vllm.hardware.memory import detect_memory
    from cm4vllm.hardware.summary import memory_lines

    memory = detect_memory()
    say_facts("memory", *memory_lines(memory))
    i["env"].update(memory_env(memory))
    i["state"]["host_memory_raw_info"] = to_builtins(memory)
    return {"return": 0}
