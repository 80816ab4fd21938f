"""The last lines of a campaign, or of one run: details, the table of results, the page's address, the next step.

On a terminal it has colour, elsewhere it is aligned plain text.
"""

import io
import shlex
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.number_texts import ms, number, rate
from cm4vllm.common.records import read_record
from cm4vllm.common.terminal_text import columns, printable
from cm4vllm.records.accuracy import ACCURACY_FILE, ACCURACY_TEXT, AccuracyRecord
from cm4vllm.records.doubts import client_doubts
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.report.pictures.power_pictures import energy_words, power_words
from cm4vllm.results.campaign_results import Report
from cm4vllm.results.figure_texts import counting_words, headroom, result_figure
from cm4vllm.results.judgement.campaign_verdict import (
    findings,
    headline,
    missing,
    missing_scenarios,
    score_in_words,
    unchecked_facts,
)
from cm4vllm.results.log_folders import Reader
from cm4vllm.results.model import Performance, Result
from cm4vllm.results.recorded_power import energy_figures, recorded_power
from cm4vllm.rules import Mode

_COLUMNS = ("scenario", "metric", "samples/s", "result", "TTFT p99", "TPOT p99", "accuracy")
_COLOURS = {"valid": "green", "INVALID": "bold red"}


def final_table(report: Report, *, stream: TextIO | None = None) -> str:
    """Return the table of a report's results and where they are, fit for `stream` (standard output by default)."""
    target = stream or sys.stdout
    text = _text(report, terminal=target.isatty())
    encoding = getattr(target, "encoding", None) or "utf-8"
    if not encoding.lower().startswith("utf"):
        text = text.replace("≥", ">=").replace("≤", "<=").encode(encoding, "replace").decode(encoding)
    return text


def _text(report: Report, *, terminal: bool) -> str:
    """Return the table at the end of a job with the lines below it; coloured for a terminal."""
    rows = [
        (
            result.scenario,
            *(performance_cells(result.performance) if result.performance else ("not measured", *[""] * 4)),
            _accuracy(result),
        )
        for result in report.results
    ]
    rows += [(str(scenario), "not measured", *[""] * (len(_COLUMNS) - 2)) for scenario in missing_scenarios(report)]
    if terminal:
        return _coloured_table(report, rows)
    titles = [
        *([f"*** {report.notice} ***"] if report.notice else []),
        *([] if report.rehearsal else [headline(report)]),
    ]
    return "\n".join(
        [*_lines_above(report), "", *map(one_line, titles), *align([_COLUMNS, *rows]), "", *_lines_below(report)]
    )


def performance_cells(performance: Performance) -> tuple[str, ...]:
    """Return the cells of a performance run: metric, samples/s, verdict, TTFT and TPOT."""
    return (
        result_figure(performance.metric),
        "" if performance.samples_per_second is None else rate(performance.samples_per_second),
        "valid" if performance.valid else "INVALID",
        _latency(performance, "TTFT"),
        _latency(performance, "TPOT"),
    )


def _latency(performance: Performance, name: str) -> str:
    """Return the 99th percentile of a latency beside its limit."""
    for measured in performance.latencies:
        if measured.name == name:
            if measured.limit is None or measured.headroom is None:
                return f"{ms(measured.p99)} ms (no limit)"
            sign = "<" if measured.met else ">="
            return f"{ms(measured.p99)} {sign} {number(measured.limit)} ms ({headroom(measured.headroom)})"
    return "no limit"


def _accuracy(measurement: Result) -> str:
    """Return how many accuracy targets are met, in words."""
    if measurement.accuracy is None:
        return "not measured"
    record = measurement.accuracy.record
    if record is None:
        return "not scored"
    judged = [score.met for score in record.scores if score.met is not None]
    without = f", {len(record.unscored)} not scored" if record.unscored else ""
    return f"{sum(judged)} of {len(judged)} targets met{without}"


