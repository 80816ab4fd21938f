"""Makes a power session around a command."""

from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.power_client import ClientSettings, require_settings
    from cm4vllm.common.settings import read_settings

    require_settings(read_settings(ClientSettings, i["env"]))
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.power_client import ClientSettings, make
    from cm4vllm.common.settings import read_settings

    i["env"]["CM_MLPERF_POWER_SESSION"] = str(make(read_settings(ClientSettings, i["env"])))
    return {"return": 0}
