"""Gives the memory of this machine."""


def preprocess(i):
    from msgspec import to_builtins

    from cm4vllm.common.progress import say
    from cm4vllm.hardware.machine import memory_env
    from cm4vllm.hardware.memory import detect_memory
    from cm4vllm.hardware.summary import memory_lines

    memory = detect_memory()
    for line in memory_lines(memory):
        say(f"memory: {line}")
    i["env"].update(memory_env(memory))
    i["state"]["host_memory_raw_info"] = to_builtins(memory)
    return {"return": 0}