def _lines_above(report: Report) -> list[str]:
    """Return the lines above the table: scores, checker, where things are, what a result still has to state."""
    lines: list[str] = []
    for measurement in report.results:
        if measurement.performance and not report.rehearsal:  # whose figures claim no precision
            lines += [f"WARNING {measurement.scenario}: {mark}" for mark in measurement.performance.client_doubts]
        part = measurement.accuracy
        if part and part.record:
            dataset = (part.run or report.run).settings.dataset
            lines += score_lines(measurement.scenario, part.record, dataset.whole(report.benchmark.samples))
        if measurement.performance and (power := recorded_power(measurement.performance)):
            lines.append(f"{measurement.scenario} power: {power_words(power)}")
        if measurement.performance and energy_figures(measurement.performance):  # the page says why there is none
            lines += [f"{measurement.scenario} {line}" for line in energy_words(measurement.performance)]
    if report.run.settings.server.dialect is not None:
        lines += textwrap.wrap(f"tokens:  {counting_words(report.runs)}", 110, subsequent_indent="         ")
    for words in dict.fromkeys(run.settings.dataset.tokenised_again for run in report.runs):
        lines += textwrap.wrap(f"dataset: {words}", 110, subsequent_indent="         ") if words else []
    if report.mapped:
        lines.append(f"model:   {report.model.name}, mapped to the benchmark {report.benchmark.name}, which it is not")
    checker = findings(report)[-1]
    lines.append(f"checker: {checker.what}")
    for run in report.checker.runs if report.checker and checker.severity is Severity.ERROR else ():
        lines += [f"  {run.name}: {error}" for error in run.errors[:5]]
        if len(run.errors) > 5:
            lines.append(f"  {run.name}: {len(run.errors) - 5} more errors")
    lines.append(f"logs:    {report.folder}")
    lines.append(f"tree:    {report.tree or 'not built'}")
    gaps = unchecked_facts(report) if report.rehearsal else missing(report)
    if gaps:
        lines += textwrap.wrap(
            f"{'' if report.rehearsal else 'not stated: '}{', '.join(gaps)}", 110, subsequent_indent="  "
        )
    return [one_line(line) for line in lines]


def score_lines(scenario: str, record: AccuracyRecord, whole: int) -> list[str]:
    """Return the scores of an accuracy run as lines; `whole` is the number of samples of the whole dataset."""
    return [
        f"{scenario} accuracy on {number(record.samples)} of {number(whole)} samples:",
        *(f"  {score_in_words(score)}" for score in record.scores),
        *(f"  {metric}: not scored: {why}" for metric, why in record.unscored.items()),
    ]


def _lines_below(report: Report) -> list[str]:
    """Return the lines below the table: why a result is not valid, where the page is, what to do next."""
    reasons = [
        f"{measurement.scenario} is INVALID: {reason}"
        for measurement in report.results
        for reason in (measurement.performance.reasons if measurement.performance else ())
    ]
    shortened = [f"{title} is shortened: {why}" for title, why in report.shortened.items()]
    following = next_step(report)
    return [
        one_line(line)
        for line in (*reasons, *shortened, f"report:  {report.page}", *([f"next:    {following}"] if following else []))
    ]


def next_step(report: Report) -> str:
    """Return the next step from this job to a submission; empty where the error that follows names it."""
    settings = report.run.settings
    if settings.server.simulated is not None:
        return "on the machine of the profile, the same command without --rehearse"
    if settings.model.is_stand_in or settings.model.is_dummy or settings.dataset.holds_articles:
        return (
            "name a model (--vllm_model_name=ORGANISATION/MODEL) or a server (--api_server=URL); --plan shows the job"
        )
    whole = settings.dataset.whole(settings.terms.samples)
    if report.rehearsal and whole != settings.terms.samples:
        return (
            f"a result needs the {number(settings.terms.samples)} samples of the benchmark's dataset, and yours has "
            f"{number(whole)}: leave --dataset_path out"
        )
    if report.rehearsal:
        return "the same command with --execution_mode=valid measures a result; --plan shows how long it takes"
    if report.invalid_results or report.tree is None:
        return ""
    tree, checker = shlex.quote(str(report.tree.parent.parent)), report.checker
    if checker is None or checker.unavailable:
        return f"cm run script --tags=check,mlperf,results --input={tree}"
    return f"cm run script --tags=pack,mlperf,submission --submission_dir={tree}" if checker.passed else ""


