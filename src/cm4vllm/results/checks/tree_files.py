"""The files of a written tree: what must be there, what may not; and whether rules can be applied to its results."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, Stage, check, whole
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.terminal_text import spelled_out
from cm4vllm.records.accuracy import ACCURACY_TEXT
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, SUMMARY_LOG
from cm4vllm.records.weights.checkpoint import FETCH, is_pointer
from cm4vllm.results.checks.subjects import is_strict, measured_results, results, strict_results, with_submission
from cm4vllm.results.endpoints.endpoints_harness import is_endpoints
from cm4vllm.results.file_listing import ListedFile
from cm4vllm.results.model import Result, Submission
from cm4vllm.results.submission_trees import round_of
from cm4vllm.rules import round_names

_PATHS = "tools/submission/submission_checker/constants.py, the paths of each round"
_OLD_CHECKER = "tools/submission/submission_checker_old.py"
_MAX_FILE = 50 * 2**20
#: A pointer of git-lfs is shorter (git-lfs, docs/spec.md).
_LONGEST_POINTER = 1024
_BYTECODE = "/__pycache__/"
_TRACE = "mlperf_log_trace.json"
#: The folders of a submission with the measurements and the statements about them.
_MEASURED = ("measurements", "results", "systems", "documentation", "compliance")
#: Where a submission may have its calibration.md.
_PAGES = (".", "documentation")
#: The files that may lie beside the logs of a run (the older official checker lists them).
_BESIDE = frozenset({DETAIL_LOG, SUMMARY_LOG, ACCURACY_LOG, ACCURACY_TEXT, _TRACE, "results.json", ".gitkeep"})
#: The files of a LoadGen result beside its detail logs; for those of the endpoints harness its reader checks.
_OF_LOADGEN = (
    f"accuracy/{ACCURACY_TEXT}",
    f"accuracy/{ACCURACY_LOG}",
    f"accuracy/{SUMMARY_LOG}",
    f"performance/run_1/{SUMMARY_LOG}",
)
_CONSTANTS = "tools/submission/submission_checker/constants.py"


@check(
    "RESULT-FILES",
    source=_PATHS,
    remedy="put the file of that run in its place",
    stage=Stage.TREE,
    each=with_submission(results),
)
def present(submission: Submission, result: Result) -> Iterator[Fault]:
    """A result has its logs, scores, settings and README."""
    folder = submission.root / result.folder
    by_endpoints = is_endpoints(folder)
    yield from (
        Fault(f"{name} is missing", f"{result.folder}/{name}")
        for name in (() if by_endpoints else _OF_LOADGEN)
        if not (folder / name).is_file()
    )
    for key, name in (("user_conf", "user.conf"), ("readme", "README.md")):
        if by_endpoints and key == "user_conf":
            continue  # its settings are those of config.yaml
        if key not in result.files:
            yield Fault(f"{name} is missing", result.folder, name)
        elif not (submission.root / result.files[key]).stat().st_size:
            yield Fault(f"{name} is empty", result.files[key])


@check(
    "FILE-EMPTY",
    source=_OLD_CHECKER,
    remedy="remove it, or publish what belongs into it",
    severity=Severity.NOTE,
    stage=Stage.TREE,
    each=whole,
)
def empty(submission: Submission) -> Iterator[Fault]:
    """A file holds something."""
    required = {file for result in submission.results for file in result.files.values()}
    for listed in submission.listing.files:
        if listed.size or listed.missing_target or listed.name in (ACCURACY_LOG, ".gitkeep", "__init__.py"):
            continue
        if listed.path not in required and listed.path.split("/")[2] in _MEASURED:
            yield Fault(
                "an empty trace, as LoadGen leaves where tracing is off" if listed.name == _TRACE else "an empty file",
                listed.path,
            )


@check(
    "FILE-UNEXPECTED", source=_OLD_CHECKER, remedy="remove it", severity=Severity.WARNING, stage=Stage.TREE, each=whole
)
def unexpected(submission: Submission) -> Iterator[Fault]:
    """A tree holds what its layout names: no caches, hidden files, names with spaces, broken links, empty folders,
    files above 50 MB, nor pointers of git-lfs in the place of results.
    """
    listing = submission.listing
    yield from (Fault("a folder of bytecode", folder) for folder in listing.folders if folder.endswith("/__pycache__"))
    yield from (Fault("an empty folder", folder) for folder in listing.empty_folders if _BYTECODE not in f"{folder}/")
    for file in listing.files:
        yield from _unexpected_file_faults(file)
        is_small = 0 < file.size < _LONGEST_POINTER
        if is_small and file.path.split("/")[2] in _MEASURED and is_pointer(submission.root / file.path):
            yield Fault("a pointer of git-lfs", file.path, remedy=FETCH, severity=Severity.ERROR)
    yield from _beside_logs(submission)
    yield from _beside_results(submission)


def _unexpected_file_faults(file: ListedFile) -> Iterator[Fault]:
    if _BYTECODE not in file.path:
        if " " in file.name:
            yield Fault("the name has a space", file.path)
        if file.name.startswith(".") and file.name not in (".gitkeep", ".gitignore"):
            yield Fault("a hidden file", file.path)
        if spelled_out(file.name) != file.name:
            yield Fault("the name is not UTF-8", file.path, remedy="rename it")
        if file.missing_target:
            yield Fault("a link to nothing", file.path, "", file.missing_target)
    if file.size > _MAX_FILE:
        yield Fault(
            "the file is too large",
            file.path,
            "",
            f"{file.size / 2**20:.0f} MB",
            "50 MB or less",
            severity=Severity.ERROR,
        )


def _beside_results(submission: Submission) -> Iterator[Fault]:
    """Yield folders beside models that hold no scenario, and in a tree of one submitter files that are no pages."""
    yield from (
        Fault("a folder in the place of a model, without a scenario", _name(submission, folder))
        for folder in sorted((submission.home / "results").glob("*/*"))
        if folder.is_dir() and any(folder.iterdir()) and not any(path.is_dir() for path in folder.iterdir())
    )
    root = submission.root
    if len(list(root.glob("*/*/results"))) != 1:
        return  # the root of a whole round is a repository's
    yield from (
        Fault("an unexpected file beside the folders of the divisions", _name(submission, path))
        for path in sorted(root.iterdir())
        if path.is_file() and path.suffix not in (".md", ".pdf") and not path.name.startswith(".")
    )


def _beside_logs(submission: Submission) -> Iterator[Fault]:
    for result in submission.results:
        folder = submission.root / result.folder
        if is_endpoints(folder):
            continue
        yield from (
            Fault(
                "a file beside the logs that the official checkers do not know",
                _name(submission, path),
                severity=Severity.NOTE,
            )
            for place in (folder / "accuracy", folder / "performance" / "run_1")
            for path in (sorted(place.iterdir()) if place.is_dir() else ())
            if path.is_file() and path.name not in _BESIDE
        )


@check(
    "SYSTEM-GHOST",
    source=_OLD_CHECKER,
    remedy="remove the description",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=whole,
)
def ghosts(submission: Submission) -> Iterator[Fault]:
    """Each system description has results."""
    folder = submission.home / "systems"
    known = {system.name for system in submission.systems}
    yield from (
        Fault("a system without results", _name(submission, path))
        for path in (sorted(folder.glob("*.json")) if folder.is_dir() else ())
        if path.stem not in known
    )


@check("PROGRAM-MISSING", source=_PATHS, remedy="publish the program in that folder", stage=Stage.TREE, each=whole)
def program(submission: Submission) -> Iterator[Fault]:
    """A submission holds the program that made it."""
    if not submission.results or not submission.round:
        return
    name = rules.layout_of_round(submission.round).program
    if not (submission.home / name).is_dir():
        yield Fault(f"{name}/ is missing", submission.place, name)


@check(
    "CALIBRATION-MISSING",
    source=_OLD_CHECKER,
    remedy="write documentation/calibration.md",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=whole,
)
def calibration(submission: Submission) -> Iterator[Fault]:
    """calibration.md says how the weights were quantised."""
    if not is_strict(submission) or not submission.results:
        return
    home, place = submission.home, submission.place
    if any((home / folder / f"calibration.{kind}").is_file() for folder in _PAGES for kind in ("md", "adoc")):
        return
    if other := next(_calibration_pages(home), None):
        yield Fault(
            "calibration is described in another place than calibration.md, which official checkers look for",
            place,
            "documentation/calibration.md",
            _name(submission, other),
            severity=Severity.NOTE,
        )
    else:
        yield Fault("calibration.md is missing", place, "documentation/calibration.md")


def _calibration_pages(home: Path) -> Iterator[Path]:
    """Yield the pages on calibration that a submission has under other names: calibration_nvidia.md, calibration/*."""
    for folder in _PAGES:
        yield from sorted(path for path in (home / folder).glob("[Cc]alibration*.*") if path.is_file())
        yield from sorted((home / folder / "calibration").rglob("*.md"))


@check(
    "SCENARIO-SPELLING",
    source=_PATHS,
    remedy="rename the folder",
    severity=Severity.NOTE,
    stage=Stage.TREE,
    each=results,
)
def spelled(result: Result) -> Iterator[Fault]:
    """A scenario's folder is spelled as the rules spell it."""
    if (name := result.folder.rpartition("/")[2]) != result.scenario:
        fault = "the folder of a scenario is spelled in another way"
        checkers = rules.round_terms(result.round).checkers if result.round else ()
        if marking := next((checker for checker in checkers if checker.respelled_is_inferred), None):
            fault += f"; the official {marking.name} at {marking.commit[:8]} marks such a result as inferred"
        yield Fault(fault, result.folder, "", name, result.scenario)


def _by_benchmark(submission: Submission) -> Iterator[tuple[Submission, list[Result]]]:
    """Yield the closed results of each benchmark on each system together, after the submission."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for (result,) in strict_results(submission):
        groups.setdefault((result.system, result.benchmark), []).append(result)
    yield from ((submission, group) for group in groups.values())


@check(
    "SCENARIO-REQUIRED",
    source="tools/submission/submission_checker/constants.py, required-scenarios",
    remedy="measure the scenario, too",
    stage=Stage.TREE,
    each=_by_benchmark,
)
def scenarios(submission: Submission, group: list[Result]) -> Iterator[Fault]:
    """A closed result of a benchmark comes with all scenarios that the benchmark asks for."""
    system, benchmark = submission.system(group[0].system), group[0].benchmark
    kind = str(system.description.get("system_type", "")) if system else ""
    terms = rules.if_known(rules.benchmark_terms, submission.round, benchmark)
    if terms is None or not set(kind.split(",")) <= set(rules.Category):
        return  # RULES-UNKNOWN, SYSTEM-VALUES, or FILE-MISSING
    place, given = group[0].folder.rpartition("/")[0], {result.scenario for result in group}
    if (required := terms.required_on(kind)) is None:
        yield Fault(
            f"{benchmark} is no benchmark of such a system",
            place,
            "system_type",
            kind,
            " or ".join(requirement.system_type for requirement in terms.required),
        )
        return
    missing = [str(scenario) for scenario in required.all_of if scenario not in given]
    if required.one_of and not given & set(required.one_of):
        missing.append(" or ".join(required.one_of))
    if missing:
        yield Fault("scenarios are missing", place, "", ", ".join(sorted(given)), ", ".join(missing))
    known = [*required.all_of, *required.one_of]
    if other := sorted(given & set(terms.scenarios) - set(known)):  # of none at all: RULES-UNKNOWN
        yield Fault(
            f"{benchmark} has no such scenario on a system of this type",
            place,
            "system_type",
            f"{', '.join(other)} ({kind})",
            ", ".join(known),
        )


def _name(submission: Submission, path: Path) -> str:
    return path.relative_to(submission.root).as_posix()


@check(
    "RESULTS-NONE",
    source=f"{_CONSTANTS}, the paths of each round",
    remedy="put each result into results/<system>/<benchmark>/<scenario>",
    stage=Stage.TREE,
    each=whole,
)
def some(submission: Submission) -> Iterator[Fault]:
    """A submission has results."""
    if not submission.results:
        yield Fault("there is no result", f"{submission.place}/results", value="nothing to check")


@check(
    "ROUND-UNKNOWN",
    source=f"{_CONSTANTS}, seeds",
    remedy="name the round with --results_round of check,mlperf,results; the seeds are then compared with it",
    stage=Stage.TREE,
    each=whole,
)
def known_round(submission: Submission) -> Iterator[Fault]:
    """The round of a submission is known: its logs have the seeds of one."""
    if submission.round or not submission.results:
        return
    logs = [part for _, part in measured_results(submission)]
    yield Fault(
        f"no rule is applied to {len(submission.results)} results: "
        + ("no log has the seeds of a round" if logs else "no performance log can be read"),
        logs[0].log if logs else f"{submission.place}/results",
        "effective_qsl_rng_seed, effective_sample_index_rng_seed, effective_schedule_rng_seed" if logs else "",
        logs[0].seeds if logs else "",
        f"those of a round from {round_names()[0]} to {round_names()[-1]}",
    )


@check(
    "ROUND-MIXED",
    source=f"{_CONSTANTS}, seeds",
    remedy="publish the results of each round in a tree of its own",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=whole,
)
def one_round(submission: Submission) -> Iterator[Fault]:
    """All logs of a submission, and all submissions of a tree, are of one round."""
    rounds = Counter(name for _, part in measured_results(submission) if (name := round_of(part)))
    if others := sorted(name for name in rounds if name != submission.round):
        yield Fault(
            f"logs have the seeds of other rounds than {submission.round}, whose rules are applied to all",
            f"{submission.place}/results",
            "",
            ", ".join(f"{rounds[name]} of {name}" for name in others),
            submission.round,
        )


@check(
    "RULES-UNKNOWN",
    source=f"{_CONSTANTS}, models and model_mapping",
    remedy="name the folder as the benchmark is called, or map it in model_mapping.json (open division)",
    severity=Severity.WARNING,
    stage=Stage.TREE,
    each=results,
)
def covered(result: Result) -> Iterator[Fault]:
    """The rules of a result's benchmark and scenario are known, and are applied."""
    if result.round and result.uncovered:  # without a round: ROUND-UNKNOWN
        yield Fault(
            f"no rule of a benchmark is applied: {result.uncovered}",
            result.folder,
            severity=Severity.ERROR if is_strict(result) else None,
        )
