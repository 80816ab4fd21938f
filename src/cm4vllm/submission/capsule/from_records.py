"""A capsule made from a job's own records."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.accuracy.records import ACCURACY_FILE, AccuracyRecord
from cm4vllm.common.command_lines import published_words
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import bytes_of, json_of
from cm4vllm.common.records import read_record
from cm4vllm.hardware.description import KEYS, NETWORK_KEYS
from cm4vllm.loadgen.client_doubts import client_doubts
from cm4vllm.loadgen.logs import ACCURACY_LOG
from cm4vllm.loadgen.records import RunRecord
from cm4vllm.loadgen.sample_times import read_sample_times
from cm4vllm.results.model import Performance, Result
from cm4vllm.results.run_folders import SYSTEM_FILE, chosen_folder, read_runs
from cm4vllm.results.uncertainty import from_samples
from cm4vllm.serving.records import ServerRecord
from cm4vllm.submission.capsule.rerun_file import (
    ANSWER_BYTES,
    RUN_RECORDS,
    Capsule,
    CapsuleFigure,
    CapsuleRun,
    CapsuleScript,
    CapsuleServer,
    unknown_fields,
)
from cm4vllm.submission.inspection import servers_of
from cm4vllm.submission.measurements import without_folder
from cm4vllm.submission.software import SCRIPTS_FILE, SoftwareRecord, read_software

__all__ = ["answer_digests", "capsule_of_results", "machine_of", "plain_settings", "scripts_of"]

#: Keys of a system's description that are the submission's, not the machine's.
_NOT_OF_THE_MACHINE = {
    "submitter",
    "division",
    "status",
    "hw_notes",
    "sw_notes",
    "system_type",
    "system_type_detail",
    "framework",
}
_EXPECTED = {
    "program": ("version", "commit", "url"),
    "model": ("sha256", "revision"),
    "dataset": ("sha256",),
    "server": ("software", "version", "command"),
    "machine": (),
    "runs": ("logs",),
}


class _Entry(msgspec.Struct, frozen=True):
    qsl_idx: int
    data: str


def capsule_of_results(out: Path) -> Capsule:
    """Make the capsule of the results in `out`. Raises SubmissionError where they hold no campaign's runs."""
    folder = chosen_folder(out)
    submission = read_runs(out, folder)
    campaign = submission.campaign
    if campaign is None or not submission.runs:
        raise SubmissionError(
            f"no capsule of {out}",
            cause="it holds no record of a campaign with its runs",
            remedy="run the job again into this folder",
        )
    run = submission.runs[0]
    software, settings = read_software(out), run.settings
    hosts = servers_of(out)
    made = Capsule(
        made_from=RUN_RECORDS,
        round=settings.round,
        division=str(campaign.division),
        submitter=campaign.submitter,
        system=folder.parent.name,
        benchmark=settings.benchmark,
        rehearsal=settings.rehearsal,
        program={
            "name": "cm4vllm",
            "version": campaign.cm4vllm_version,
            "commit": campaign.commit,
            "url": software.url if software else "",
            "files_sha256": campaign.program_sha256,
            "cm": campaign.cm_version,
            "python": software.python if software else "",
        },
        command=published_words(shlex.split(campaign.command), hosts=hosts),
        scripts=_scripts(out),
        packages=software.packages if software else {},
        contents=software.contents if software else {},
        model=_model(run),
        dataset=_dataset(run),
        server=_server(settings.server, settings.model.path, software, hosts),
        machine=_machine(out),
        runs=[_run(part, result) for result in submission.results for part in _parts(result)],
    )
    return msgspec.structs.replace(made, unknown=unknown_fields(made, expected=_EXPECTED))


def _parts(result: Result) -> list[tuple[RunRecord, Path, Performance | None]]:
    found: list[tuple[RunRecord, Path, Performance | None]] = []
    if result.accuracy and result.accuracy.run:
        found.append((result.accuracy.run, result.accuracy.folder, None))
    if result.performance and result.performance.run:
        found.append((result.performance.run, result.performance.folder, result.performance))
    return found


