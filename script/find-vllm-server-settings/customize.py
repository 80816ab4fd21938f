"""Searches for the settings of a vLLM server with which it does most."""

from typing import Any


def before_deps(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.links import completed_link

    i["env"].update(
        completed_link(
            "find,mlperf,inference,server-settings", i["env"], i["input"].get("adr"), i["automation"].adr_targets
        )
    )
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.search.settings_job import SettingsJob, search_server_settings

    i["env"].update(search_server_settings(SettingsJob.of(i["env"])).env())
    return {"return": 0}
