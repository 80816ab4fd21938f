"""Submission trees of any round from v4.1 on, in the closed, open and network divisions, read into the model.

Layouts (tools/submission/submission_checker/constants.py): until v5.1 measurements and compliance tests are trees of
their own beside results/; since v6.0 their files lie in the folder of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from cm4vllm import rules
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.results.endpoints import is_endpoints, read_endpoints_accuracy, read_endpoints_performance
from cm4vllm.results.findings import Severity
from cm4vllm.results.model import Accuracy, Performance, Result, Submission, System
from cm4vllm.results.reading import Reader, terms_of
from cm4vllm.rules import Division, Mode, Scenario

__all__ = ["read_submission", "read_tree", "submission_folders"]

#: The scenarios that a folder may be named after: those of language models, and LoadGen's remaining one.
_SCENARIOS = {name.lower(): name for name in (*Scenario, "MultiStream")}


def read_tree(root: Path, *, round_name: str = "") -> tuple[Submission, ...]:
    """Read all submissions of a tree; `root` holds the divisions, or is a division's or a submitter's folder.

    Without `round_name` the seeds of the logs tell the round. Raises what `submission_folders` does.
    """
    base, homes = submission_folders(root)
    return tuple(read_submission(base, home, round_name) for home in homes)


def submission_folders(root: Path) -> tuple[Path, list[Path]]:
    """Return the folder that holds the divisions, and the submitters' folders that `root` means.

    Raises UsageError when the folder does not exist, SubmissionError when there is no submission in it.
    """
    if not root.is_dir():
        raise UsageError(
            f"{root} is no folder" if root.exists() else f"the folder {root} does not exist",
            remedy="give the folder of a submission, which holds open/, closed/ or network/",
        )
    base, homes = _homes(root.resolve())
    if not homes:
        raise SubmissionError(
            f"{root} holds no submission",
            cause=f"no <division>/<submitter>/results below it; divisions: {', '.join(Division)}",
            remedy="give the folder that holds open/, closed/ or network/",
        )
    return base, homes


def _homes(root: Path) -> tuple[Path, list[Path]]:
    """Return the folder that holds the divisions, and the submitters' folders that are meant."""
    below = sorted(home for division in Division for home in root.glob(f"{division}/*") if (home / "results").is_dir())
    if below:
        return root, below
    if root.name in list(Division):
        return root.parent, sorted(home for home in root.iterdir() if (home / "results").is_dir())
    if root.parent.name in list(Division) and (root / "results").is_dir():
        return root.parents[1], [root]
    return root, []


def read_submission(base: Path, home: Path, round_name: str = "") -> Submission:
    """Read the submission in a submitter's folder; files are named from `base`."""
    reader = Reader(base)
    mapping = _mapping(reader, home)
    folders = list(_folders(reader, home))
    read = [_Folder(reader, home, mapping, *folder) for folder in folders]
    round_name = round_name or next(filter(None, (_round(one.performance) for one in read)), "")
    return Submission(
        root=base,
        round=round_name,
        division=home.parent.name,
        submitter=home.name,
        systems=tuple(_systems(reader, home)),
        results=tuple(one.result(round_name) for one in read),
        problems=tuple(reader.problems),
        mapping=mapping,
    )


def _mapping(reader: Reader, home: Path) -> Mapping[str, str]:
    path = home / "model_mapping.json"
    return {key: str(value) for key, value in reader.json(path).items()} if path.is_file() else {}


def _systems(reader: Reader, home: Path) -> Iterator[System]:
    for folder in sorted(path for path in (home / "results").iterdir() if path.is_dir()):
        path = home / "systems" / f"{folder.name}.json"
        yield System(name=folder.name, description=reader.json(path), file=reader.name(path))