def _run(part: tuple[RunRecord, Path, Performance | None], result: Result) -> CapsuleRun:
    record, folder, performance = part
    settings, terms = record.settings, record.settings.terms
    generation = {key: value for key, value in msgspec.to_builtins(terms.generation).items() if key != "source"}
    used = performance.settings if performance else result.accuracy.settings if result.accuracy else {}
    scores = folder / ACCURACY_FILE
    return CapsuleRun(
        scenario=str(settings.scenario),
        mode=str(settings.mode),
        loadgen_version=record.loadgen_version.partition(" ")[0],
        user_conf=settings.user_conf,
        seeds=msgspec.to_builtins(terms.seeds),
        settings=plain_settings(used),
        sampling={**generation, "max_tokens": settings.max_tokens, "min_tokens": settings.min_tokens},
        client={
            "samples": settings.samples,
            "max_in_flight": settings.max_in_flight,
            "stream_interval": settings.stream_interval,
            "api": str(settings.server.api),
            "target_qps": settings.target_qps,
            "target_qps_source": settings.target_qps_source,
        },
        valid=performance.valid if performance else None,
        figures=_figures(folder, performance),
        scores={score.label: score.value for score in read_record(scores, AccuracyRecord).scores}
        if scores.is_file()
        else {},
        doubts=client_doubts(record) if performance else [],
        logs=record.files,
        answers=answer_digests(folder / ACCURACY_LOG) if settings.logs_answers else "",
    )


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return LoadGen's settings without its report of when it ran, and without lists."""
    return {
        key: value
        for key, value in sorted(settings.items())
        if isinstance(value, str | int | float | bool) and not key.startswith(("test_datetime", "power_"))
    }


def _figures(folder: Path, performance: Performance | None) -> dict[str, CapsuleFigure]:
    if performance is None:
        return {}
    rows, found = read_sample_times(folder), {}
    for name in ("tokens_per_second", "samples_per_second", "ttft_p99", "tpot_p99"):
        if (figure := performance.figures.get(name)) is not None:
            estimate = from_samples(figure, rows, seed=0)[0] if rows is not None and len(rows) else None
            found[name] = CapsuleFigure(
                value=float(figure.value),
                unit=figure.unit,
                low=estimate.low if estimate else None,
                high=estimate.high if estimate else None,
            )
    return found


def answer_digests(log: Path) -> str:
    """Return the digests of the answers of an accuracy log, empty where it is cut or missing: see CapsuleRun."""
    try:
        entries = msgspec.json.decode(bytes_of(log), type=list[_Entry])
    except (OSError, ValueError):
        return ""
    found = {entry.qsl_idx: hashlib.sha256(entry.data.upper().encode()).digest()[:ANSWER_BYTES] for entry in entries}
    return base64.b64encode(b"".join(found[index] for index in sorted(found))).decode()


def _scripts(out: Path) -> list[CapsuleScript]:
    path = out / "system" / SCRIPTS_FILE
    return scripts_of(json_of(bytes_of(path))) if path.is_file() else []


def scripts_of(noted: Any) -> list[CapsuleScript]:
    """Return the scripts that a cm-version-info.json lists, each once, in its order."""
    found = [detail for entries in noted.values() for entry in entries for detail in entry.values()]
    scripts = [
        CapsuleScript(
            alias=str(one.get("script_alias", "")),
            uid=str(one.get("script_uid", "")),
            variations=str(one.get("script_variations", "")),
            version=str(one.get("version", "")),
        )
        for one in found
    ]
    return list({msgspec.json.encode(one): one for one in scripts}.values())


def _model(run: RunRecord) -> dict[str, str]:
    model = run.settings.model
    return {
        "name": model.name,
        "source": without_folder(model.source, model.path),
        "sha256": model.sha256,
        "hub": model.recipe.get("hub", ""),
        "revision": model.recipe.get("revision", ""),
        "weight_data_types": model.weight_data_types,
        "weight_transformations": model.weight_transformations,
        "quantization": model.quantization.scheme if model.quantization else "",
    }


def _dataset(run: RunRecord) -> dict[str, str]:
    dataset = run.settings.dataset
    return {
        "name": dataset.name,
        "source": without_folder(dataset.source, dataset.path),
        "sha256": dataset.sha256,
        "source_sha256": dataset.source_sha256,
        "samples": str(dataset.samples),
    }


def _server(server: ServerRecord, model_path: str, software: SoftwareRecord | None, hosts: set[str]) -> CapsuleServer:
    """Return the server with variables for the folders of this machine, as a README has it."""
    names = {model_path: "MODEL", str(Path(__file__).parents[1]): "CM4VLLM"}
    env = [f"{name}={value}" for name, value in sorted(server.env.items())]
    argv = [Path(server.argv[0]).name, *server.argv[1:]] if server.argv else []
    words = published_words([*env, *argv], names, hosts)
    return CapsuleServer(
        software=server.software,
        version=server.version,
        command=words[len(env) :],
        env=dict(word.split("=", 1) for word in words[: len(env)]),
        endpoints=len(server.endpoints),
        packages=software.server_packages if software and software.server_packages else server.packages,
        contents=software.server_contents if software else {},
    )


def _machine(out: Path) -> dict[str, str]:
    path = out / SYSTEM_FILE
    return machine_of(json_of(bytes_of(path)) if path.is_file() else {})


def machine_of(described: Mapping[str, Any]) -> dict[str, str]:
    """Return what a system's description says of the machine."""
    return {
        key: str(described[key]) for key in KEYS + NETWORK_KEYS if key in described and key not in _NOT_OF_THE_MACHINE
    }
