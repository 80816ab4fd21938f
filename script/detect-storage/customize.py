"""The disks of this machine."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.hardware.machine_facts import give_facts, storage_env, storage_lines
    from cm4vllm.hardware.storage import detect_disks, root_bytes

    disks, size = detect_disks(), root_bytes()
    facts = {"disks": disks, "root_bytes": size}
    return give_facts(i, "storage", storage_lines(disks, size), storage_env(disks, size), host_storage_raw_info=facts)
