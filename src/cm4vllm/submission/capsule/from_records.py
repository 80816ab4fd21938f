"""A capsule made from a job's own records, and results as a capsule holds them.

These are without the records, logs and folders that only this machine has.
"""

import base64
import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.common.bounded_documents import read_json
from cm4vllm.common.errors import RunFailed
from cm4vllm.common.secrets.command_lines import published_words
from cm4vllm.records.accuracy import ACCURACY_FILE
from cm4vllm.records.campaign import CommandRecord
from cm4vllm.records.logs.answers import logged_data
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.records.published_server import server_words, servers_of
from cm4vllm.records.run import RunRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.software import SCRIPTS_FILE, SoftwareRecord, read_software
from cm4vllm.results.capsule import RUN_RECORDS, Capsule, CapsuleScript, CapsuleServer, unknown_fields
from cm4vllm.results.comparing.comparison import ANSWER_BYTES
from cm4vllm.results.comparing.uncertainty import with_intervals
from cm4vllm.results.figures import Figure, Figures, Source
from cm4vllm.results.log_folders import SCORE_UNITS
from cm4vllm.results.model import Accuracy, Conditions, Performance, Result, Submission
from cm4vllm.results.recorded_power import energy_figures, power_figures
from cm4vllm.submission.run_files import without_folder

_EXPECTED = {
    "program": ("version", "commit", "url"),
    "model": ("sha256", "revision"),
    "dataset": ("sha256",),
    "server": ("software", "version", "command"),
    "results": ("logs",),
}


def capsule_of_runs(submission: Submission, results: list[Result]) -> Capsule:
    """Make the capsule of results of one model on one system that a job measured."""
    run, campaign, out = results[0].run, submission.campaign, submission.root
    software, settings = read_software(out), run.settings
    model, dataset = settings.model, settings.dataset
    hosts = servers_of(out)
    made = Capsule(
        made_from=RUN_RECORDS,
        round=settings.round,
        division=results[0].division,
        submitter=results[0].submitter,
        system=results[0].system,
        benchmark=settings.benchmark,
        rehearsal=settings.rehearsal,
        notice=run.notice,
        program=program_of(campaign, software),
        command=published_words(shlex.split(campaign.command), hosts=hosts) if campaign else [],
        scripts=noted_scripts(out),
        packages=software.packages if software else run.versions,
        contents=software.contents if software else {},
        model={
            "name": model.name,
            "source": without_folder(model.source, model.path),
            "sha256": model.sha256,
            "hub": model.recipe.get("hub", ""),
            "revision": model.recipe.get("revision", ""),
            "weight_data_types": model.weight_data_types,
            "weight_transformations": model.weight_transformations,
            "quantization": model.quantization.scheme if model.quantization else "",
        },
        dataset={
            "name": dataset.name,
            "source": without_folder(dataset.source, dataset.path),
            "sha256": dataset.sha256,
            "source_sha256": dataset.source_sha256,
            "samples": str(dataset.samples),
        },
        server=served_by(settings.server, model.path, software, hosts),
        machine=description_of(submission, results[0].system),
        results=[publishable(result) for result in results],
    )
    return msgspec.structs.replace(made, unknown=unknown_fields(made, expected=_EXPECTED))


def program_of(command: CommandRecord | None, software: SoftwareRecord | None) -> dict[str, str]:
    """Return the program of a job by the record of its command and of its software, each None where it is missing."""
    return {
        "name": "cm4vllm",
        "version": command.cm4vllm_version if command else "",
        "commit": command.commit if command else "",
        "url": software.url if software else "",
        "files_sha256": command.program_sha256 if command else "",
        "cm": command.cm_version if command else "",
        "python": software.python if software else "",
    }


def noted_scripts(out: Path) -> list[CapsuleScript]:
    """Return the scripts of CM that took part in a job with these results, where it has noted them."""
    path = out / "system" / SCRIPTS_FILE
    return scripts_of(read_json(path)) if path.is_file() else []


def scripts_of(noted: Any) -> list[CapsuleScript]:
    """Return the scripts that a cm-version-info.json lists, each once, in its order."""
    scripts = [
        CapsuleScript(
            alias=str(detail.get("script_alias", "")),
            uid=str(detail.get("script_uid", "")),
            variations=str(detail.get("script_variations", "")),
            version=str(detail.get("version", "")),
        )
        for entries in noted.values()
        for entry in entries
        for detail in entry.values()
    ]
    return list({msgspec.json.encode(script): script for script in scripts}.values())


