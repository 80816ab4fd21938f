"""Checks that rules can be applied: there are results, their round is known, and the rules have their benchmarks."""

from collections import Counter
from collections.abc import Iterator

from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.checks.subjects import is_strict, measured, results
from cm4vllm.results.model import Result, Submission
from cm4vllm.results.submission_trees import round_of
from cm4vllm.rules import round_names

__all__: list[str] = []

_CONSTANTS = "tools/submission/submission_checker/constants.py"


@check(
    "RESULTS-NONE",
    source=f"{_CONSTANTS}, the paths of each round",
    remedy="put each result into results/<system>/<benchmark>/<scenario>",
    stage=Stage.TREE,
    each=whole,
)
def some(submission: Submission) -> Iterator[Fault]:
    """A submission has results."""
    if not submission.results:
        yield Fault("there is no result", f"{_home(submission)}/results", value="nothing to check")


@check(
    "ROUND-UNKNOWN",
    source=f"{_CONSTANTS}, seeds",
    remedy="name the round with --results_round of check,mlperf,results; the seeds are then compared with it",
    stage=Stage.TREE,
    each=whole,
)
def known_round(submission: Submission) -> Iterator[Fault]:
    """The round of a submission is known: its logs have the seeds of one."""
    if submission.round or not submission.results:
        return
    logs = [part for _, part in measured(submission)]
    yield Fault(
        f"no rule is applied to {len(submission.results)} results: "
        + ("no log has the seeds of a round" if logs else "no performance log can be read"),
        logs[0].log if logs else f"{_home(submission)}/results",
        "effective_qsl_rng_seed, effective_sample_index_rng_seed, effective_schedule_rng_seed" if logs else "",
        logs[0].seeds if logs else "",
        f"those of a round from {round_names()[0]} to {round_names()[-1]}",
    )


@check(
    "ROUND-MIXED",
    source=f"{_CONSTANTS}, seeds",
    remedy="publish the results of each round in a tree of its own",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=whole,
)
def one_round(submission: Submission) -> Iterator[Fault]:
    """All logs of a submission, and all submissions of a tree, are of one round."""
    rounds = Counter(name for _, part in measured(submission) if (name := round_of(part)))
    if others := sorted(name for name in rounds if name != submission.round):
        yield Fault(
            f"logs have the seeds of other rounds than {submission.round}, whose rules are applied to all",
            f"{_home(submission)}/results",
            "",
            ", ".join(f"{rounds[name]} of {name}" for name in others),
            submission.round,
        )


@check(
    "RULES-UNKNOWN",
    source=f"{_CONSTANTS}, models and model_mapping",
    remedy="name the folder as the benchmark is called, or map it in model_mapping.json (open division)",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=results,
)
def covered(result: Result) -> Iterator[Fault]:
    """The rules of a result's benchmark and scenario are known, and are applied."""
    if result.round and result.uncovered:  # without a round: ROUND-UNKNOWN
        yield Fault(
            f"no rule of a benchmark is applied: {result.uncovered}",
            result.folder,
            severity=Severity.ERROR if is_strict(result) else None,
        )


def _home(submission: Submission) -> str:
    return f"{submission.division}/{submission.submitter}"
