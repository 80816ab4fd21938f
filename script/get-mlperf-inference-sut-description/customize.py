"""Writes the system description of a submission, and says what it leaves open."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.progress import say
    from cm4vllm.submission.system_records import SystemSettings, write_system

    env = i["env"]
    files = write_system(SystemSettings.of(env))
    if files.not_stated:
        where = f"; {files.template} asks for them, and --system_file gives them" if files.template is not None else ""
        say(f"system description: not stated: {', '.join(files.not_stated)}{where}")
    env["CM_SUT_DESCRIPTION"] = str(files.description)
    env["CM_SUT_NAME"] = files.name
    env["CM_SUT_NOT_STATED"] = ",".join(files.not_stated)
    return {"return": 0}
