"""The entry: hands the settings and a way to run recipes to the campaign, and exports where the results are."""

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
    from cm4vllm.campaign.execution import recipes_of

    env, changes = i["env"], amendments(i["input"].get("adr"), i["automation"].reach)
    recipes = recipes_of(i["automation"].run, env, changes.rest)
    env.update(run_job(env, recipes, command_line(i["input"]), changes))
    return {"return": 0}
