"""What must hold before a number is printed. Each check raises SubmissionError with what breaks it and why it matters.

Published results of this kind have carried tokens/s labelled samples/s, token counts of twice the tokens (64-bit
tokens read as 32-bit), the thresholds of another variant, and the division of another command.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable

from cm4vllm import REHEARSAL_NOTICE, rules
from cm4vllm.accuracy.records import AccuracyRecord
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import sha256_of
from cm4vllm.loadgen.records import RunRecord
from cm4vllm.report.model import Accuracy, Performance, Report
from cm4vllm.rules import Division, ExecutionMode, Scenario

__all__ = ["MIN_DURATION_S", "TOKENS_TOLERANCE", "WIDTH_TOLERANCE", "check"]

#: How far LoadGen's token count may lie from the client's: LoadGen's logs round rates to six digits.
TOKENS_TOLERANCE = 0.001

#: How far the scored tokens a sample may lie from those the client received; a wrong width doubles them.
WIDTH_TOLERANCE = 0.05

#: What a performance run must last at least (constants.py: min duration 600000 ms).
MIN_DURATION_S = 600

_AGAIN = "remove the run's folder and run it again"


def check(report: Report) -> None:
    """Raise SubmissionError at the first invariant that the report breaks."""
    _same_subject(report)
    _rehearsal(report)
    _campaign(report)
    for measurement in report.measurements:
        if measurement.performance:
            _logs_unchanged(measurement.performance)
            _log_of_this_run(report, measurement.performance)
            _tokens_per_second(measurement.performance)
        if measurement.accuracy and measurement.accuracy.record:
            _scores_of_this_log(measurement.accuracy, measurement.accuracy.record)
            _token_width(measurement.accuracy, measurement.accuracy.record)
            _targets_of_this_variant(report, measurement.accuracy, measurement.accuracy.record)


def _runs(report: Report) -> tuple[RunRecord, ...]:
    return tuple(run for measurement in report.measurements for run in measurement.runs)


def _same_subject(report: Report) -> None:
    subjects: dict[str, Callable[[RunRecord], object]] = {
        "round": lambda run: run.settings.round,
        "benchmark": lambda run: run.settings.benchmark,
        "model": lambda run: (run.settings.model.name, run.settings.model.sha256),
        "dataset": lambda run: (run.settings.dataset.name, run.settings.dataset.sha256),
        "vLLM version": lambda run: run.settings.server.version,
        "LoadGen version": lambda run: run.loadgen_version,
    }
    for subject, value in subjects.items():
        values = {str(value(run)) for run in _runs(report)}
        if len(values) > 1:
            raise SubmissionError(
                f"the runs in {report.out} differ in their {subject}", cause="; ".join(sorted(values)),
                remedy="run them again with --rerun=yes, or each into an --output_dir of its own",
            )
    for run in _runs(report):
        terms = run.settings.terms
        expected = rules.terms(terms.round, terms.benchmark, terms.scenario, terms.mode)
        if terms.loadgen_name != expected.loadgen_name:
            raise SubmissionError(
                f"a run of {report.benchmark.name} was made under LoadGen's name {terms.loadgen_name!r}",
                cause=f"only {expected.loadgen_name!r} has this benchmark's limits", remedy=_AGAIN,
            )


def _rehearsal(report: Report) -> None:
    for run in _runs(report):
        if run.settings.rehearsal != report.rehearsal:
            raise SubmissionError(
                f"{report.out} mixes rehearsals with full runs",
                cause="a rehearsal is not a result, and a page must be the one or the other",
                remedy="run each into an --output_dir of its own",
            )
    notices = {run.notice for run in _runs(report)} | {
        m.accuracy.record.notice for m in report.measurements if m.accuracy and m.accuracy.record
    }
    if notices != {REHEARSAL_NOTICE if report.rehearsal else ""}:
        raise SubmissionError(
            f"a record in {report.out} does not say truly whether it is a rehearsal",
            cause=f"rehearsal: {report.rehearsal}, notices: {sorted(notices)}", remedy=_AGAIN,
        )


def _campaign(report: Report) -> None:
    campaign = report.campaign
    if campaign is None:
        return
    asked = _flags(campaign.command)
    facts = {
        "the command's --division": (asked.get("division"), campaign.division),
        "the command's --execution_mode": (asked.get("execution_mode"), campaign.execution_mode),
        "the command's --model": (asked.get("model"), campaign.benchmark),
        "the runs' benchmark": (report.benchmark.name, campaign.benchmark),
        "the runs' round": (report.round, campaign.round),
        "the runs' rehearsal": (report.rehearsal, campaign.execution_mode is ExecutionMode.TEST),
        "the system description's division": (report.system.get("division"), campaign.division),
        "the system description's submitter": (report.system.get("submitter"), campaign.submitter),
    }
    for what, (found, expected) in facts.items():
        if found is not None and str(found).lower() != str(expected).lower():
            raise SubmissionError(
                f"{what} is {found}, that of campaign.json is {expected}",
                remedy="run the whole command again, so that the records are of one campaign",
            )
    if campaign.division is Division.CLOSED and report.mapped:
        raise SubmissionError(
            f"model {report.model.name} cannot stand in the closed division",
            cause=f"the closed division of {report.benchmark.name} takes that model alone", remedy="--division=open",
        )


def _flags(command: str) -> dict[str, str]:
    try:
        words = shlex.split(command)
    except ValueError:
        return {}
    return {w[2:].partition("=")[0]: w.partition("=")[2] for w in words if w.startswith("--") and "=" in w}


def _logs_unchanged(performance: Performance) -> None:
    for name in ("mlperf_log_summary.txt", "mlperf_log_detail.txt"):
        path = performance.folder / name
        if name in performance.run.files and sha256_of(path) != performance.run.files[name]:
            raise SubmissionError(
                f"{path} is not the log of the run beside it",
                cause="its SHA-256 differs from the one that run.json took when the run ended", remedy=_AGAIN,
            )


def _log_of_this_run(report: Report, performance: Performance) -> None:
    """Check that LoadGen ran the scenario, the round's seeds and the duration that the record claims."""
    result, settings = performance.result, performance.run.settings
    expected = rules.round_terms(settings.round).seeds
    seeds = expected.qsl, expected.sample_index, expected.schedule
    broken = ""
    if result.scenario != settings.terms.loadgen_scenario:
        broken = f"LoadGen ran {result.scenario}, the record says {settings.scenario}"
    elif result.seeds != seeds:
        broken = f"its seeds {result.seeds} are not those of round {report.round}"
    elif settings.target_qps and not math.isclose(settings.target_qps, result.target_qps, rel_tol=1e-4):
        broken = f"LoadGen was asked for target_qps {result.target_qps:g}, the record says {settings.target_qps:g}"
    elif not settings.rehearsal and result.min_duration < MIN_DURATION_S:
        broken = f"a result needs a minimum duration of {MIN_DURATION_S} s, LoadGen was given {result.min_duration}"
    if broken:
        raise SubmissionError(f"the log in {performance.folder} is not that of its record", cause=broken, remedy=_AGAIN)


