"""The runs against what was asked for: the command line, the record of the campaign, the system description."""

import shlex
from collections.abc import Iterator

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.records.assets import IDENTITY
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.results.checks.subjects import Part, recorded, with_submission
from cm4vllm.results.model import Submission
from cm4vllm.rules import ExecutionMode

__all__: list[str] = []

_DESIGN = "docs/results.md"
_MODEL = "inference_policies/inference_rules.adoc, Model"


@check(
    "CAMPAIGN-DIFFERS",
    source=_DESIGN,
    remedy="run the whole command again, so that the records are of one campaign",
    each=whole,
)
def one_campaign(submission: Submission) -> Iterator[Fault]:
    """The command, its record, the runs and the system description are of one campaign."""
    campaign = submission.campaign
    if campaign is None:
        return
    for title, value, expected in _facts(submission, campaign):
        if value is not None and str(value).lower() != str(expected).lower():
            yield Fault(f"{title} is {value}, that of {CAMPAIGN_FILE} is {expected}", CAMPAIGN_FILE)


def _own_models(submission: Submission) -> Iterator[tuple[Part, RunRecord]]:
    """Yield each of our runs with its record, where the division has the rule MODEL in any category."""
    if any(
        submission.division == division and "MODEL" in rules.division_rules(division, category)
        for division in rules.Division
        for category in rules.Category
    ):
        yield from recorded(submission)


@check("CLOSED-MAPPED", source=_MODEL, remedy="give --division=open", each=with_submission(_own_models))
def own_model(submission: Submission, _: Part, run: RunRecord) -> Iterator[Fault]:
    """A division that takes a benchmark's own model alone has no results of another one."""
    model, benchmark = run.settings.model.name, run.settings.benchmark
    if model != benchmark and not run.settings.rehearsal:
        yield Fault(
            f"model {model} cannot stand in the {submission.division} division",
            CAMPAIGN_FILE,
            "division",
            value=model,
            expected=benchmark,
        )


@check(
    "CLOSED-IDENTITY",
    source=_MODEL,
    stage=Stage.SUBMITTED,
    remedy="run the whole command again with --division=closed, which compares them, or give --division=open",
    each=_own_models,
)
def identity(part: Part, run: RunRecord) -> Iterator[Fault]:
    """The files of a closed result's model were compared with MLCommons' published digests, or those of the model that
    it was quantised from.
    """
    model = run.settings.model
    if model.recipe.get(IDENTITY) != run.settings.benchmark:
        name = part.beside(RUN_FILE)
        yield Fault(
            f"{name} does not say that {model.name} is the model of {run.settings.benchmark}",
            name,
            f"settings.model.recipe.{IDENTITY}",
            model.recipe.get(IDENTITY, ""),
            run.settings.benchmark,
        )


@check(
    "CLOSED-LENGTHS",
    source="inference_policies/inference_rules.adoc, Additional inference parameters",
    stage=Stage.SUBMITTED,
    remedy="run it again with --rerun, in the division of the submission",
    each=with_submission(_own_models),
)
def lengths(submission: Submission, part: Part, run: RunRecord) -> Iterator[Fault]:
    """Answers have the least and the most new tokens that the division's table states."""
    terms = run.settings.terms
    asked = rules.terms(
        terms.round, terms.benchmark, terms.scenario, terms.mode, rules.Division.parse(submission.division)
    ).generation
    used = (run.settings.min_tokens, run.settings.max_tokens)
    if used != (asked.min_tokens, asked.max_tokens):
        yield Fault(
            "answers were asked for with other lengths",
            part.beside(RUN_FILE),
            "settings.min_tokens, settings.max_tokens",
            f"{used[0]} to {used[1]}",
            f"{asked.min_tokens} to {asked.max_tokens}",
        )


def _facts(submission: Submission, campaign: CampaignRecord) -> Iterator[tuple[str, object, object]]:
    """Yield the facts that are stated in two places: name, value found (None for none), value in campaign.json."""
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
