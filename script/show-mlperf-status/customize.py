"""Prints the ledger of the jobs in a results folder."""

from typing import Any


def preprocess(i: dict[str, Any]) -> dict[str, Any]:
    from cm4vllm.campaign.live.job_status import StatusSettings, report_status

    i["state"].update(report_status(StatusSettings.of(i["env"])))
    return {"return": 0}
