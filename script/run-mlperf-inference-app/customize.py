"""The entry: hands the settings and a way to run recipes to the campaign, and exports where the results are."""

from typing import Any


def plan(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.amendments import amendments
    from cm4vllm.campaign.entry import plan_job
    from cm4vllm.campaign.settings import CampaignSettings

    changes = amendments(i["input"].get("adr"), i["automation"].adr_targets)
    return {"return": 0, **plan_job(CampaignSettings.of({**i["env"], **changes.settings}), changes)}


def values(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.entry import input_values
    from cm4vllm.campaign.settings import CampaignSettings

    return {"return": 0, "values": input_values(CampaignSettings.of(i["env"]))}


def prepare(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.amendments import amendments
    from cm4vllm.campaign.entry import command_line, typed_env
    from cm4vllm.campaign.execution import recipes_of
    from cm4vllm.campaign.preparation import prepare_job
    from cm4vllm.campaign.settings import CampaignSettings

    changes = amendments(i["input"].get("adr"), i["automation"].adr_targets)
    settings = CampaignSettings.of({**i["env"], **changes.settings})
    recipes = recipes_of(i["automation"].run, changes.rest)
    prepare_job(settings, recipes, command_line(i["input"]), typed_env(i["input"]), changes)
    return {"return": 0}


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.amendments import amendments
    from cm4vllm.campaign.entry import command_line, run_job, typed_env
    from cm4vllm.campaign.execution import recipes_of
    from cm4vllm.campaign.settings import CampaignSettings

    changes = amendments(i["input"].get("adr"), i["automation"].adr_targets)
    settings = CampaignSettings.of({**i["env"], **changes.settings})
    recipes = recipes_of(i["automation"].run, changes.rest)
    i["env"].update(run_job(settings, recipes, command_line(i["input"]), typed_env(i["input"]), changes).env())
    return {"return": 0}
