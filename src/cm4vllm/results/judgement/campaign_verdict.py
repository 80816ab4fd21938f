"""The verdict on a campaign in a few lines: the claims that hold, that do not hold, and that are unknown."""

import re

from cm4vllm.common.checking.findings import Finding, Severity
from cm4vllm.common.number_texts import ms, number, percent
from cm4vllm.common.programs.processes import exit_in_words
from cm4vllm.records.accuracy import Score
from cm4vllm.records.checker import CheckerRecord, CheckerRun
from cm4vllm.records.described_system import label, not_stated
from cm4vllm.results.campaign_results import Report
from cm4vllm.results.figure_texts import counting_words, headroom, judgement, result_figure, target
from cm4vllm.results.model import Result
from cm4vllm.rules import Division, Scenario

#: The findings of the checkers that only a run with latencies over their limits has.
_OF_LATENCY = re.compile(r"Failed (Llama2 )?extra check for TTFT and TPOT\.")
#: The findings that only a run which is short or not yet fast enough has.
_EXPECTED_OF_A_REHEARSAL = re.compile(
    "|".join(
        (
            _OF_LATENCY.pattern,
            r"Test duration less than 600s in user config",
            r"Early stopping condition was not met",
            r"Required minimum samples per query not met by user config",
            r"accurcy run does not cover all dataset",
            r"(performance|accuracy)_sample_count, found \d+, needs to be >= \d+",
            r"Ending early: Max (test duration|query count) reached",
            r"has loadgen errors, number of errors",
            r"performance/run_1/mlperf_log_detail\.txt contains errors:",
        )
    )
)
#: Sums of what was said before. The older checker's `has issues` is also all it says of an INVALID result.
_SUMS = re.compile(
    r"^(NoResults |SUMMARY: submission has errors|Some (performance|accuracy) checks Checks failed for)"
    r"|performance/run_1 has issues$"
)


def _line(subject: str, severity: Severity, text: str) -> Finding:
    """Return one line of the verdict: an error, what is good, or a note on what is not known yet."""
    return Finding(severity=severity, field=subject, what=text)


def headline(report: Report, *, published: bool = False) -> str:
    """Return the verdict in one sentence; that of a `published` page leaves the checker's to its reader."""
    if report.rehearsal:
        return "A rehearsal, not a result"
    all_findings = findings(report, published=published)
    bad = list(dict.fromkeys(f.field for f in all_findings if f.severity is Severity.ERROR))
    if bad:
        return f"Not a valid submission: see {', '.join(bad)}"
    where = f" in the {report.division} division" if report.division else ""
    for beginning, words in (("DOUBTFUL", "DOUBTFUL"), ("not ", "not complete")):
        notes = (f for f in all_findings if f.severity is Severity.NOTE)
        open_ = dict.fromkeys(f.field for f in notes if f.what.startswith(beginning))
        if open_:
            return f"Valid{where}, but {words}: see {', '.join(open_)}"
    return f"A valid result{where}"


def sentence(report: Report) -> str:
    """Return the result in one plain sentence: what was measured, on what, and the figures."""
    parts = []
    for result in report.results:
        part = result.performance
        if part is None or part.metric is None:
            continue
        margins = [
            f"{percent(latency.headroom)} of the {latency.name} limit left"
            if latency.headroom > 0
            else f"the {latency.name} limit exceeded by {percent(-latency.headroom)}"
            for latency in part.latencies
            if latency.headroom is not None
        ]
        margin = f" with {' and '.join(margins)}" if margins else ""
        parts.append(f"{result_figure(part.metric)} in the {result.scenario} scenario{margin}")
    came = ", and ".join(parts) or "no figure yet"
    return f"{report.model.name}, served by {report.server.named} on {report.system_title}, reached {came}."


