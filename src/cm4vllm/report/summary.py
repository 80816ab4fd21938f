"""summary.html: all that is known of a campaign, on a page that loads nothing; and its data for programs."""

import csv
import dataclasses
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.files import write_text
from cm4vllm.common.records import Record, write_record
from cm4vllm.records.described_system import LABELS, TITLES, label
from cm4vllm.records.doubts import headroom as client_headroom
from cm4vllm.records.machine import MachineFacts
from cm4vllm.records.metrics import METRICS_FILE, read_samples
from cm4vllm.records.software import read_software
from cm4vllm.report.page_templates import page_template
from cm4vllm.report.pictures.canvas import Trace, latency_bar, score_bar, trace
from cm4vllm.report.pictures.power_pictures import energy_notes, energy_table, energy_words, power_words
from cm4vllm.report.pictures.scenario_pictures import pictures
from cm4vllm.report.reproduction import (
    platform_rows,
    published_recipe,
    server_command,
    setup_lines,
    typed_command,
    versions,
)
from cm4vllm.report.searches import search_curves, tried_settings
from cm4vllm.results.campaign_results import Report
from cm4vllm.results.figures import Figure
from cm4vllm.results.judgement.bottlenecks import why
from cm4vllm.results.judgement.campaign_verdict import (
    findings,
    findings_on_rehearsal,
    headline,
    missing,
    missing_scenarios,
    sentence,
)
from cm4vllm.results.judgement.published_rank import Place
from cm4vllm.results.model import Result
from cm4vllm.results.recorded_power import energy_figures, recorded_power
from cm4vllm.rules import round_terms

#: The page stays below this, whatever a checker has to say.
MAX_BYTES = 300_000

#: The number of findings of a checker that are shown; the rest is counted, and is in the checker's own log.
MAX_FINDINGS = 40
#: The text where nothing was stated: none, the words themselves, or the submitter's name in folders.
_NOT_STATED = ("", "not stated", "not-stated")
#: Remarks: optional, and not listed as missing.
_REMARKS = ("hw_notes", "sw_notes", "system_type_detail")
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


def write_summary(report: Report) -> None:
    """Write the page, summary.json and summary.csv into the campaign's folder."""
    write_text(report.page, render(report))
    write_record(report.out / "summary.json", summary_record(report))
    write_text(report.out / "summary.csv", summary_csv(report))


def render(report: Report, *, published: bool = False) -> str:
    """Return the page of a report: HTML without scripts and without anything to load.

    `published` makes the page that goes into a submission, before anybody has checked that.
    """
    if published:
        report = dataclasses.replace(report, checker=None)
    software = read_software(report.out)
    return page_template("summary.html.j2").render(
        setup="\n".join(setup_lines(report, software)),
        platform=platform_rows(software),
        software=software,
        recipe=published_recipe,
        report=report,
        run=report.run,
        settings=report.run.settings,
        server=report.server,
        published=published,
        checkers=round_terms(report.round).checkers,
        headline=headline(report, published=published),
        findings=findings(report, published=published),
        kinds=KINDS,
        missing=missing(report),
        missing_scenarios=missing_scenarios(report),
        groups=(*groups(report.system), *([machine_group(report.machine)] if report.machine else [])),
        versions=versions(report, report.run),
        confs=_confs(report),
        unexpected=findings_on_rehearsal(report),
        latency_bar=latency_bar,
        score_bar=score_bar,
        traces=_traces(report),
        client_headroom=client_headroom,
        max_findings=MAX_FINDINGS,
        record=summary_record(report, published=published),
        sentence=sentence(report),
        drawn={m.scenario: [*pictures(m), *search_curves(report.out, m.scenario)] for m in report.results},
        power={
            m.scenario: power_words(power)
            for m in report.results
            if m.performance and (power := recorded_power(m.performance))
        },
        energies={} if published else {m.scenario: m.performance for m in report.results if m.performance},
        energy_words=energy_words,
        energy_table=energy_table,
        energy_notes=energy_notes,
        tried=None if published else tried_settings(report.out),
        whys={m.scenario: why(m.performance) if m.performance else None for m in report.results},
        command=typed_command(report.campaign.command, report.server) if report.campaign else "",
        server_command=server_command(report.server, report.model.path),
    )


def _traces(report: Report) -> list[Trace]:
    """Return the work of the server in each run for which it reported metrics."""
    return [
        trace(f"{scenario} {run.settings.mode}", run.server_metrics, read_samples(folder / METRICS_FILE))
        for scenario, folder, run in [
            (m.scenario, part.folder, part.run)
            for m in report.results
            for part in (m.performance, m.accuracy)
            if part is not None and part.run is not None
        ]
        if run.server_metrics is not None
    ]


def _confs(report: Report) -> dict[str, list[str]]:
    """Return each text of user.conf with the runs that used it."""
    confs: dict[str, list[str]] = {}
    for measurement in report.results:
        for run in measurement.runs:
            confs.setdefault(run.settings.user_conf.strip(), []).append(f"{measurement.scenario} {run.settings.mode}")
    return confs


@dataclass(frozen=True)
class Group:
    """A titled table of the description: label, value, and whether anybody stated it."""

    title: str
    rows: tuple[tuple[str, str, bool], ...]
    note: str = ""


def groups(description: Mapping[str, str]) -> tuple[Group, ...]:
    """Return the description as tables; keys without a title here are in the last table."""
    tables = [_group(title, list(rows), description) for title, rows in TITLES.items()]
    others = [key for key in description if key not in LABELS]
    if others:
        tables.append(_group("Further keys", others, description))
    return tuple(group for group in tables if group.rows or group.note)


def machine_group(machine: MachineFacts) -> Group:
    """Return the facts of the machine that ran LoadGen; the server may run elsewhere."""
    host, cpu = machine.host, machine.cpu
    rows = [
        (
            "Logical CPUs",
            f"{cpu.logical_cpus}: {cpu.sockets} x {cpu.cores_per_socket} cores x {cpu.threads_per_core} threads",
        ),
        ("NUMA nodes", "unknown" if cpu.numa_nodes is None else str(cpu.numa_nodes)),
        ("Virtual machine", "unknown" if host.virtualised is None else "yes" if host.virtualised else "no"),
        ("Memory", f"{machine.memory.total_bytes / 2**30:.1f} GiB"),
        ("Kernel", f"{host.kernel}, {host.machine}"),
        ("Python", host.python),
        ("GPUs", ", ".join(gpu.name for gpu in machine.gpus) or "none"),
    ]
    return Group("The machine that ran LoadGen", tuple((name, value, value != "unknown") for name, value in rows))


def _group(title: str, keys: list[str], description: Mapping[str, str]) -> Group:
    """Return a table of the system's description: its keys with their values, `not stated` for empty ones."""
    if title == "Accelerators" and description.get("accelerators_per_node") == "0":
        row = label("accelerators_per_node"), "0", True
        return Group(title, (row,), "None: the model is served by the processor.")
    shown = {key: description[key] for key in keys if key in description and (description[key] or key not in _REMARKS)}
    return Group(
        title,
        tuple(
            (label(key), "not stated", False) if value in _NOT_STATED else (label(key), value, True)
            for key, value in shown.items()
        ),
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
