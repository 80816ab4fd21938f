"""The files of a written tree: what must be there, what may not, and what the closed division asks for beside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cm4vllm import rules
from cm4vllm.accuracy.records import ACCURACY_TEXT
from cm4vllm.common.errors import UsageError
from cm4vllm.loadgen.detail_log import DETAIL_LOG
from cm4vllm.loadgen.logs import ACCURACY_LOG, SUMMARY_LOG
from cm4vllm.results.checks.check import Fault, Stage, check
from cm4vllm.results.checks.performance_runs import is_strict
from cm4vllm.results.endpoints import is_endpoints
from cm4vllm.results.findings import Severity
from cm4vllm.results.model import Result, Submission
from cm4vllm.results.reading import terms_of
from cm4vllm.rules import Mode

__all__ = ["test_folders"]

_PATHS = "tools/submission/submission_checker/constants.py, the paths of each round"
_OLD_CHECKER = "tools/submission/submission_checker_old.py"
_MAX_FILE = 50 * 2**20
#: What may lie beside the logs of a run (the older official checker names what it allows).
_BESIDE = frozenset(
    {DETAIL_LOG, SUMMARY_LOG, ACCURACY_LOG, ACCURACY_TEXT, "mlperf_log_trace.json", "results.json", ".gitkeep"}
)
#: What a result of LoadGen has beside its detail logs; those of the endpoints harness are read or missed by its reader.
_OF_LOADGEN = (
    f"accuracy/{ACCURACY_TEXT}",
    f"accuracy/{ACCURACY_LOG}",
    f"accuracy/{SUMMARY_LOG}",
    f"performance/run_1/{SUMMARY_LOG}",
)
#: What each test's verification writes: file, and the lines that must stand in it.
_VERIFIED = {
    "TEST06": (
        "verify_accuracy.txt",
        ("First token check pass:", "EOS check pass: True", "Sample length check pass: True"),
    ),
    "TEST07": ("verify_accuracy.txt", ("TEST PASS",)),
    "TEST09": ("verify_output_len.txt", ("TEST PASS",)),
}


@check(
    "RESULT-FILES",
    "a result has its logs, scores, settings and README",
    source=_PATHS,
    remedy="put the file of that run in its place",
    stage=Stage.TREE,
)
def present(submission: Submission) -> Iterator[Fault]:
    for result in submission.results:
        folder = submission.root / result.folder
        by_endpoints = is_endpoints(folder)
        for name in () if by_endpoints else _OF_LOADGEN:
            if not (folder / name).is_file():
                yield Fault(f"{name} is missing", f"{result.folder}/{name}")
        for key, name in (("user_conf", "user.conf"), ("readme", "README.md")):
            if by_endpoints and key == "user_conf":
                continue  # its settings are those of config.yaml
            if key not in result.files:
                yield Fault(f"{name} is missing", result.folder, name)
            elif not (submission.root / result.files[key]).stat().st_size:
                yield Fault(f"{name} is empty", result.files[key])


@check(
    "FILE-EMPTY",
    "a file holds something",
    source=_OLD_CHECKER,
    remedy="remove it, or publish what belongs into it",
    severity=Severity.NOTE,
    stage=Stage.TREE,
)
def empty(submission: Submission) -> Iterator[Fault]:
    required = {file for result in submission.results for file in result.files.values()}
    for path, size in _files(submission):
        name = path.name
        if (
            not size
            and name not in ("mlperf_log_trace.json", ".gitkeep", "__init__.py")
            and (f"{submission.division}/{submission.submitter}" and _name(submission, path) not in required)
            and (
                _part(submission, path) in ("measurements", "results", "systems", "documentation", "compliance")
                and name != ACCURACY_LOG
            )
        ):
            yield Fault("an empty file", _name(submission, path))


@check(
    "FILE-UNEXPECTED",
    "a tree holds what its layout names: no caches, hidden files, names with spaces, broken links, empty "
    "folders, files above 50 MB",
    source=_OLD_CHECKER,
    remedy="remove it",
    severity=Severity.WARNING,
    stage=Stage.TREE,
)
def unexpected(submission: Submission) -> Iterator[Fault]:
    for folder, folders, files in os.walk(submission.home):
        here = Path(folder)
        if here.name == "__pycache__":
            yield Fault("a folder of bytecode", _name(submission, here))
            folders.clear()
            continue
        if not folders and not files:
            yield Fault("an empty folder", _name(submission, here))
        for name in files:
            path = here / name
            if " " in name:
                yield Fault("the name has a space", _name(submission, path))
            if name.startswith(".") and name not in (".gitkeep", ".gitignore"):
                yield Fault("a hidden file", _name(submission, path))
            if path.is_symlink() and not path.exists():
                yield Fault("a link to nothing", _name(submission, path), "", str(path.readlink()))
    for path, size in _files(submission):
        if size > _MAX_FILE:
            yield Fault(
                "the file is too large",
                _name(submission, path),
                "",
                f"{size / 2**20:.0f} MB",
                "50 MB or less",
                severity=Severity.ERROR,
            )
    yield from _beside_logs(submission)
    yield from _beside_results(submission)


def _beside_results(submission: Submission) -> Iterator[Fault]:
    """Give folders beside models that hold no scenario, and in a tree of one submitter files that are no pages."""
    for folder in sorted((submission.home / "results").glob("*/*")):
        if folder.is_dir() and any(folder.iterdir()) and not any(path.is_dir() for path in folder.iterdir()):
            yield Fault("a folder in the place of a model, without a scenario", _name(submission, folder))
    root = submission.root
    if len(list(root.glob("*/*/results"))) != 1:
        return  # the root of a whole round is a repository's
    for path in sorted(root.iterdir()):
        if path.is_file() and path.suffix not in (".md", ".pdf") and not path.name.startswith("."):
            yield Fault("a file beside the divisions that is no page", _name(submission, path))


def _beside_logs(submission: Submission) -> Iterator[Fault]:
    for result in submission.results:
        folder = submission.root / result.folder
        if is_endpoints(folder):
            continue
        for place in (folder / "accuracy", folder / "performance" / "run_1"):
            for path in sorted(place.iterdir()) if place.is_dir() else ():
                if path.is_file() and path.name not in _BESIDE:
                    yield Fault(
                        "a file beside the logs that the official checkers do not know",
                        _name(submission, path),
                        severity=Severity.NOTE,
                    )


@check(
    "SYSTEM-GHOST",
    "each system description has results",
    source=_OLD_CHECKER,
    remedy="remove the description",
    severity=Severity.WARNING,
    stage=Stage.TREE,
)
def ghosts(submission: Submission) -> Iterator[Fault]:
    folder = submission.home / "systems"
    known = {system.name for system in submission.systems}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        if path.stem not in known:
            yield Fault("a system without results", _name(submission, path))


@check(
    "PROGRAM-MISSING",
    "a submission holds the program that made it",
    source=_PATHS,
    remedy="publish the program: code/ until v5.1, src/ from v6.0 on",
    stage=Stage.TREE,
)
def program(submission: Submission) -> Iterator[Fault]:
    if not submission.results or not submission.round:
        return
    name = "src" if submission.round >= "v6" else "code"
    if not (submission.home / name).is_dir():
        yield Fault(f"{name}/ is missing", f"{submission.division}/{submission.submitter}", name)


@check(
    "CALIBRATION-MISSING",
    "calibration.md says how the weights were quantised",
    source=_OLD_CHECKER,
    remedy="write calibration.md",
    stage=Stage.TREE,
)
def calibration(submission: Submission) -> Iterator[Fault]:
    places = ("calibration.md", "documentation/calibration.md", "calibration.adoc", "documentation/calibration.adoc")
    if is_strict(submission) and submission.results and not any((submission.home / one).is_file() for one in places):
        yield Fault(
            "calibration.md is missing",
            f"{submission.division}/{submission.submitter}",
            "documentation/calibration.md",
            severity=Severity.WARNING,
        )


@check(
    "SCENARIO-SPELLING",
    "a scenario's folder is spelled as the rules spell it",
    source=_PATHS,
    remedy="rename the folder",
    severity=Severity.NOTE,
    stage=Stage.TREE,
)
def spelled(submission: Submission) -> Iterator[Fault]:
    for result in submission.results:
        if (name := result.folder.rpartition("/")[2]) != result.scenario:
            yield Fault(
                "the official checker marks such a result as inferred", result.folder, "", name, result.scenario
            )


@check(
    "SCENARIO-REQUIRED",
    "a closed result of a benchmark comes with all scenarios that the benchmark asks for",
    source="tools/submission/submission_checker/constants.py, required-scenarios",
    remedy="measure the scenario, too",
    stage=Stage.TREE,
)
def scenarios(submission: Submission) -> Iterator[Fault]:
    measured: dict[tuple[str, str], list[Result]] = {}
    for result in submission.results if is_strict(submission) else ():
        measured.setdefault((result.system, result.benchmark), []).append(result)
    for (name, benchmark), results in measured.items():
        system = submission.system(name)
        kind = str(system.description.get("system_type", "")) if system else ""
        try:
            required = rules.benchmark_terms(submission.round, benchmark).required_on(kind)
        except UsageError:
            continue
        found = {one.scenario for one in results}
        missing = [str(one) for one in required.all_of if one not in found] if required else []
        if required and required.one_of and not found & set(required.one_of):
            missing.append(" or ".join(required.one_of))
        if missing:
            yield Fault(
                "scenarios are missing",
                results[0].folder.rpartition("/")[0],
                "",
                ", ".join(sorted(found)),
                ", ".join(missing),
            )


@check(
    "COMPLIANCE",
    "a closed result has passed the compliance tests of its benchmark",
    source="compliance/README.md, the tests of each benchmark",
    remedy="run the test, and publish what verifies it",
    stage=Stage.TREE,
)
def compliance(submission: Submission) -> Iterator[Fault]:
    for result in submission.results if is_strict(submission) else ():
        terms = terms_of(result.round, result.benchmark, result.scenario, Mode.PERFORMANCE)
        if is_endpoints(submission.root / result.folder):
            continue  # its tests are audits of the harness, which are optional
        for test in terms.compliance if terms else ():
            folder = next((one for one in test_folders(submission, result, test) if one.is_dir()), None)
            if folder is None:
                yield Fault(f"{test} is missing", result.folder, test, ", ".join(result.compliance), test)
            elif test in _VERIFIED:
                yield from _verified(submission, folder, *_VERIFIED[test])


def test_folders(submission: Submission, result: Result, test: str) -> Iterator[Path]:
    """Give the folders in which a compliance test of a result may lie: that since v6.0, then that before."""
    folder = submission.root / result.folder
    yield folder / test
    yield submission.home / "compliance" / folder.relative_to(submission.home / "results") / test


def _verified(submission: Submission, folder: Path, name: str, lines: tuple[str, ...]) -> Iterator[Fault]:
    path = folder / name
    if not path.is_file():
        yield Fault(f"{name} is missing", _name(submission, path))
        return
    text = path.read_text(errors="replace", encoding="utf-8")
    for line in lines:
        if line not in text:
            yield Fault(f"{folder.name} is not passed", _name(submission, path), "", _line_with(text, line), line)
    if "First token check pass: False" in text:
        yield Fault(
            f"{folder.name} is not passed", _name(submission, path), "", "First token check pass: False", "True"
        )


def _line_with(text: str, line: str) -> str:
    start = line.partition(":")[0]
    return next((one.strip() for one in text.splitlines() if start in one), "no such line")


def _files(submission: Submission) -> Iterator[tuple[Path, int]]:
    """Give every file of the submission with its size; links to nothing are left out."""
    for folder, _, files in os.walk(submission.home):
        for name in files:
            path = Path(folder, name)
            if path.exists():
                yield path, path.stat().st_size


def _part(submission: Submission, path: Path) -> str:
    return path.relative_to(submission.home).parts[0]


def _name(submission: Submission, path: Path) -> str:
    return path.relative_to(submission.root).as_posix()
