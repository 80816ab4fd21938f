"""Gives the operating system of this machine."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.progress import say_facts
    from cm4vllm.hardware.os_release import os_env, os_line

    detected = os_env()
    say_facts("operating system", os_line())
    i["env"].update({key: value for key, value in detected.items() if value})
    i["state"]["os_uname_machine"] = detected["CM_HOST_OS_MACHINE"]
    return {"return": 0}