def findings(report: Report, *, published: bool = False) -> list[Finding]:
    """Return the verdict's lines: scenario by scenario, then the checker where the page is not a `published` one."""
    all_findings: list[Finding] = []
    for measurement in report.results:
        doubts = measurement.performance.client_doubts if measurement.performance else ()
        client = (_line(f"{measurement.scenario} client", Severity.NOTE, f"DOUBTFUL: {mark}") for mark in doubts)
        all_findings += [_performance(report, measurement), *client, _accuracy(report, measurement)]
    all_findings += [_line(scenario, Severity.NOTE, "not measured") for scenario in missing_scenarios(report)]
    all_findings += [*_counting(report), *_prompts(report)]
    all_findings += [
        _line(f"{title} run", Severity.NOTE, f"shortened: {why}") for title, why in report.shortened.items()
    ]
    return all_findings if published else [*all_findings, _checker(report)]


def missing_scenarios(report: Report) -> list[Scenario]:
    """Return the scenarios that a closed result needs and that have no run; of alternatives, the first."""
    measured = {measurement.scenario for measurement in report.results}
    needed = report.benchmark.required[0]
    alternatives = () if measured & set(needed.one_of) else needed.one_of[:1]
    return [scenario for scenario in (*needed.all_of, *alternatives) if scenario not in measured]


def missing(report: Report) -> list[str]:
    """Return the facts that were neither stated nor recorded; these are gaps, not findings."""
    gaps = [label(key) for key in not_stated(report.system)] if report.system else ["the description of the system"]
    if report.submitter_stated != report.submitter and label("submitter") not in gaps:
        gaps.append(label("submitter"))
    facts = (
        (report.campaign, "the command that started the runs"),
        (report.model.sha256, "the model's SHA-256: its files are not on this machine"),
        (report.model.parameters, "the model's number of parameters"),
        (report.model.weight_data_types, "the data types of the model's weights"),
        (report.server.argv, "the server's command: it was not started by cm4vllm"),
    )
    return [*gaps, *(name for known, name in facts if not known), *unchecked_facts(report)]


def unchecked_facts(report: Report) -> list[str]:
    """Return the facts that the server could not be asked for."""
    return [f"not checked: {note}" for note in report.server.unchecked]


def findings_on_rehearsal(report: Report) -> list[str]:
    """Return the checkers' findings on a rehearsal beyond its short runs; none for other reports."""
    return unexpected_findings(report.checker) if report.checker and report.rehearsal else []


def score_in_words(score: Score) -> str:
    """Return a metric, its value, its target and whether it is met."""
    return f"{score.metric} {number(score.value)} ({target(score.lower, score.upper)}): {judgement(score.met)}"


def _performance(report: Report, measurement: Result) -> Finding:
    subject = f"{measurement.scenario} performance"
    part = measurement.performance
    if part is None:
        return _line(subject, Severity.NOTE, "not measured")
    text = result_figure(part.metric)
    text += "".join(
        f"; {latency.name} p99 {ms(latency.p99)} ms"
        + (f", {headroom(latency.headroom)}" if latency.headroom is not None else "")
        for latency in part.latencies
    )
    if part.valid:
        return _line(subject, Severity.GOOD, f"valid: {text}")
    # A rehearsal is too short for LoadGen's statistics; that is no defect, what the run itself did wrong is.
    return _line(
        subject,
        Severity.NOTE if report.rehearsal and not part.faults else Severity.ERROR,
        f"INVALID ({'; '.join(part.reasons) or 'LoadGen gives no reason'}): {text}",
    )


def _counting(report: Report) -> list[Finding]:
    """Return the way in which tokens were counted where the server lists no ids; nothing where it does."""
    dialect = report.run.settings.server.dialect
    if dialect is None:
        return []
    closed = report.division is Division.CLOSED and bool(dialect.open_only)
    return [_line("Token counts", Severity.ERROR if closed else Severity.NOTE, counting_words(report.runs))]


def _prompts(report: Report) -> list[Finding]:
    """Return that prompts are not those of the dataset's file, for each dataset of which they are not."""
    kind = Severity.ERROR if report.division is Division.CLOSED else Severity.NOTE
    words = dict.fromkeys(run.settings.dataset.tokenised_again for run in report.runs)
    return [_line("Dataset", kind, text) for text in words if text]


