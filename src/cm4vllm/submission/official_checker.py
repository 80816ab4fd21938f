"""The official checkers, as mlcommons/inference has them, run on a tree; and what their findings mean.

Both checkers of the commit must pass: the modular one accepts a run whose LoadGen log says INVALID, the older one
accepts an accuracy run over a part of the dataset.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.accuracy.accuracy_record import ACCURACY_TEXT, NOT_SCORED
from cm4vllm.common.errors import CheckerFailed, CmError, SubmissionError
from cm4vllm.common.files import sha256_of_tree, text_of
from cm4vllm.common.owned_folders import forget, make_way
from cm4vllm.common.ownership_notes import note_written
from cm4vllm.common.processes import exit_in_words, run
from cm4vllm.common.progress import say, step, warn
from cm4vllm.common.records import Record, write_record
from cm4vllm.common.temporary_folders import scratch_folder
from cm4vllm.common.terminal_text import first_of
from cm4vllm.loadgen.wheel import MLPERF_CONF
from cm4vllm.results.log_folders import head_and_tail, text_at
from cm4vllm.rules import Checker, round_terms, tree_layouts
from cm4vllm.submission.campaign_software import FACTS_FILES
from cm4vllm.submission.checker_explanations import disagreements, explained
from cm4vllm.submission.privacy_check import inspect_tree
from cm4vllm.submission.source import Source, extract_checker

__all__ = [
    "CHECKER_FILE",
    "CheckerRecord",
    "CheckerRun",
    "check_submission",
    "expected_words",
    "is_rehearsal",
    "run_checkers",
    "unexpected_findings",
]

#: The name of the record's file beside the submission tree.
CHECKER_FILE = "checker.json"
_TIMEOUT_S = 1800.0
#: The most bytes of a checker's output.
_MOST_PRINTED = 2**28
_LINE = re.compile(r"^\[[^\]]* (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\] (?P<text>.*)$")
_BARE = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):[^:]*:(?P<text>.*)$")

#: The findings of the checkers that only a run with latencies over their limits has.
_OF_LATENCY = re.compile(r"Failed (Llama2 )?extra check for TTFT and TPOT\.")
#: The findings that only a run which is short or not yet fast enough has.
_EXPECTED_OF_A_REHEARSAL = re.compile(
    "|".join(
        (
            _OF_LATENCY.pattern,
            r"Test duration less than 600s in user config",
            r"Early stopping condition was not met",
            r"Required minimum samples per query not met by user config",
            r"accurcy run does not cover all dataset",
            r"(performance|accuracy)_sample_count, found \d+, needs to be >= \d+",
            r"Ending early: Max (test duration|query count) reached",
            r"has loadgen errors, number of errors",
            r"performance/run_1/mlperf_log_detail\.txt contains errors:",
        )
    )
)
#: Sums of what was said before. The older checker's `has issues` is also all it says of an INVALID result.
_SUMS = re.compile(
    r"^(NoResults |SUMMARY: submission has errors|Some (performance|accuracy) checks Checks failed for)"
    r"|performance/run_1 has issues$"
)


class CheckerRun(Record, frozen=True, kw_only=True):
    """One official checker's verdict: `name` and `argv` as run, its exit status, results counted, its findings.

    `own_fault` is the last line of a fault of its own that the rules know (Checker): then it gave no verdict.
    """

    name: str
    argv: list[str]
    status: int
    results: int
    errors: list[str]
    warnings: list[str]
    crashed: bool
    passed: bool
    own_fault: str = ""


class CheckerRecord(Record, frozen=True, kw_only=True):
    """All checkers that accept the round, at one commit. `unavailable` is the reason when none could be run.

    `tree_sha256` covers names and contents of all files of the tree that they were run on. `unscored` are the folders
    of accuracy runs there of which a metric is not scored.
    """

    commit: str
    round: str
    passed: bool
    unscored: list[str] = []
    runs: list[CheckerRun] = []
    unavailable: str = ""
    tree_sha256: str = ""


def check_submission(tree: Path, submitter: str, round_name: str, source: Source) -> CheckerRecord:
    """Check a tree, write checker.json and checker/*.log beside it, and judge; the tree stays as it is.

    Raises CheckerFailed when a result does not pass, and for a rehearsal when the checkers find what a short run does
    not explain; the tree itself says which it is. SubmissionError when there is no tree, and as inspect_tree does.
    """
    if not tree.is_dir():
        raise SubmissionError(
            f"no submission in {tree}", remedy="build it first: --tags=generate,mlperf,inference,submission"
        )
    inspect_tree(tree)
    logs = tree.parent / "checker"
    with step("official submission checkers"):
        record = run_checkers(tree, submitter, round_name, source, logs)
    write_record(tree.parent / CHECKER_FILE, record)
    _judge(record, logs, rehearsal=is_rehearsal(tree, submitter))
    return record


def is_rehearsal(tree: Path, submitter: str) -> bool:
    """Return True if a tree calls itself a rehearsal: everywhere, for one result in it makes it a submission."""
    folders = {layout.settings.format(system="*", model="*", scenario="*") for layout in tree_layouts()}
    files = [
        file
        for folder in folders
        for file in tree.glob(f"*/{submitter}/{folder}/*")
        if file.suffix in (".conf", ".json") and file.name not in (MLPERF_CONF, *FACTS_FILES) and file.is_file()
    ]
    return bool(files) and all(REHEARSAL_NOTICE in text_at(file) for file in files)


def run_checkers(tree: Path, submitter: str, round_name: str, source: Source, logs: Path) -> CheckerRecord:
    """Run the round's official checkers on `tree` and return what they found; their logs and CSV files go to `logs`.

    Each is taken at the commit that the rules name for the round. Raises SourceUnavailable when `source` lacks one.
    """
    logs.mkdir(parents=True, exist_ok=True)
    runs, commits = [], []
    for checker in round_terms(round_name).checkers:
        with scratch_folder("mlperf-checker-") as folder:
            tools, commit = extract_checker(source, folder, checker.commit)
            runs.append(_run(checker, tools, tree.absolute(), submitter, round_name, logs.absolute()))
        commits.append(commit)
    return CheckerRecord(
        commit=", ".join(dict.fromkeys(commits)),
        round=round_name,
        passed=any(run.passed for run in runs) and all(run.passed or run.own_fault for run in runs),
        runs=runs,
        tree_sha256=sha256_of_tree(tree),
        unscored=_unscored(tree),
    )


def _unscored(tree: Path) -> list[str]:
    """Return the folders of a tree whose accuracy.txt names a metric that is not scored."""
    return sorted(
        path.parent.relative_to(tree).as_posix()
        for path in tree.rglob(ACCURACY_TEXT)
        if f"\n{NOT_SCORED}".encode() in head_and_tail(path)
    )


def unexpected_findings(record: CheckerRecord) -> list[str]:
    """Return what the checkers say against a rehearsal's tree beyond its being short: defects that a result has too.

    A metric that is not scored was announced before the run.
    """
    announced = {f"{folder}, accuracy not valid" for folder in record.unscored}
    unexpected = []
    for checker in record.runs:
        stated = [error for error in checker.errors if error not in announced and not _SUMS.search(error)]
        unexpected += [f"{checker.name}: {error}" for error in stated if not _EXPECTED_OF_A_REHEARSAL.search(error)]
        if checker.crashed:
            unexpected.append(f"{checker.name}: crashed")
        elif not checker.passed and not checker.errors and not checker.own_fault:
            unexpected.append(
                f"{checker.name}: ended with {exit_in_words(checker.status)} and {checker.results} results, "
                "without saying why"
            )
    return unexpected


def _run(checker: Checker, tools: Path, tree: Path, submitter: str, round_name: str, logs: Path) -> CheckerRun:
    name = checker.name
    log, table = logs / f"{name}.log", logs / f"{name}.csv"
    forget(table)
    for path in (log, table):
        make_way(path)
    options = ["--input", str(tree), "--version", round_name, "--submitter", submitter, "--csv", str(table)]
    argv = [sys.executable, "-P", "-B", *checker.argv, *options]
    try:
        status = run(
            argv, cwd=tools, env={"PYTHONUTF8": "1", "PYTHONPATH": str(tools)}, log=log, timeout_s=_TIMEOUT_S
        ).status
    except subprocess.TimeoutExpired as error:
        raise CheckerFailed(f"{name} did not end within {_TIMEOUT_S:.0f} s", remedy=f"its log is {log}") from error
    try:
        lines = text_of(log, _MOST_PRINTED).splitlines()
    except OSError as error:
        raise CheckerFailed(f"what {name} printed cannot be read", cause=f"{log}: {error.strerror}") from error
    own_fault = checker.own_fault if checker.own_fault and lines[-1:] == [checker.own_fault] else ""
    crashed = not own_fault and (status not in (0, 1) or any(line.startswith("Traceback ") for line in lines))
    for path in filter(Path.exists, (log, table)):
        note_written(path)
    results = _rows(table)
    errors, warnings = _findings(lines, tree)
    if crashed:
        errors.append(f"crashed: {lines[-1] if lines else exit_in_words(status)}")
    return CheckerRun(
        name=name,
        argv=["python", "-B", *checker.argv, "--input", tree.name, *options[2:6]],
        status=status,
        results=results,
        errors=errors,
        warnings=warnings,
        crashed=crashed,
        passed=status == 0 and results >= 1 and not crashed,
        own_fault=own_fault,
    )


def _findings(lines: list[str], tree: Path) -> tuple[list[str], list[str]]:
    """Return the errors and warnings of a checker's log, each once, with paths as from the tree's root."""
    matches = filter(None, (_LINE.match(line) or _BARE.match(line) for line in lines))
    said = [(match["level"], match["text"].replace(f"{tree}/", "").strip()) for match in matches]
    by_level = {
        level: list(dict.fromkeys(text for at, text in said if at == level))
        for level in ("ERROR", "CRITICAL", "WARNING")
    }
    return by_level["ERROR"] + by_level["CRITICAL"], by_level["WARNING"]


def _rows(table: Path) -> int:
    try:
        with table.open(newline="", errors="replace", encoding="utf-8") as file:
            return max(0, sum(1 for _ in csv.reader(file)) - 1)
    except OSError:
        return 0


def expected_words(record: CheckerRecord) -> str:
    """Return in words that the checkers found nothing in a rehearsal's tree but what a rehearsal explains."""
    latency = any(_OF_LATENCY.search(error) for run in record.runs for error in run.errors)
    return f"only length {'and latency ' if latency else ''}findings, expected of a rehearsal"


def _judge(record: CheckerRecord, logs: Path, *, rehearsal: bool) -> None:
    """Print that all is well, or raise CheckerFailed."""
    for checker in record.runs:
        if checker.own_fault:
            warn(f"{checker.name} gives no verdict on this tree: it ends by a fault of its own, {checker.own_fault}")
    where = f"the checkers' logs are in {logs}"
    if rehearsal:
        unexpected = unexpected_findings(record)
        if unexpected:
            raise _failed("the official checker has findings that a rehearsal does not explain", unexpected, where)
        count = sum(len(run.errors) for run in record.runs)
        say(f"official checker: {expected_words(record)} ({count} findings, {where})")
        return
    if not record.passed:
        errors = [f"{run.name}: {error}" for run in record.runs for error in run.errors if not run.passed]
        errors += [f"{run.name}: no result was counted" for run in record.runs if not run.passed and not run.errors]
        apart = disagreements({run.name: run.errors for run in record.runs})
        raise _failed("the official checker refuses the submission", errors, "; ".join([*apart, where]))
    say(f"official checker: the submission passes ({where})")


def _failed(failure: str, findings: list[str], where: str) -> CmError:
    return CheckerFailed(failure, cause=first_of([*map(explained, findings)], 20, "\n"), remedy=where)
