"""Submission trees of any round from v4.1 on, in the closed, open and network divisions, read into the model.

The places of their files are those of all layouts of the rules: a tree may mix them. Many submissions are read by
several processes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from cm4vllm import rules
from cm4vllm.common.checking.checks import reason_of
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.processors import usable_processors
from cm4vllm.common.programs.processes import die_with_parent, spawned_safely
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.results.endpoints.endpoints_harness import (
    is_endpoints,
    read_endpoints_accuracy,
    read_endpoints_performance,
)
from cm4vllm.results.file_listing import Listing, list_files
from cm4vllm.results.log_folders import Reader, reason_without_rules, terms_of
from cm4vllm.results.model import Performance, Result, Submission, System
from cm4vllm.rules import Division, Mode, Scenario, TreeLayout, tree_layouts

T = TypeVar("T")

#: The most bytes of a page beside a result: the checks read it many times.
_MAX_PAGE = 2**20
#: The scenarios that a folder may be named after.
_SCENARIOS = {name.lower(): name for name in Scenario}
#: From this number of submissions on they are read by several processes, which take half a second to start.
MANY = 6
#: While one process waits for the disk, another one of its core computes.
_PER_CORE = 2


def read_tree(root: Path, *, round_name: str = "") -> tuple[Submission, ...]:
    """Read all submissions of a tree; `root` holds the divisions, or is a division's or a submitter's folder.

    Without `round_name` the round is that of most logs' seeds. Raises what `submission_folders` does.
    """
    base, homes = submission_folders(root)
    return tuple(read_submission(base, home, round_name) for home in homes)


def submission_folders(root: Path) -> tuple[Path, list[Path]]:
    """Return the folder that holds the divisions, and the submitters' folders that `root` means.

    Raises UsageError when the folder does not exist, SubmissionError when there is no submission in it.
    """
    if not root.is_dir():
        raise UsageError(
            f"{root} is a file, not a folder" if root.exists() else f"the folder {root} does not exist",
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


def read_submission(base: Path, home: Path, round_name: str = "", listing: Listing | None = None) -> Submission:
    """Read the submission in a submitter's folder; files are named from `base`. `listing` is that of its files."""
    reader = Reader(base)
    listing = listing or list_files(base, home)
    for folder, why in listing.unreadable:
        reader.problem(
            "FILE-UNREADABLE", "the folder cannot be listed, and nothing in it is checked", base / folder, value=why
        )
    mapping = _mapping(reader, home)
    systems = _readable(reader, home / "systems", lambda: tuple(_systems(reader, home))) or ()
    opened = [
        _readable(reader, folder, partial(_Folder, reader, home, mapping, folder, scenario))
        for folder, scenario in (_readable(reader, home / "results", lambda: tuple(_folders(reader, home))) or ())
    ]
    read = [result for result in opened if result is not None]
    rounds = Counter(filter(None, (round_of(result.performance) for result in read)))
    round_name = round_name or max(rounds, key=lambda name: (rounds[name], name), default="")
    results = [_readable(reader, part.folder, partial(part.result, round_name)) for part in read]
    return Submission(
        root=base,
        round=round_name,
        division=home.parent.name,
        submitter=home.name,
        systems=systems,
        results=tuple(result for result in results if result is not None),
        problems=tuple(reader.problems),
        mapping=mapping,
        listing=listing,
    )


def _readable(reader: Reader, place: Path, read: Callable[[], T]) -> T | None:
    """Return the part that `read` reads; None, and a problem, where it raises: all else is still read."""
    try:
        return read()
    except Exception as error:  # a tree may hold anything, and each thing that fails is reported
        reader.problem("FILE-UNREADABLE", f"{place.name} cannot be read", place, value=reason_of(error))
        return None


def _mapping(reader: Reader, home: Path) -> Mapping[str, str]:
    path = home / "model_mapping.json"
    return {key: str(value) for key, value in reader.json(path).items()} if path.is_file() else {}


def _systems(reader: Reader, home: Path) -> Iterator[System]:
    for folder in sorted(path for path in (home / "results").iterdir() if path.is_dir()):
        path = home / "systems" / f"{folder.name}.json"
        yield System(name=folder.name, description=reader.json(path), file=reader.name(path))


