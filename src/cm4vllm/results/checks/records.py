"""Our own records against each other, and scores against their log, their client's count and their targets."""

import math
from collections.abc import Callable, Iterator

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.files import sha256_of
from cm4vllm.records.accuracy import ACCURACY_FILE, AccuracyRecord
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.records.server import counting
from cm4vllm.results.checks.subjects import Part, recorded_parts, with_submission
from cm4vllm.results.log_folders import terms_of
from cm4vllm.results.model import Accuracy, Submission
from cm4vllm.rules import Division

_DESIGN = "docs/results.md"
_AGAIN = "remove the run's folder and run it again"
_TOGETHER = "run them again with --rerun=yes, or each into an --output_dir of its own"

_DATASET = "dataset"
#: The facts that all runs of a submission share.
_SUBJECTS: dict[str, Callable[[RunRecord], object]] = {
    "round": lambda run: run.settings.round,
    "benchmark": lambda run: run.settings.benchmark,
    "model": lambda run: (run.settings.model.name, run.settings.model.sha256),
    _DATASET: lambda run: (run.settings.dataset.name, run.settings.dataset.sha256),
    "server software": lambda run: run.settings.server.named,
    "way of counting tokens": lambda run: counting(run.settings.server),
    "server packages": lambda run: run.settings.server.packages,
    "LoadGen version": lambda run: run.loadgen_version,
}
#: The difference allowed between the scored tokens per sample and the received ones; a wrong width doubles them.
WIDTH_TOLERANCE = 0.05


@check("RUNS-DIFFER", source=_DESIGN, remedy=_TOGETHER, each=whole)
def same_subject(submission: Submission) -> Iterator[Fault]:
    """All runs of a submission are of one round, benchmark, model, dataset and setup."""
    pairs = list(recorded_parts(submission))
    for subject, value in _SUBJECTS.items():
        for part, run in pairs[1:]:
            # Performance runs may have a dataset of their own.
            first, other = next(
                pair
                for pair in pairs
                if subject != _DATASET or pair[1].settings.terms.samples == run.settings.terms.samples
            )
            if value(run) != value(other):
                yield Fault(
                    f"the runs do not belong together: they differ in their {subject}",
                    part.beside(RUN_FILE),
                    value=value(run),
                    expected=f"{value(other)}, as in {first.beside(RUN_FILE)}",
                )
                break


@check("REHEARSAL-MIXED", source=_DESIGN, remedy="run each into an --output_dir of its own", each=whole)
def one_style(submission: Submission) -> Iterator[Fault]:
    """A page or a tree is either that of a rehearsal or that of results."""
    pairs = list(recorded_parts(submission))
    yield from (
        Fault(
            "the runs do not belong together: this mixes rehearsals with full runs",
            part.beside(RUN_FILE),
            "settings.rehearsal",
            run.settings.rehearsal,
            pairs[0][1].settings.rehearsal,
        )
        for part, run in pairs[1:]
        if run.settings.rehearsal != pairs[0][1].settings.rehearsal
    )


@check("REHEARSAL-NOTICE", source=_DESIGN, remedy=_AGAIN, each=recorded_parts)
def honest_notices(part: Part, run: RunRecord) -> Iterator[Fault]:
    """A rehearsal and a run with stand-in weights say so in each record, and nothing else does."""
    expected = run.settings.notice
    if run.notice != expected:
        yield Fault(
            f"{part.beside(RUN_FILE)} does not say truly whether it is a rehearsal and whose weights it has: "
            "it contradicts itself",
            part.beside(RUN_FILE),
            "notice",
            repr(run.notice),
            repr(expected),
        )
    if isinstance(part, Accuracy) and part.record and part.record.notice != expected:
        name = part.beside(ACCURACY_FILE)
        yield Fault(
            f"{name} does not say truly whether it is a rehearsal and whose weights it has",
            name,
            "notice",
            repr(part.record.notice),
            repr(expected),
            remedy="score the run again: --tags=process,mlperf,accuracy",
        )


@check("RECORD-PLACE", source=_DESIGN, remedy=_AGAIN, each=recorded_parts)
def in_place(part: Part, run: RunRecord) -> Iterator[Fault]:
    """A run's record lies in the folder of its scenario and mode."""
    place = part.folder.parent.name, part.folder.name
    if (run.settings.scenario, run.settings.mode) != place:
        yield Fault(
            f"{part.beside(RUN_FILE)} is the record of another run: it is the record of a {run.settings.scenario} "
            f"{run.settings.mode} run, in the place of a {place[0]} {place[1]} run",
            part.beside(RUN_FILE),
            "settings",
        )


@check("RECORD-TERMS", source="cm4vllm.rules", remedy=_AGAIN, each=recorded_parts)
def known_terms(part: Part, run: RunRecord) -> Iterator[Fault]:
    """The rules know the round, the benchmark and the scenario that a record names."""
    terms = run.settings.terms
    if terms_of(terms.round, terms.benchmark, terms.scenario, terms.mode) is None:
        yield Fault(
            f"the rules have no {terms.benchmark}, {terms.scenario}, in round {terms.round}",
            part.beside(RUN_FILE),
            "settings.terms",
        )


