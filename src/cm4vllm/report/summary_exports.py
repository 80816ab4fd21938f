"""summary.json and summary.csv: what the page shows, for programs; the fields are described in docs/report.md."""

import csv
import io
from typing import Any

from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.records import Record
from cm4vllm.results.campaign_results import Report
from cm4vllm.results.energy_figures import energy_figures
from cm4vllm.results.figures import Figure
from cm4vllm.results.judgement.bottlenecks import Why, why
from cm4vllm.results.judgement.campaign_verdict import findings, headline, missing_scenarios
from cm4vllm.results.judgement.published_rank import Place
from cm4vllm.results.model import Performance, Result

#: What a line of the verdict is called, by its severity.
KINDS = {Severity.GOOD: "good", Severity.ERROR: "bad", Severity.NOTE: "open"}
#: The columns of summary.csv.
CSV_COLUMNS = (
    "notice",
    "round",
    "division",
    "submitter",
    "availability",
    "system",
    "nodes",
    "accelerator",
    "accelerators_per_node",
    "processor",
    "framework",
    "model",
    "benchmark",
    "scenario",
    "valid",
    "reasons",
    "metric",
    "result",
    "unit",
    "samples_per_second",
    "tokens_per_second",
    "tokens_per_sample",
    "target_qps",
    "ttft_p99_ms",
    "ttft_limit_ms",
    "tpot_p99_ms",
    "tpot_limit_ms",
    "duration_s",
    "samples",
    "accuracy",
    "accuracy_target",
    "accuracy_met",
    "bound_by",
)


class SummaryFigure(Record, frozen=True, kw_only=True):
    """A number with its unit (empty for a score), and where it was read."""

    name: str
    value: float
    unit: str
    file: str
    field: str


class SummaryLatency(Record, frozen=True, kw_only=True):
    """A latency against its limit; `headroom` is the part of the limit that is left. None where there is no limit."""

    name: str
    p99_ms: float
    mean_ms: float | None
    limit_ms: float | None
    headroom: float | None
    met: bool | None


class SummaryScore(Record, frozen=True, kw_only=True):
    """A metric of accuracy against its target; `met` is None where it is not judged."""

    metric: str
    value: float
    at_least: float | None
    at_most: float | None
    met: bool | None


class SummaryFinding(Record, frozen=True, kw_only=True):
    """One line of the verdict: its subject, whether it is good, bad or open (not known yet), and the text."""

    subject: str
    kind: str
    text: str


class SummaryResult(Record, frozen=True, kw_only=True):
    """One scenario. `valid` is None where its performance was not measured; `metric` is the figure that is compared."""

    model: str
    benchmark: str
    scenario: str
    valid: bool | None
    reasons: tuple[str, ...]
    metric: SummaryFigure | None
    target_qps: float | None
    latencies: tuple[SummaryLatency, ...]
    accuracy: tuple[SummaryScore, ...]
    accuracy_samples: int | None
    unscored: dict[str, str] = {}
    figures: tuple[SummaryFigure, ...]
    why: Why | None


class SummaryRecord(Record, frozen=True, kw_only=True):
    """summary.json. `notice` is not empty where this is a rehearsal and no result."""

    notice: str
    headline: str
    round: str
    division: str
    submitter: str
    availability: str
    system: str
    system_description: dict[str, str]
    model: str
    model_sha256: str
    benchmark: str
    dataset: str
    dataset_sha256: str
    server: str
    loadgen: str
    command: str
    results: tuple[SummaryResult, ...]
    not_measured: tuple[str, ...]
    findings: tuple[SummaryFinding, ...]
    places: tuple[Place, ...] = ()


def summary_record(report: Report, *, published: bool = False) -> SummaryRecord:
    """Return a report's figures, each with its source; the page is rendered from the same model."""
    return SummaryRecord(
        notice=report.notice,
        headline=headline(report, published=published),
        round=report.round,
        division=str(report.division or ""),
        submitter=report.submitter_stated,
        availability=report.system.get("status", ""),
        system=report.system_title,
        system_description=report.system,
        model=report.model.name,
        model_sha256=report.model.sha256,
        benchmark=report.benchmark.name,
        dataset=report.dataset.name,
        dataset_sha256=report.dataset.sha256,
        server=report.server.named,
        loadgen=report.run.loadgen_version,
        command=report.campaign.command if report.campaign else "",
        results=tuple(_result(result) for result in report.results),
        not_measured=tuple(str(scenario) for scenario in missing_scenarios(report)),
        findings=tuple(
            SummaryFinding(subject=line.field, kind=KINDS[line.severity], text=line.what)
            for line in findings(report, published=published)
        ),
        places=report.places,
    )