def _accuracy(report: Report, measurement: Result) -> Finding:
    subject = f"{measurement.scenario} accuracy"
    part = measurement.accuracy
    if part is None:
        return _line(subject, Severity.NOTE, "not measured")
    if part.faults:
        return _line(subject, Severity.ERROR, f"INVALID ({'; '.join(part.faults)})")
    if part.record is None and report.run.settings.server.simulated is not None:
        return _line(subject, Severity.NOTE, "not scored: the answers of a simulated server mean nothing")
    if part.record is None:
        return _line(subject, Severity.NOTE, "not scored: the run ended, its log has no accuracy.json")
    scores, whole = part.record.scores, (part.run or report.run).settings.dataset.whole(report.benchmark.samples)
    covered = f"{number(part.record.samples)} of {number(whole)} samples"
    missed = [score.metric for score in scores if score.met is False]
    totals = [score.metric for score in scores if score.met is None]
    judged = len(scores) - len(totals)
    unjudged = f"; {', '.join(totals)} is a total over all samples, and not judged" if totals else ""
    unjudged += "".join(f"; {metric} is not scored: {why}" for metric, why in part.record.unscored.items())
    if part.record.unscored and not missed:
        return _line(subject, Severity.NOTE, f"meets the {judged} targets that are scored on {covered}{unjudged}")
    if not missed:
        return _line(subject, Severity.GOOD, f"meets all {judged} targets on {covered}{unjudged}")
    text = f"misses {len(missed)} of {judged} closed-division targets on {covered}: {', '.join(missed)}{unjudged}"
    if report.rehearsal:
        return _line(subject, Severity.NOTE, text)
    if report.division is Division.OPEN:
        return _line(subject, Severity.NOTE, f"{text}; the open division allows that, if it is stated")
    return _line(subject, Severity.ERROR, text)


def _checker(report: Report) -> Finding:
    subject, checker = "Official checker", report.checker
    if checker is None:
        return _line(subject, Severity.NOTE, "not run")
    if checker.unavailable:
        return _line(subject, Severity.NOTE, f"not run: {checker.unavailable}")
    said = ", ".join(f"{run.name}: {_outcome_words(run)}" for run in checker.runs)
    if report.rehearsal and not checker.passed:
        defects = len(findings_on_rehearsal(report))
        text = (
            f"{_count_words(defects, 'finding')} that a rehearsal does not explain"
            if defects
            else expected_words(checker)
        )
        return _line(subject, Severity.ERROR if defects else Severity.GOOD, f"{text} ({said})")
    return _line(
        subject,
        Severity.GOOD if checker.passed else Severity.ERROR,
        f"{'passed' if checker.passed else 'refused'} for round {checker.round} ({said})",
    )


def _outcome_words(run: CheckerRun) -> str:
    if run.own_fault:
        return "no verdict, it ended by a fault of its own"
    if run.crashed:
        return "crashed"
    return "passed" if run.passed else f"refused with {_count_words(len(run.errors), 'error')}"


def _count_words(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def unexpected_findings(record: CheckerRecord) -> list[str]:
    """Return what the checkers say against a rehearsal's tree beyond its being short: defects that a result has too.

    A metric that is not scored was announced before the run.
    """
    announced = {f"{folder}, accuracy not valid" for folder in record.unscored}
    unexpected = []
    for checker in record.runs:
        stated = [error for error in checker.errors if error not in announced and not _SUMS.search(error)]
        unexpected += [f"{checker.name}: {error}" for error in stated if not _EXPECTED_OF_A_REHEARSAL.search(error)]
        if checker.crashed:
            unexpected.append(f"{checker.name}: crashed")
        elif not checker.passed and not checker.errors and not checker.own_fault:
            unexpected.append(
                f"{checker.name}: ended with {exit_in_words(checker.status)} and {checker.results} results, "
                "without saying why"
            )
    return unexpected


def expected_words(record: CheckerRecord) -> str:
    """Return in words that the checkers found nothing in a rehearsal's tree but what a rehearsal explains."""
    latency = any(_OF_LATENCY.search(error) for run in record.runs for error in run.errors)
    return f"only length {'and latency ' if latency else ''}findings, expected of a rehearsal"
