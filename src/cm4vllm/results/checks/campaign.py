"""The runs against what was asked for, and before a submission tree is made of them."""

import shlex
from collections.abc import Iterator

from cm4vllm import DUMMY_NOTICE, REHEARSAL_NOTICE, SIMULATED_NOTICE, rules
from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.records.accuracy import ACCURACY_FILE, ACCURACY_TEXT
from cm4vllm.records.assets import IDENTITY
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, SUMMARY_LOG
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.results.checks.subjects import Part, recorded_parts, systems, with_submission
from cm4vllm.results.model import Accuracy, Submission, System
from cm4vllm.rules import ExecutionMode, Mode

_DESIGN = "docs/results.md"
_MODEL = "inference_policies/inference_rules.adoc, Model"
_LAYOUT = "tools/submission/submission_checker/constants.py, the paths of each round"
_MODELS = "docs/models.md"
_AGAIN = "run it again with --rerun"
_SCORE = "score the run again: --tags=process,mlperf,accuracy"


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
    yield from (
        Fault(f"{title} is {value}, that of {CAMPAIGN_FILE} is {expected}", CAMPAIGN_FILE)
        for title, value, expected in _facts(submission, campaign)
        if value is not None and str(value).lower() != str(expected).lower()
    )


def _own_models(submission: Submission) -> Iterator[tuple[Part, RunRecord]]:
    """Yield each of our runs with its record, where the division has the rule MODEL in any category."""
    if any(
        submission.division == division and "MODEL" in rules.division_rules(division, category)
        for division in rules.Division
        for category in rules.Category
    ):
        yield from recorded_parts(submission)


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


@check("RUN-MISSING", source=_LAYOUT, remedy=_AGAIN, stage=Stage.SUBMITTED, each=whole)
def both_runs(submission: Submission) -> Iterator[Fault]:
    """Each scenario has a performance run and an accuracy run."""
    for result in submission.results:
        for mode, part in ((Mode.PERFORMANCE, result.performance), (Mode.ACCURACY, result.accuracy)):
            if part is None:
                name = f"{result.folder}/{mode}/{RUN_FILE}"
                yield Fault(f"no submission without {name}", name)
    if not submission.results:
        yield Fault(f"no recorded runs in {submission.root}", "", remedy="run the benchmark first")


@check(
    "WEIGHTS-DUMMY",
    source=_MODELS,
    remedy="measure the model itself; random weights (_dummy) are for rehearsals of its performance",
    stage=Stage.SUBMITTED,
    each=with_submission(recorded_parts),
)
def real_weights(submission: Submission, part: Part, run: RunRecord) -> Iterator[Fault]:
    """A submission is of a model with weights, not of random numbers."""
    if run.settings.model.is_dummy and run.settings.server.simulated is None:
        yield Fault(
            f"no submission of {run.settings.model.name}: {DUMMY_NOTICE}",
            part.beside(RUN_FILE),
            "settings.model.source",
            run.settings.model.source,
            "the source of real weights",
        )


@check(
    "SERVER-SIMULATED",
    source="docs/rehearse.md",
    remedy="measure the system itself, without --rehearse",
    stage=Stage.SUBMITTED,
    each=with_submission(recorded_parts),
)
def measured_system(submission: Submission, part: Part, run: RunRecord) -> Iterator[Fault]:
    """A submission is of a system that was measured, not of a simulated one."""
    if (simulation := run.settings.server.simulated) is not None:
        yield Fault(
            f"no submission of {simulation.title}: {SIMULATED_NOTICE}",
            part.beside(RUN_FILE),
            "settings.server.simulated.profile",
            simulation.profile,
            "no simulated server",
        )


@check("SCORES-MISSING", source=_LAYOUT, remedy=_SCORE, stage=Stage.SUBMITTED, each=with_submission(recorded_parts))
def scored(submission: Submission, part: Part, run: RunRecord) -> Iterator[Fault]:
    """Each accuracy run is scored, over all of its samples."""
    if not isinstance(part, Accuracy) or run.settings.server.simulated is not None:
        return
    name, text = part.beside(ACCURACY_FILE), part.beside(ACCURACY_TEXT)
    if part.record is None:
        yield Fault(f"no submission without {name}", name)
    elif not run.settings.rehearsal and part.record.samples != part.record.samples_expected:
        yield Fault(
            f"the accuracy run in {name} is not whole",
            name,
            "samples",
            part.record.samples,
            part.record.samples_expected,
            remedy=_AGAIN,
        )
    if not (part.folder / ACCURACY_TEXT).is_file():
        yield Fault(f"{text} is missing", text)


@check("LOG-MISSING", source=_LAYOUT, remedy=_AGAIN, stage=Stage.SUBMITTED, each=recorded_parts)
def logs_present(part: Part, run: RunRecord) -> Iterator[Fault]:
    """Each run has all its logs, and its record their digests."""
    return (
        Fault(f"{part.beside(name)} is missing", part.beside(name))
        for name in (DETAIL_LOG, SUMMARY_LOG, *((ACCURACY_LOG,) if isinstance(part, Accuracy) else ()))
        if name not in run.files or not (part.folder / name).is_file()
    )


@check(
    "SYSTEM-DIFFERS",
    source="docs/machine.md",
    remedy="describe the system again: --tags=get,sut,description",
    stage=Stage.SUBMITTED,
    each=with_submission(systems),
)
def described(submission: Submission, system: System) -> Iterator[Fault]:
    """The system's description is of the runs' server and of the submission that is asked for."""
    yield from (
        Fault(f"the system description has {key} {said!r}", system.file, key, said, wanted)
        for key, wanted in (("submitter", submission.submitter), ("division", submission.division))
        if wanted and (said := system.description.get(key)) != wanted
    )
    for run in submission.runs[:1]:
        server, framework = run.settings.server, str(system.description.get("framework", ""))
        if server.version not in framework:
            yield Fault(
                f"{system.file} describes a system with {framework}",
                system.file,
                "framework",
                framework,
                f"{server.named}, which served the runs",
                remedy="measure again with --rerun, or correct `framework` in the system file",
            )
        marked = [key for key in ("hw_notes", "sw_notes") if REHEARSAL_NOTICE in str(system.description.get(key, ""))]
        if marked and not run.settings.rehearsal:
            yield Fault(
                f"{system.file} is that of a rehearsal, the runs are not",
                system.file,
                marked[0],
                REHEARSAL_NOTICE,
                "nothing of a rehearsal",
            )


@check(
    "MODEL-FOLDER",
    source="docs/results.md",
    remedy="measure again: --rerun",
    stage=Stage.SUBMITTED,
    each=recorded_parts,
)
def of_their_model(part: Part, run: RunRecord) -> Iterator[Fault]:
    """The runs below a model's folder are those of that model."""
    folder = part.folder.parents[1].name
    if run.settings.model.name != folder:
        yield Fault(
            f"the runs of {folder} are those of {run.settings.model.name}",
            part.beside(RUN_FILE),
            "settings.model.name",
            run.settings.model.name,
            folder,
        )