def _folders(reader: Reader, home: Path) -> Iterator[tuple[Path, str]]:
    """Give the folder of each result, and its scenario."""
    for folder in sorted((home / "results").glob("*/*/*")):
        if not folder.is_dir():
            continue
        scenario = _SCENARIOS.get(folder.name.lower())
        if scenario is None:
            reader.problem("SCENARIO-UNKNOWN", f"{folder.name} is no scenario", folder, severity=Severity.WARNING)
        else:
            yield folder, scenario


class _Folder:
    """One result's folders: results/<system>/<model>/<scenario>, and where older rounds keep the rest."""

    def __init__(self, reader: Reader, home: Path, mapping: Mapping[str, str], folder: Path, scenario: str) -> None:
        self.reader, self.home, self.folder, self.scenario = reader, home, folder, scenario
        self.system, self.model = folder.parents[1].name, folder.parent.name
        self.benchmark = mapping.get(self.model, self.model)
        self.by_endpoints = is_endpoints(folder)
        self.performance = (
            read_endpoints_performance(reader, folder, scenario)
            if self.by_endpoints
            else reader.performance(folder / "performance" / "run_1", None)
        )

    def result(self, round_name: str) -> Result:
        """Return the result as one of that round: the limits and targets are those of the round."""
        terms = {mode: terms_of(round_name, self.benchmark, self.scenario, mode) for mode in Mode}
        performance = self.performance and replace(self.performance, terms=terms[Mode.PERFORMANCE])
        conf, readme = self._beside("user.conf"), self._beside("README.md")
        stated = self._measurements_file()
        files = {"measurements": stated, "user_conf": conf, "readme": readme}
        return Result(
            round=round_name,
            division=self.home.parent.name,
            submitter=self.home.name,
            system=self.system,
            model=self.model,
            benchmark=self.benchmark,
            scenario=self.scenario,
            folder=self.reader.name(self.folder),
            performance=performance,
            accuracy=self._accuracy(terms[Mode.ACCURACY]),
            measurements=self.reader.json(stated),
            user_conf=self.reader.text(conf) if conf else "",
            readme=self.reader.text(readme) if readme else "",
            files={name: self.reader.name(path) for name, path in files.items() if path},
            compliance=tuple(sorted(path.name for path in self._compliance() if path.is_dir())),
        )

    def _accuracy(self, terms: rules.Terms | None) -> Accuracy | None:
        if self.by_endpoints:
            return read_endpoints_accuracy(self.reader, self.folder, terms)
        return self.reader.accuracy(self.folder / "accuracy", terms)

    def _old(self, tree: str) -> Path:
        """Return this result's folder in one of the trees that rounds until v5.1 have beside results/."""
        return self.home / tree / self.folder.relative_to(self.home / "results")

    def _beside(self, name: str) -> Path | None:
        return next((path for path in (self.folder / name, self._old("measurements") / name) if path.is_file()), None)

    def _measurements_file(self) -> Path:
        """Return where the weights are stated: measurements.json, or <system>[_<implementation>][_<scenario>].json."""
        new, old = self.folder / "measurements.json", self._old("measurements")
        found = sorted(old.glob("*.json")) if old.is_dir() else []
        named = [path for path in found if path.stem == self.system or path.name.startswith(f"{self.system}_")]
        return named[0] if named and not new.is_file() else new

    def _compliance(self) -> Iterator[Path]:
        yield from self.folder.glob("TEST*")
        yield from self._old("compliance").glob("TEST*")


def _round(performance: Performance | None) -> str:
    return _rounds_by_seeds().get(performance.seeds, "") if performance else ""


@cache
def _rounds_by_seeds() -> dict[tuple[Any, ...], str]:
    found: dict[tuple[Any, ...], str] = {}
    for name in rules.round_names():
        seeds = rules.round_terms(name).seeds
        found[(seeds.qsl, seeds.sample_index, seeds.schedule)] = name
        found[(None, seeds.sample_index, seeds.schedule)] = name  # as the endpoints harness has them
    return found
