"""Runs the official power server until Ctrl-C."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.power.programs import ProgramInputs
    from cm4vllm.power.server_run import ServerSettings, require_settings

    require_settings(ServerSettings.of(i["env"]))
    i["env"].update(ProgramInputs.of(i["env"]).exports)
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.power.server_run import ServerSettings, serve

    serve(ServerSettings.of(i["env"]))
    return {"return": 0}
