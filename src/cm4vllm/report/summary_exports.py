"""summary.json and summary.csv: what the page shows, for programs; the fields are described in docs/report.md."""

import csv
import io
from typing import Any

from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.records import Record
from cm4vllm.results.campaign_results import Report
from cm4vllm.results.energy_figures import energy_figures
from cm4vllm.results.figures import Figure
from cm4vllm.results.judgement.bottlenecks import why
from cm4vllm.results.judgement.campaign_verdict import findings, headline, missing_scenarios
from cm4vllm.results.judgement.published_rank import Place
from cm4vllm.results.model import Result

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


class SummaryRecord(Record, frozen=True, kw_only=True):
    """summary.json, with an object for each scenario in `results` and for each line of the verdict in `findings`.

    `notice` is not empty where this is a rehearsal and no result.
    """

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
    results: tuple[dict[str, Any], ...]
    not_measured: tuple[str, ...]
    findings: tuple[dict[str, str], ...]
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
            {"subject": line.field, "kind": KINDS[line.severity], "text": line.what}
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


def _row(record: SummaryRecord, result: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a scenario in summary.csv, by column."""
    system, scores = record.system_description, result["accuracy"]
    values = {figure["name"]: figure["value"] for figure in result["figures"]}
    judged = [score["met"] for score in scores if score["met"] is not None]
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
        **{name: result[name] for name in ("model", "benchmark", "scenario", "valid", "target_qps")},
        "reasons": "; ".join(result["reasons"]),
        **{
            name: values.get(name)
            for name in ("samples_per_second", "tokens_per_second", "tokens_per_sample", "samples")
        },
        "duration_s": values.get("duration"),
        "accuracy": ", ".join(f"{score['metric']}: {score['value']:.12g}" for score in scores),
        "accuracy_target": ", ".join(
            f"{score['metric']}: {score['at_least']:.12g}" for score in scores if score["at_least"] is not None
        ),
        "accuracy_met": all(judged) if judged else None,
        "bound_by": result["why"].cause if result["why"] else None,
    }
    if (metric := result["metric"]) is not None:
        row |= {"metric": metric["name"], "result": metric["value"], "unit": metric["unit"]}
    for latency in result["latencies"]:
        if (name := latency["name"].lower()) in ("ttft", "tpot"):
            row |= {f"{name}_p99_ms": latency["p99_ms"], f"{name}_limit_ms": latency["limit_ms"]}
    return row


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet reads as a formula; numbers and booleans are unchanged."""
    text = "" if value is None else " ".join(str(value).split())
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "-", "@") else text


def _result(result: Result) -> dict[str, Any]:
    """Return a result as summary.json has it; None stands for what was not measured or has no limit or target."""
    part, accuracy = result.performance, result.accuracy
    record, faults = (accuracy.record, accuracy.faults) if accuracy else (None, ())
    return {
        "model": result.model,
        "benchmark": result.benchmark,
        "scenario": result.scenario,
        "valid": part.valid and not faults if part else None,
        "reasons": (*(part.reasons if part else ()), *faults),
        "metric": _figure(part.metric) if part and part.metric else None,
        "target_qps": part.target_qps if part else None,
        "latencies": [
            {
                "name": latency.name,
                "p99_ms": float(latency.p99),
                "mean_ms": None if latency.mean is None else float(latency.mean),
                "limit_ms": None if latency.limit is None else float(latency.limit),
                "headroom": latency.headroom,
                "met": latency.met,
            }
            for latency in (part.latencies if part else ())
        ],
        "accuracy": [
            {
                "metric": score.metric,
                "value": score.value,
                "at_least": score.lower,
                "at_most": score.upper,
                "met": score.met,
            }
            for score in (record.scores if record else ())
        ],
        "accuracy_samples": record.samples if record else None,
        "unscored": record.unscored if record else {},
        "figures": [_figure(figure) for figure in (*part.figures.values(), *energy_figures(part))] if part else [],
        "why": why(part) if part else None,
    }


def _figure(figure: Figure) -> dict[str, Any]:
    """Return a figure as summary.json has it, with its file and field."""
    return {
        "name": figure.name,
        "value": float(figure.value),
        "unit": figure.unit,
        "file": figure.source.file,
        "field": figure.source.field,
    }