@check("LOADGEN-NAME", source="loadgen/mlperf.conf", remedy=_AGAIN, each=recorded_parts)
def loadgen_name(part: Part, run: RunRecord) -> Iterator[Fault]:
    """LoadGen measures a benchmark under the name that has its limits."""
    terms = run.settings.terms
    expected = terms_of(terms.round, terms.benchmark, terms.scenario, terms.mode)
    if expected and terms.loadgen_name != expected.loadgen_name:
        yield Fault(
            f"a run of {terms.benchmark} was made under LoadGen's name {terms.loadgen_name!r}",
            part.beside(RUN_FILE),
            "settings.terms.loadgen_name",
            terms.loadgen_name,
            expected.loadgen_name,
        )


@check("LOG-CHANGED", source=_DESIGN, remedy=_AGAIN, each=recorded_parts)
def logs_unchanged(part: Part, run: RunRecord) -> Iterator[Fault]:
    """A log is the one that the run beside it wrote: its SHA-256 is that in run.json."""
    for name, digest in run.files.items():
        path = part.folder / name
        if path.is_file() and (own := sha256_of(path)) != digest:
            yield Fault(
                f"{part.beside(name)} is not the log of the run beside it", part.beside(name), "SHA-256", own, digest
            )


@check(
    "ANSWERS-IN-PIECES",
    source=_DESIGN,
    remedy="run it again with --rerun",
    severity=Severity.NOTE,
    each=with_submission(recorded_parts),
)
def one_piece(submission: Submission, part: Part, run: RunRecord) -> Iterator[Fault]:
    """The answers of an accuracy run come of one run of LoadGen; of several, where it was stopped and went on, only in
    the open division.
    """
    if run.pieces:
        shares = " + ".join(f"{piece.answers:,}" for piece in run.pieces)
        yield Fault(
            f"the answers of the {run.settings.title} run came in {len(run.pieces)} pieces: {shares}",
            part.beside(RUN_FILE),
            "pieces",
            len(run.pieces),
            1,
            severity=Severity.NOTE if submission.division == Division.OPEN else Severity.ERROR,
        )


def _scored_runs(submission: Submission) -> Iterator[tuple[Accuracy, RunRecord, AccuracyRecord]]:
    return (
        (part, part.run, part.record)
        for result in submission.results
        if (part := result.accuracy) and part.run and part.record
    )


@check(
    "SCORES-LOG",
    source="docs/results.md",
    remedy="score the run again: --tags=process,mlperf,accuracy",
    each=_scored_runs,
)
def scores_of_this_log(part: Accuracy, run: RunRecord, record: AccuracyRecord) -> Iterator[Fault]:
    """Scores are those of the log beside them."""
    log = run.files.get(ACCURACY_LOG)
    if log is not None and log != record.log_sha256:
        yield Fault(
            f"the scores in {part.beside(ACCURACY_FILE)} are those of another log",
            part.beside(ACCURACY_FILE),
            "log_sha256",
            record.log_sha256,
            log,
        )


@check(
    "TOKEN-WIDTH",
    source="evaluate-accuracy.py of the benchmark, --dtype",
    remedy="remove the run's folder and run it again",
    each=_scored_runs,
)
def token_width(part: Accuracy, run: RunRecord, record: AccuracyRecord) -> Iterator[Fault]:
    """Tokens are scored with the width that they were written with: a 64-bit token read as two 32-bit ones doubles the
    tokens of a sample.
    """
    if not record.samples or not run.client.completed:
        return
    scored, received = record.tokens / record.samples, run.client.completion_tokens / run.client.completed
    if not math.isclose(scored, received, rel_tol=WIDTH_TOLERANCE):
        yield Fault(
            f"the scores in {part.beside(ACCURACY_FILE)} count {scored:,.1f} tokens a sample, the client "
            f"received {received:,.1f}",
            part.beside(ACCURACY_FILE),
            "tokens",
            f"{scored:,.1f} a sample",
            f"{received:,.1f} a sample",
        )


@check(
    "SCORES-TARGETS",
    source="tools/submission/submission_checker/constants.py, accuracy-target and accuracy-upper-limit",
    remedy="remove accuracy.json and score the run again: --tags=process,mlperf,accuracy",
    each=_scored_runs,
)
def targets(part: Accuracy, run: RunRecord, record: AccuracyRecord) -> Iterator[Fault]:
    """Scores are compared with the targets of their round, benchmark and scenario."""
    terms = run.settings.terms
    if terms_of(terms.round, terms.benchmark, terms.scenario, terms.mode) is None:
        return
    known = rules.accuracy_targets(terms.round, terms.benchmark, terms.scenario)
    expected = sorted(
        (target.metric, target.label, target.lower, target.upper)
        for target in known
        if target.metric not in record.unscored
    )
    stated = sorted((score.metric, score.label, score.lower, score.upper) for score in record.scores)
    whole = record.samples == rules.benchmark_terms(terms.round, terms.benchmark).samples
    by_metric = {target.metric: target for target in known}
    wrong = [
        score.metric
        for score in record.scores
        if score.metric in by_metric and score.met != by_metric[score.metric].met(score.value, whole=whole)
    ]
    fault = f"the accuracy targets are not those of {terms.benchmark}"
    if stated != expected:
        yield Fault(fault, part.beside(ACCURACY_FILE), "scores", stated, expected)
    elif wrong:
        yield Fault(
            f"{fault}: scores are judged wrongly",
            part.beside(ACCURACY_FILE),
            "scores",
            ", ".join(wrong),
            "what the rules say of these values",
        )
