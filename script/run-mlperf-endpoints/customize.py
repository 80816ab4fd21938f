"""The entry of MLPerf Endpoints: hands the settings and a way to run recipes to the campaign."""

from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.endpoints.job import plan_job

    return {"return": 0, **plan_job(i["env"])}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.endpoints.job import run_job
    from cm4vllm.campaign.entry import command_line
    from cm4vllm.campaign.execution import recipes_of

    env = i["env"]
    env.update(run_job(env, recipes_of(i["automation"].run, env), command_line(i["input"])))
    return {"return": 0}