def served_by(server: ServerRecord, model_path: str, software: SoftwareRecord | None, hosts: set[str]) -> CapsuleServer:
    """Return the server with variables for the folders of this machine, as a README has it."""
    env, command = server_words(server, model_path, hosts)
    return CapsuleServer(
        software=server.software,
        version=server.version,
        command=command,
        options={
            name: value
            for name, value in server.options.items()
            if not command and not (isinstance(value, str) and "/" in value)
        },
        env=env,
        endpoints=len(server.endpoints),
        max_model_len=server.max_model_len,
        packages=software.server_packages if software and software.server_packages else server.packages,
        contents=software.server_contents if software else {},
        container={
            "container image": server.container.image,
            "container image's digest": server.container.digest,
            "container engine": f"{server.container.engine} {server.container.engine_version}",
        }
        if server.container
        else {},
    )


def description_of(submission: Submission, system: str) -> dict[str, Any]:
    """Return the description of a system without the names of the submission; empty if there is none."""
    described = submission.system(system)
    return {
        key: value
        for key, value in (described.description if described else {}).items()
        if key not in ("submitter", "division")
    }


def publishable(result: Result) -> Result:
    """Return a result with the intervals of its figures and the conditions of its runs in place of their records."""
    return Result(
        round=result.round,
        division=result.division,
        submitter=result.submitter,
        system=result.system,
        model=result.model,
        benchmark=result.benchmark,
        scenario=result.scenario,
        folder=result.folder,
        performance=result.performance and _performance(result.performance, result.inferred_from),
        accuracy=result.accuracy and _accuracy(result.accuracy),
        measurements=result.measurements,
        user_conf=result.user_conf,
    )


def _performance(part: Performance, inferred_from: str) -> Performance:
    figures = () if inferred_from else (*with_intervals(part).values(), *power_figures(part), *energy_figures(part))
    return Performance(
        log=part.log,
        loadgen_scenario=part.loadgen_scenario,
        loadgen_version=part.loadgen_version,
        loadgen_valid=part.valid,
        loadgen_reasons=part.reasons,
        figures=Figures(figures),
        settings=_plain_settings(part.settings),
        conditions=replace(_conditions(part.run), doubts=part.client_doubts),
        terms=part.terms,
        harness=part.harness,
    )


def _accuracy(part: Accuracy) -> Accuracy:
    conditions = _conditions(part.run)
    logs = conditions.logs or ({ACCURACY_LOG: part.hash} if part.hash else {})
    return Accuracy(
        log=part.log,
        figures=_scores(part),
        settings=_plain_settings(part.settings),
        loadgen_version=part.loadgen_version,
        conditions=replace(conditions, logs=logs, answers=_answer_digests(part.folder / ACCURACY_LOG)),
        terms=part.terms,
    )


def _conditions(run: RunRecord | None) -> Conditions:
    if run is None:
        return Conditions()
    settings = run.settings
    generation = msgspec.to_builtins(settings.terms.generation)
    return Conditions(
        sampling={
            **{key: value for key, value in generation.items() if key != "source"},
            "max_tokens": settings.max_tokens,
            "min_tokens": settings.min_tokens,
        },
        client={
            "samples": settings.samples,
            "max_in_flight": settings.max_in_flight,
            "stream_interval": settings.stream_interval,
            "worker_processes": sum(process.name.startswith("worker") for process in run.client.processes),
            "api": str(settings.server.api),
            "target_qps": settings.target_qps,
            "target_qps_source": settings.target_qps_source,
        },
        logs=run.files,
    )


def _plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return LoadGen's settings without its report of when it ran, and without lists."""
    return {
        key: value
        for key, value in sorted(settings.items())
        if isinstance(value, str | int | float | bool) and not key.startswith(("test_datetime", "power_"))
    }


def _scores(part: Accuracy) -> Figures:
    """Return the scores, from accuracy.json (all digits) if there is one."""
    if part.record is None:
        return part.figures
    where = part.beside(ACCURACY_FILE)
    return Figures(
        Figure(score.label, score.value, SCORE_UNITS.get(score.label, ""), Source(where, f"scores: {score.label}"))
        for score in part.record.scores
    )


def _answer_digests(log: Path) -> str:
    """Return the digests of the answers of an accuracy log, empty where it is cut or missing: see Conditions."""
    try:
        answers = dict(logged_data(log))
    except RunFailed:
        return ""
    hexadecimal = (answers[index].hex().upper().encode() for index in sorted(answers))
    return base64.b64encode(b"".join(hashlib.sha256(text).digest()[:ANSWER_BYTES] for text in hexadecimal)).decode()
