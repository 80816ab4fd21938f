"""The runs against what was asked for: the command line, the record of the campaign, the system description."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cm4vllm.results.checks.check import Fault, check
from cm4vllm.results.model import Submission
from cm4vllm.results.records import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.rules import Division, ExecutionMode

__all__: list[str] = []

_DESIGN = "docs/results.md"


@check("CAMPAIGN-DIFFERS", "the command, its record, the runs and the system description are of one campaign",
       source=_DESIGN, remedy="run the whole command again, so that the records are of one campaign")
def one_campaign(submission: Submission) -> Iterator[Fault]:
    campaign = submission.campaign
    if campaign is None:
        return
    for what, found, expected in _facts(submission, campaign):
        if found is not None and str(found).lower() != str(expected).lower():
            yield Fault(f"{what} is {found}, that of {CAMPAIGN_FILE} is {expected}", CAMPAIGN_FILE)


@check("CLOSED-MAPPED", "the closed division of a benchmark takes its own model alone",
       source="inference_policies/inference_rules.adoc, Model", remedy="give --division=open")
def own_model(submission: Submission) -> Iterator[Fault]:
    for run in submission.runs[:1]:
        model, benchmark = run.settings.model.name, run.settings.benchmark
        if submission.division == Division.CLOSED and model != benchmark:
            yield Fault(f"model {model} cannot stand in the closed division", CAMPAIGN_FILE, "division",
                        value=model, expected=benchmark)


def _facts(submission: Submission, campaign: CampaignRecord) -> Iterator[tuple[str, object, object]]:
    """Give what is stated in two places: its name, as found (None where it is not), and as campaign.json has it."""
    asked = _flags(campaign.command)
    yield "the command's --division", asked.get("division"), campaign.division
    yield "the command's --execution_mode", asked.get("execution_mode"), campaign.execution_mode
    yield "the command's --model", asked.get("model"), campaign.benchmark
    for run in submission.runs[:1]:
        yield "the runs' benchmark", run.settings.benchmark, campaign.benchmark
        yield "the runs' round", run.settings.round, campaign.round
        yield "the runs' rehearsal", run.settings.rehearsal, campaign.execution_mode is ExecutionMode.TEST
    for system in submission.systems:
        yield "the system description's division", system.description.get("division"), campaign.division
        yield "the system description's submitter", system.description.get("submitter"), campaign.submitter


def _flags(command: str) -> dict[str, str]:
    try:
        words = shlex.split(command)
    except ValueError:
        return {}
    return {w[2:].partition("=")[0]: w.partition("=")[2] for w in words if w.startswith("--") and "=" in w}
