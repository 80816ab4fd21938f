"""Searches for the settings of a vLLM server with which it does most."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.search.settings_job import search_server_settings

    i["env"].update(search_server_settings(i["env"]))
    return {"return": 0}
