"""The disks of this machine."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from msgspec import to_builtins

    from cm4vllm.common.progress import say_facts
    from cm4vllm.hardware.host import detect_disks, root_bytes
    from cm4vllm.hardware.machine_facts import storage_env, storage_lines

    disks, size = detect_disks(), root_bytes()
    say_facts("storage", *storage_lines(disks, size))
    i["env"].update(storage_env(disks, size))
    i["state"]["host_storage_raw_info"] = to_builtins({"disks": disks, "root_bytes": size})
    return {"return": 0}