def one_line(text: str) -> str:
    """Return a text as a line of a table."""
    return printable(text).replace("\n", " ").replace("\t", " ")


def align(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table whose first row is its head."""
    table = [[one_line(cell) for cell in row] for row in rows]
    return columns([table[0], ["-" * max(map(len, column)) for column in zip(*table, strict=True)], *table[1:]])


def _coloured_table(report: Report, rows: list[tuple[str, ...]]) -> str:
    """Return the table as text with the terminal's colours."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(one_line(headline(report)), style="bold"), title_justify="left")
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(str(cell)), style=_COLOURS.get(cell, "")) for cell in row))
    console = Console(file=io.StringIO(), force_terminal=True)
    checked = {Severity.GOOD: "green", Severity.ERROR: "bold red", Severity.NOTE: ""}[findings(report)[-1].severity]

    def show(lines: list[str]) -> None:
        """Print lines below the table, wrapped to its width, with a colour for warnings and invalid runs."""
        for line in lines:
            style = "red" if "INVALID" in line else "bold yellow" if line.startswith("WARNING") else ""
            parts = textwrap.wrap(  # a path stays whole, so that it can be copied
                line,
                console.width,
                subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
                break_long_words=False,
                break_on_hyphens=False,
            )
            for part in parts or [""]:
                console.print(Text(part, style=checked if line.startswith("checker:") else style), soft_wrap=True)

    show(_lines_above(report))
    if report.notice:
        console.print(Text(f" {one_line(report.notice)} ", style="bold black on yellow"))
    console.print(table)
    show(_lines_below(report))
    return str(console.file.getvalue()).rstrip("\n")  # type: ignore[attr-defined]


def run_table(folder: Path) -> str:
    """Return the table of the run in a folder, and what is to be known beside it. Raises CmError."""
    run = read_record(folder / RUN_FILE, RunRecord)
    terms, name = run.settings.terms, run.settings.compliance_test or str(run.settings.mode)
    performance = Reader(folder).performance(folder, terms, run) if run.settings.mode is Mode.PERFORMANCE else None
    title = f"{terms.scenario} {name}"
    row = (
        (title, *performance_cells(performance))
        if performance
        # An accuracy run, whose answers are complete and not scored yet.
        else (title, f"{run.settings.samples:,} answers", rate(run.samples_per_second), "not scored", "", "")
    )
    lines = [
        *([f"*** {run.notice} ***"] if run.notice else []),
        *align([("run", *_COLUMNS[1:-1]), row]),
        "",
        *(f"{title} is INVALID: {reason}" for reason in (performance.reasons if performance else run.faults)),
        *([f"{title} is shortened: {run.settings.shortened}"] if run.settings.shortened else []),
        *([] if run.settings.rehearsal else [f"WARNING: {doubt}" for doubt in client_doubts(run)]),
        f"logs:    {folder}",
        *_next_command(run, folder),
    ]
    return "\n".join(map(one_line, lines))


def score_table(folder: Path) -> str:
    """Return the scores of the run in a folder, as `process,mlperf,accuracy` left them. Raises CmError."""
    run, record = read_record(folder / RUN_FILE, RunRecord), read_record(folder / ACCURACY_FILE, AccuracyRecord)
    lines = [
        *([f"*** {run.notice} ***"] if run.notice else []),
        *score_lines(str(run.settings.scenario), record, run.settings.dataset.whole(run.settings.terms.samples)),
        f"scores:  {folder / ACCURACY_TEXT}",
    ]
    return "\n".join(map(one_line, lines))


def _next_command(run: RunRecord, folder: Path) -> list[str]:
    """Return the command that scores or verifies a run; none for a performance run."""
    if run.settings.compliance_test:
        return [f"next:    cm run script --tags=process,mlperf,compliance --test_dir={folder}"]
    if run.settings.mode is Mode.ACCURACY:
        return [f"next:    cm run script --tags=process,mlperf,accuracy --result_dir={folder}"]
    return []