def summary_csv(report: Report) -> str:
    """Return summary.csv: a row for each scenario; a cell is empty where nothing is known."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    record = summary_record(report)
    for result in record.results:
        writer.writerow({key: _cell(value) for key, value in _row(record, result).items()})
    return text.getvalue()


def _row(record: SummaryRecord, result: SummaryResult) -> dict[str, Any]:
    """Return the row of a scenario in summary.csv, by column."""
    system = record.system_description
    values = {figure.name: figure.value for figure in result.figures}
    latencies = {latency.name: latency for latency in result.latencies}
    judged = [score.met for score in result.accuracy if score.met is not None]
    row: dict[str, Any] = {
        "notice": record.notice,
        "round": record.round,
        "division": record.division,
        "submitter": record.submitter,
        "availability": record.availability,
        "system": record.system,
        "nodes": system.get("number_of_nodes"),
        "accelerator": system.get("accelerator_model_name"),
        "accelerators_per_node": system.get("accelerators_per_node"),
        "processor": system.get("host_processor_model_name"),
        "framework": system.get("framework"),
        "model": result.model,
        "benchmark": result.benchmark,
        "scenario": result.scenario,
        "valid": result.valid,
        "reasons": "; ".join(result.reasons),
        "target_qps": result.target_qps,
        **{
            name: values.get(name)
            for name in ("samples_per_second", "tokens_per_second", "tokens_per_sample", "samples")
        },
        "duration_s": values.get("duration"),
        "accuracy": ", ".join(f"{score.metric}: {score.value:.12g}" for score in result.accuracy),
        "accuracy_target": ", ".join(
            f"{score.metric}: {score.at_least:.12g}" for score in result.accuracy if score.at_least is not None
        ),
        "accuracy_met": all(judged) if judged else None,
        "bound_by": result.why.cause if result.why else None,
    }
    if result.metric is not None:
        row |= {"metric": result.metric.name, "result": result.metric.value, "unit": result.metric.unit}
    for name in ("TTFT", "TPOT"):
        if name in latencies:
            row[f"{name.lower()}_p99_ms"] = latencies[name].p99_ms
            row[f"{name.lower()}_limit_ms"] = latencies[name].limit_ms
    return row


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet reads as a formula; numbers and booleans are unchanged."""
    text = "" if value is None else " ".join(str(value).split())
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "-", "@") else text


def _result(result: Result) -> SummaryResult:
    """Return a result as summary.json has it."""
    part, accuracy = result.performance, result.accuracy
    record = accuracy.record if accuracy else None
    return SummaryResult(
        model=result.model,
        benchmark=result.benchmark,
        scenario=result.scenario,
        valid=part.valid and not (accuracy.faults if accuracy else ()) if part else None,
        reasons=(*(part.reasons if part else ()), *(accuracy.faults if accuracy else ())),
        metric=_figure(part.metric) if part and part.metric else None,
        target_qps=part.target_qps if part else None,
        latencies=_latencies(part) if part else (),
        accuracy=tuple(
            SummaryScore(
                metric=score.metric, value=score.value, at_least=score.lower, at_most=score.upper, met=score.met
            )
            for score in record.scores
        )
        if record
        else (),
        accuracy_samples=record.samples if record else None,
        unscored=record.unscored if record else {},
        figures=tuple(map(_figure, (*part.figures.values(), *energy_figures(part)))) if part else (),
        why=why(part) if part else None,
    )


def _latencies(part: Performance) -> tuple[SummaryLatency, ...]:
    """Return TTFT and TPOT as summary.json has them, in ms."""
    return tuple(
        SummaryLatency(
            name=latency.name,
            p99_ms=float(latency.p99),
            mean_ms=None if latency.mean is None else float(latency.mean),
            limit_ms=None if latency.limit is None else float(latency.limit),
            headroom=latency.headroom,
            met=latency.met,
        )
        for latency in part.latencies
    )


def _figure(figure: Figure) -> SummaryFigure:
    """Return a figure as summary.json has it, with its file and field."""
    return SummaryFigure(
        name=figure.name,
        value=float(figure.value),
        unit=figure.unit,
        file=figure.source.file,
        field=figure.source.field,
    )
