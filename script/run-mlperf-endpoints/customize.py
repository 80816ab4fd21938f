"""The entry of MLPerf Endpoints: hands the settings and a way to run recipes to the campaign."""

from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.endpoints.job import plan_job
    from cm4vllm.campaign.endpoints.settings import EndpointsSettings

    return {"return": 0, **plan_job(EndpointsSettings.of(i["env"]))}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.endpoints.job import run_job
    from cm4vllm.campaign.endpoints.settings import EndpointsSettings
    from cm4vllm.campaign.entry import command_line, typed_env
    from cm4vllm.campaign.execution import recipes_of

    settings, recipes = EndpointsSettings.of(i["env"]), recipes_of(i["automation"].run)
    line, quiet = command_line(i["input"]), bool(i["input"].get("quiet"))
    i["env"].update(run_job(settings, recipes, line, typed_env(i["input"]), quiet=quiet).env())
    return {"return": 0}