def _folders(reader: Reader, home: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folder of each result, and its scenario."""
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
        self.mapping = mapping
        self.by_endpoints = is_endpoints(folder)
        self.performance = (
            read_endpoints_performance(reader, folder, scenario)
            if self.by_endpoints
            else reader.performance(folder / "performance" / "run_1", None)
        )

    def result(self, round_name: str) -> Result:
        """Return the result as one of that round: the limits and targets are those of the round."""
        benchmark = rules.benchmark_of(round_name, self.model, self.mapping)
        terms = {mode: terms_of(round_name, benchmark, self.scenario, mode) for mode in Mode}
        performance = self.performance and replace(self.performance, terms=terms[Mode.PERFORMANCE])
        conf, readme = self._file_beside("user.conf"), self._file_beside("README.md")
        stated = self._measurements_file()
        files = {"measurements": stated, "user_conf": conf, "readme": readme}
        return Result(
            round=round_name,
            division=self.home.parent.name,
            submitter=self.home.name,
            system=self.system,
            model=self.model,
            benchmark=benchmark,
            scenario=self.scenario,
            folder=self.reader.name(self.folder),
            performance=performance,
            accuracy=read_endpoints_accuracy(self.reader, self.folder, terms[Mode.ACCURACY])
            if self.by_endpoints
            else self.reader.accuracy(self.folder / "accuracy", terms[Mode.ACCURACY]),
            measurements=self.reader.json(stated),
            user_conf=self.reader.text(conf, _MAX_PAGE) if conf else "",
            readme=self.reader.text(readme, _MAX_PAGE) if readme else "",
            files={name: self.reader.name(path) for name, path in files.items() if path},
            compliance=tuple(sorted(path.name for path in self._compliance() if path.is_dir())),
            test_runs=dict(self._test_runs()),
            uncovered=reason_without_rules(round_name, benchmark, self.scenario),
        )

    def _settings(self) -> Iterator[tuple[TreeLayout, Path]]:
        """Yield the folder of this result's settings in each layout."""
        return (
            (layout, layout.settings_of(self.home, self.system, self.model, self.folder.name))
            for layout in tree_layouts()
        )

    def _file_beside(self, name: str) -> Path | None:
        return next((path for _, folder in self._settings() if (path := folder / name).is_file()), None)

    def _measurements_file(self) -> Path:
        """Return the file that states the weights; its place in the newest layout where no file does."""
        places = list(self._settings())
        paths = (path for layout, folder in places for path in layout.measurements_files(folder, self.system))
        newest, folder = places[0]
        return next(paths, folder / newest.measurements)

    def _test_runs(self) -> Iterator[tuple[str, Performance]]:
        """Yield the logs of compliance tests; what cannot be read is left out, as the rules ask for no log of them."""
        reader = Reader(self.reader.root)
        for test in sorted(self._compliance()):
            folders = [folder for folder in (test / "performance" / "run_1", test) if (folder / DETAIL_LOG).is_file()]
            if folders and (part := reader.performance(folders[0], None)) is not None:
                yield test.name, part

    def _compliance(self) -> Iterator[Path]:
        for place in compliance_folders(self.home, self.folder):
            yield from place.glob("TEST*")


def compliance_folders(home: Path, folder: Path) -> Iterator[Path]:
    """Yield the folders in which the compliance tests of a result may lie, that of the newest layout first."""
    system, model, scenario = folder.parts[-3:]
    yield from (layout.compliance_of(home, system, model, scenario) for layout in tree_layouts())


def round_of(performance: Performance | None) -> str:
    """Return the round that has the seeds of a run; empty where none has."""
    seeds = performance.seeds if performance else ()
    return _rounds_by_seeds().get(seeds, "") if all(seed is None or isinstance(seed, int) for seed in seeds) else ""


@cache
def _rounds_by_seeds() -> dict[tuple[Any, ...], str]:
    rounds: dict[tuple[Any, ...], str] = {}
    for name in rules.round_names():
        seeds = rules.round_terms(name).seeds
        rounds[(seeds.qsl, seeds.sample_index, seeds.schedule)] = name
        rounds[(None, seeds.sample_index, seeds.schedule)] = name  # as the endpoints harness has them
    return rounds


def each_submission(read: Callable[[Path], T], homes: Sequence[Path]) -> Iterator[tuple[Path, T]]:
    """Yield each submitter's folder with what `read` returns for it. Raises SubmissionError if a process is killed."""
    workers = min(_PER_CORE * usable_processors(), len(homes))
    if workers < 2 or len(homes) < MANY:
        yield from ((home, read(home)) for home in homes)
        return
    # The largest first: what is begun last must not be what takes longest.
    order = sorted(homes, key=lambda home: -sum(1 for _ in home.glob("results/*/*/*")))
    try:
        with (
            spawned_safely() as context,
            ProcessPoolExecutor(workers, mp_context=context, initializer=die_with_parent) as pool,
        ):
            yield from zip(order, pool.map(read, order), strict=True)
    except BrokenProcessPool as error:
        raise SubmissionError(
            f"a process that reads the submissions in {homes[0].parents[1]} ended unexpectedly",
            cause=str(error),
            remedy="most often the memory ran out: end other programs, or read fewer submissions at a time",
        ) from error
