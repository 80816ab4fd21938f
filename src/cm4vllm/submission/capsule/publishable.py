"""Results as a capsule holds them: without the records, logs and folders that only this machine has."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cm4vllm.accuracy.accuracy_record import ACCURACY_FILE
from cm4vllm.common.errors import RunFailed
from cm4vllm.compliance.logged_answers import logged_data
from cm4vllm.loadgen.logs.run_logs import ACCURACY_LOG
from cm4vllm.loadgen.records import RunRecord
from cm4vllm.results.comparison import ANSWER_BYTES
from cm4vllm.results.energy_figures import energy_figures
from cm4vllm.results.figures import Figure, Figures, Source
from cm4vllm.results.log_folders import SCORE_UNITS
from cm4vllm.results.model import Accuracy, Conditions, Performance, Result
from cm4vllm.results.recorded_power import power_figures
from cm4vllm.results.uncertainty import with_intervals

__all__ = ["publishable"]


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
        performance=result.performance and _performance(result.performance),
        accuracy=result.accuracy and _accuracy(result.accuracy),
        measurements=result.measurements,
        user_conf=result.user_conf,
    )


def _performance(part: Performance) -> Performance:
    return Performance(
        log=part.log,
        loadgen_scenario=part.loadgen_scenario,
        loadgen_version=part.loadgen_version,
        loadgen_valid=part.valid,
        loadgen_reasons=part.reasons,
        figures=Figures([*with_intervals(part).values(), *power_figures(part), *energy_figures(part)]),
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
