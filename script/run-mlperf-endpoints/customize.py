"""The entry of MLPerf Endpoints: hands the settings and a way to run recipes to the campaign."""

from collections.abc import Mapping
from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.endpoints.job import plan_job

    return {"return": 0, **plan_job(i["env"])}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.endpoints.job import run_job
    from cm4vllm.campaign.entry import command_line
    from cm4vllm.common.errors import CmError

    given = i["env"]

    def recipes(tags: str, env: Mapping[str, str]) -> dict[str, str]:
        done = i["automation"].run({"tags": tags, "env": {**given, **env}, "quiet": True})
        if done["return"]:
            raise CmError.again(done["return"], done["error"])
        return {key: value for key, value in done["new_env"].items() if isinstance(value, str)}

    given.update(run_job(given, recipes, command_line(i["input"])))
    return {"return": 0}
