"""Makes a power session around a command."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.power_client import ClientSettings, require_settings
    from cm4vllm.power.programs import ProgramInputs

    require_settings(ClientSettings.of(i["env"]))
    i["env"].update(ProgramInputs.of(i["env"]).exports)
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.power_client import ClientSettings, make

    i["env"]["CM_MLPERF_POWER_SESSION"] = str(make(ClientSettings.of(i["env"])))
    return {"return": 0}
