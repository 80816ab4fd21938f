"""The capsule of a curve of MLPerf Endpoints: from a job's results, from run folders, or from a bundle of anyone."""

import dataclasses
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.host_addresses import host_of
from cm4vllm.common.records import read_optional
from cm4vllm.common.secrets.command_lines import published_words
from cm4vllm.records.campaign import COMMAND_FILE, CommandRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.software import read_software
from cm4vllm.results.capsule import CURVE, RUN_RECORDS, Capsule, CapsuleServer, unknown_fields
from cm4vllm.results.endpoints.curves import PER_USER, Curve, Point
from cm4vllm.results.endpoints.endpoints_harness import endpoints_performance, part
from cm4vllm.results.figures import Figure, Figures
from cm4vllm.results.model import Accuracy, Conditions, Performance, Result
from cm4vllm.rules import ExecutionMode
from cm4vllm.submission.capsule.from_records import noted_scripts, program_of, served_by

_EXPECTED = {
    "program": ("version", "commit"),
    "model": ("name", "sha256"),
    "dataset": ("name", "sha256"),
    "server": ("software", "version", "command"),
    "results": ("sampling", "client"),
}
_NO_INTERVAL = "one figure of one run: the reference client keeps no interval"


def capsule_of_curve(out: Path, curve: Curve) -> Capsule:
    """Make the capsule of a curve; `out` is the folder of a job's results, or of anything else that holds the curve.

    Raises SubmissionError where the record of a point does not say which server answered it.
    """
    first, software = curve.points[0], read_software(out)
    command = read_optional(out / COMMAND_FILE, CommandRecord)
    servers = [_server_record(point) for point in curve.points if point.record]
    hosts = {host_of(endpoint) for server in servers for endpoint in server.endpoints}
    rehearsal = curve.benchmark is None or (command is not None and command.execution_mode is ExecutionMode.TEST)
    made = Capsule(
        made_from=RUN_RECORDS if servers else "run folders or a bundle",
        round=f"{CURVE} {curve.rules.version}",
        division=_text(first.declared, "division"),
        submitter=_text(first.system, "submitter_org_names"),
        system=_system(first),
        benchmark=curve.model,
        rehearsal=rehearsal,
        notice=REHEARSAL_NOTICE if rehearsal else "",
        program=program_of(command, software),
        command=published_words(shlex.split(command.command), hosts=hosts) if command else [],
        scripts=noted_scripts(out),
        packages=software.packages if software else {},
        contents=software.contents if software else {},
        model=_model(first),
        dataset={
            "name": _text(first.declared, "dataset"),
            "source": _text(first.declared, "dataset_link"),
            "sha256": _text(first.record, "dataset_sha256"),
            "samples": str(part(first.record, "benchmark").get("samples") or ""),
        },
        # Of the first point: the options of further ones stand in the command of the job.
        server=served_by(servers[0], "", software, hosts)
        if servers
        else CapsuleServer(software=_text(first.system, "serving_framework")),
        machine=_machine(first.system),
        results=[_result(curve, point) for point in curve.points],
    )
    return msgspec.structs.replace(made, unknown=unknown_fields(made, expected=_EXPECTED))


def _server_record(point: Point) -> ServerRecord:
    """Return the record of the server that answered a point. Raises SubmissionError without one."""
    try:
        return msgspec.convert(point.record.get("server"), ServerRecord, str_keys=True)
    except msgspec.ValidationError as error:
        raise SubmissionError(
            f"the record of {point.name} does not say which server answered it",
            cause=str(error),
            remedy="measure the point again with this version of cm4vllm",
        ) from error


def _system(point: Point) -> str:
    """Return the name of the system as the official builder names its folder."""
    return re.sub(r"[^\w.-]+", "_", _text(point.system, "system_name"))


def _model(point: Point) -> dict[str, str]:
    """Return what a point states of its model."""
    return {
        "name": str(point.record.get("model") or point.declared.get("model_name") or ""),
        "source": _text(point.declared, "link_to_model"),
        "sha256": _text(point.record, "model_sha256"),
        "weight_data_types": _text(point.declared, "model_precision"),
    }


def _machine(system: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of the system and of its first kind of node, without the names of the submission."""
    nodes = system.get("node_types")
    node = nodes[0] if isinstance(nodes, list) and nodes and isinstance(nodes[0], dict) else {}
    return {
        key: value
        for key, value in {**system, **node}.items()
        if key not in ("submitter_org_names", "division", "tps_utilization") and isinstance(value, str | int | float)
    }


def _result(curve: Curve, point: Point) -> Result:
    """Return a point of a curve as a result of a capsule."""
    name = "Offline" if point.offline == "dedicated" else f"concurrency {point.concurrency or 0:,}"
    return Result(
        round=f"{CURVE} {curve.rules.version}",
        division=_text(point.declared, "division"),
        submitter=_text(point.system, "submitter_org_names"),
        system=_system(point),
        model=_model(point)["name"],
        benchmark=curve.model,
        scenario=name,
        folder=point.name,
        performance=_performance(point, name) if point.summary else None,
        accuracy=Accuracy(
            log=point.scores[0].source.file,
            figures=Figures(Figure(score.metric, score.value, "", score.source) for score in point.scores),
            settings={"accuracy_sample_count": point.scores[0].samples},
            conditions=_conditions(point),
        )
        if point.scores
        else None,
        measurements={
            "steady_state": point.steady_state.get("status", ""),
            "samples_issued": point.samples_issued or "",
            "rules": " ".join(_text(part(point.record, "rules"), key) for key in ("dated", "sha256")).strip(),
            "server_options": _text(point.system, "config_summary"),
        },
    )


def _performance(point: Point, name: str) -> Performance:
    made = endpoints_performance(point.summary, point.config, f"{point.name}/result_summary.json", name)
    figures = [*made.figures.values(), *(figure for name, figure in point.figures.items() if name == PER_USER)]
    commit = _text(point.summary, "git_sha")
    return dataclasses.replace(
        made,
        loadgen_version=f"endpoints-{commit}" if commit else made.loadgen_version,
        figures=Figures(dataclasses.replace(figure, why_no_interval=_NO_INTERVAL) for figure in figures),
        conditions=_conditions(point),
    )


def _conditions(point: Point) -> Conditions:
    """Return sampling, load and client settings of the requests, from the client's own configuration file."""
    model, settings = part(point.config, "model_params"), part(point.config, "settings")
    pattern = part(settings, "load_pattern")
    return Conditions(
        sampling={
            key: value
            for key, value in model.items()
            if key not in ("name", "tokenizer_name", "seed") and isinstance(value, str | int | float | bool)
        },
        client={
            "load_pattern": pattern.get("type", ""),
            "target_concurrency": pattern.get("target_concurrency", ""),
            "worker_processes": part(settings, "client").get("num_workers", ""),
            "api": part(point.config, "endpoint_config").get("api_type", ""),
        },
    )


def _text(values: Mapping[str, Any], key: str) -> str:
    """Return a value as text; empty where it is missing."""
    return str(values.get(key) or "")
