"""Makes a power session around a command."""

from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.settings import read_settings
    from cm4vllm.power.client_run import ClientSettings, require_settings

    require_settings(read_settings(ClientSettings, i["env"]))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.common.settings import read_settings
    from cm4vllm.power.client_run import ClientSettings, make

    i["env"]["CM_MLPERF_POWER_SESSION"] = str(make(read_settings(ClientSettings, i["env"])))
    return {"return": 0}
