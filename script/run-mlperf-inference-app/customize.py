"""The entry: hands the settings and a way to run recipes to the campaign, and exports where the results are."""

from collections.abc import Mapping
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.amendments import amendments
    from cm4vllm.campaign.entry import plan_job

    return {"return": 0, **plan_job(i["env"], amendments(i["input"].get("adr"), i["automation"].reach))}


def values(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.entry import input_values

    return {"return": 0, "values": input_values(i["env"])}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.amendments import amendments
    from cm4vllm.campaign.entry import command_line, run_job
    from cm4vllm.campaign.steps import names_of
    from cm4vllm.common.errors import CmError

    given, changes = i["env"], amendments(i["input"].get("adr"), i["automation"].reach)

    def recipes(tags: str, env: Mapping[str, str]) -> dict[str, str]:
        asked = {"tags": tags, "names": names_of(tags), "env": {**given, **env}, "adr": changes.rest}
        done = i["automation"].run({**asked, "quiet": True})
        if done["return"]:
            raise CmError.again(done["return"], done["error"])
        return {key: value for key, value in done["new_env"].items() if isinstance(value, str)}

    given.update(run_job(given, recipes, command_line(i["input"]), changes))
    return {"return": 0}