def _tokens_per_second(performance: Performance) -> None:
    """Check tokens/s = samples/s x tokens per sample, LoadGen's log against the client's own count.

    In the Server scenario LoadGen counts n-1 samples but the tokens of all n (loadgen/results.cc, qps_as_completed
    and tps_as_completed), which shows in short runs.
    """
    result, client = performance.result, performance.run.client
    if not result.samples_per_second:
        return
    samples = result.samples - (1 if result.scenario is Scenario.SERVER else 0)
    logged = result.tokens_per_second / result.samples_per_second * samples
    told = client.reported_tokens or client.completion_tokens
    if not math.isclose(logged, told, rel_tol=TOKENS_TOLERANCE):
        raise SubmissionError(
            f"tokens/s is not samples/s times tokens per sample in {performance.folder}",
            cause=f"LoadGen's log has {result.tokens_per_second} at {result.samples_per_second}, which makes "
            f"{logged:,.0f} tokens; LoadGen was told of {told:,}", remedy=_AGAIN,
        )


def _scores_of_this_log(accuracy: Accuracy, record: AccuracyRecord) -> None:
    log = accuracy.run.files.get("mlperf_log_accuracy.json")
    if log is not None and log != record.log_sha256:
        raise SubmissionError(
            f"the scores in {accuracy.folder} are of another log",
            cause="the SHA-256 of the scored mlperf_log_accuracy.json is not that of the run",
            remedy=f"remove {accuracy.folder / 'accuracy.json'} and score it again",
        )


def _token_width(accuracy: Accuracy, record: AccuracyRecord) -> None:
    client = accuracy.run.client
    if not record.samples or not client.completed:
        return
    scored, received = record.tokens / record.samples, client.completion_tokens / client.completed
    if not math.isclose(scored, received, rel_tol=WIDTH_TOLERANCE):
        raise SubmissionError(
            f"the scores in {accuracy.folder} count {scored:,.1f} tokens a sample, the client received {received:,.1f}",
            cause="twice as many means that 64-bit tokens were read as 32-bit ones", remedy=_AGAIN,
        )


def _targets_of_this_variant(report: Report, accuracy: Accuracy, record: AccuracyRecord) -> None:
    terms = accuracy.run.settings.terms
    targets = rules.accuracy_targets(terms.round, terms.benchmark, terms.scenario)
    ours = [(t.metric, t.label, t.lower, t.upper) for t in targets]
    theirs = [(s.metric, s.label, s.lower, s.upper) for s in record.scores]
    whole = record.samples == report.benchmark.samples
    wrong = [score.metric for score, rule in zip(record.scores, targets, strict=False)
             if score.met != rule.met(score.value, whole=whole)]
    if sorted(ours) != sorted(theirs) or wrong:
        raise SubmissionError(
            f"the accuracy targets are not those of {report.benchmark.name}",
            cause=f"scored against {theirs}, the rules say {ours}" if not wrong else f"judged wrongly: {wrong}",
            remedy="remove accuracy.json and score the accuracy log again",
        )
