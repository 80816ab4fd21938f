"""A capsule beside results: its figures with their recorded intervals, and its settings by the names of a result's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cm4vllm.common.errors import UsageError
from cm4vllm.report.compared_settings import NOT_STATED, Group, Setting, as_text, loadgen_settings, server_settings
from cm4vllm.results.model import Accuracy, Figure, Figures, Performance, Result, Source
from cm4vllm.results.reading import SCORE_UNITS
from cm4vllm.results.uncertainty import Basis, Estimate
from cm4vllm.rules import Division, Mode, Scenario, Terms, terms
from cm4vllm.submission.capsule.rerun_file import RUN_RECORDS, Capsule, CapsuleRun, read_capsule

__all__ = ["NO_INTERVAL", "CapsuleSide", "open_capsule"]

#: Why a capsule's figure has no interval, and its result no reason.
NO_INTERVAL = "the capsule records no interval of it"
_NO_REASON = "the capsule does not record why"


@dataclass(frozen=True)
class CapsuleSide:
    """A capsule: its results, and by scenario the intervals that it records."""

    capsule: Capsule
    results: Mapping[tuple[str, str], Result]
    estimates: Mapping[str, Mapping[str, Estimate]]

    def settings(self, scenario: str, packages: Iterable[str]) -> dict[Setting, str]:
        """Return the settings of a scenario; of its packages those that are `packages`, where any are named."""
        one = self.capsule
        rows = [*_measured(one), *((Group.SYSTEM, name.replace("_", " "), text) for name, text in one.machine.items())]
        rows += _server(one)
        for run in one.runs:
            if (run.scenario, run.mode) == (scenario, Mode.PERFORMANCE):
                rows += _client(run)
        known = {_canonical(name): text for name, text in _packages(one).items()}
        other = "" if one.packages and one.server.packages else NOT_STATED
        rows += ((Group.PACKAGES, name, known.get(_canonical(name), other)) for name in packages)
        if not packages:
            rows += ((Group.PACKAGES, name, text) for name, text in one.server.packages.items())
        return {(group, name): as_text(value) for group, name, value in rows if value not in ("", None)}


def open_capsule(path: Path) -> CapsuleSide:
    """Read a capsule (rerun.yaml). Raises UsageError where it is none, or holds no run."""
    capsule = read_capsule(path)
    scenarios = dict.fromkeys(run.scenario for run in capsule.runs)
    if not scenarios:
        raise UsageError(f"{path} holds no run", remedy="give a capsule of a job that has measured")
    results = {(capsule.benchmark, scenario): _result(capsule, scenario, path) for scenario in scenarios}
    estimates = {
        run.scenario: {
            name: Estimate(one.value, one.low, one.high, Basis.SAMPLES)
            for name, one in run.figures.items()
            if one.low is not None and one.high is not None
        }
        for run in capsule.runs
        if run.mode == Mode.PERFORMANCE
    }
    return CapsuleSide(capsule, results, estimates)


def _result(capsule: Capsule, scenario: str, path: Path) -> Result:
    runs = {run.mode: run for run in capsule.runs if run.scenario == scenario}
    performance, accuracy = runs.get(Mode.PERFORMANCE), runs.get(Mode.ACCURACY)
    return Result(
        round=capsule.round,
        division=capsule.division,
        submitter=capsule.submitter,
        system=capsule.system,
        model=capsule.model.get("name", ""),
        benchmark=capsule.benchmark,
        scenario=scenario,
        folder=path.name,
        performance=_performance(capsule, performance, path) if performance else None,
        accuracy=_accuracy(accuracy, path) if accuracy else None,
    )


def _performance(capsule: Capsule, run: CapsuleRun, path: Path) -> Performance:
    return Performance(
        folder=path,
        log=path.name,
        loadgen_scenario=run.scenario,
        loadgen_version=run.loadgen_version,
        loadgen_valid=bool(run.valid),
        loadgen_reasons=() if run.valid else (_NO_REASON,),
        errors=(),
        warnings=(),
        figures=Figures(
            Figure(name, one.value, one.unit, Source(path.name, f"runs.{run.name}.figures.{name}"))
            for name, one in run.figures.items()
        ),
        settings=run.settings,
        terms=_terms(capsule, run),
    )


def _terms(capsule: Capsule, run: CapsuleRun) -> Terms | None:
    """Return what the rules say of a run; None where they do not know it."""
    try:
        return terms(
            capsule.round,
            capsule.benchmark,
            Scenario.parse(run.scenario),
            Mode.parse(run.mode),
            Division.parse(capsule.division),
        )
    except UsageError:
        return None


def _accuracy(run: CapsuleRun, path: Path) -> Accuracy:
    return Accuracy(
        folder=path,
        log=path.name,
        figures=Figures(
            Figure(label, value, SCORE_UNITS.get(label, ""), Source(path.name, f"runs.{run.name}.scores.{label}"))
            for label, value in run.scores.items()
        ),
    )


def _measured(one: Capsule) -> Iterator[tuple[Group, str, Any]]:
    for name in ("round", "division", "submitter", "system"):
        yield Group.MEASURED, name, getattr(one, name)
    for name, value in (
        ("model", one.model.get("name")),
        ("rehearsal", "yes" if one.rehearsal else "no"),
        ("model's SHA-256", one.model.get("sha256")),
        ("weight data types", one.model.get("weight_data_types")),
        ("weight transformations", one.model.get("weight_transformations")),
        ("dataset", one.dataset.get("name")),
        ("dataset's SHA-256", one.dataset.get("sha256")),
    ):
        yield Group.MEASURED, name, value


def _server(one: Capsule) -> Iterator[tuple[Group, str, Any]]:
    server = one.server
    started = ("yes" if server.command else "no") if one.made_from == RUN_RECORDS else NOT_STATED
    yield Group.SERVER, "server", f"{server.software} {server.version}".strip()
    yield Group.SERVER, "started by cm4vllm", started
    yield Group.SERVER, "max_model_len", NOT_STATED
    yield from server_settings(server.env if server.command else {}, server.command)


def _packages(one: Capsule) -> dict[str, str]:
    """Return all packages that are stated, with their versions; those of the server before those of the program."""
    python, name = one.program.get("python", "").partition(" ")[0], one.program.get("name", "")
    return {"python": python, name: one.program.get("version", ""), **one.packages, **one.server.packages}


def _client(run: CapsuleRun) -> Iterator[tuple[Group, str, Any]]:
    yield from loadgen_settings(run.settings, run.loadgen_version)
    yield Group.MEASURED, "samples", run.client.get("samples")
    for name in ("max_tokens", "min_tokens"):
        yield Group.CLIENT, name, run.sampling.get(name)
    for name in ("max_in_flight", "stream_interval"):
        yield Group.CLIENT, name, run.client.get(name)


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-")
