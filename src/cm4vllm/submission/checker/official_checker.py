"""The official checkers, as mlcommons/inference has them, run on a tree; and what their findings mean: the code of our
check of the same rule, and the remedy.

Both checkers of the commit must pass: the modular one accepts a run whose LoadGen log says INVALID, the older one
accepts an accuracy run over a part of the dataset.
"""

import csv
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import CheckerFailed, CmError, SubmissionError
from cm4vllm.common.files import sha256_of_tree, text_of
from cm4vllm.common.folders.owned_folders import forget, make_way
from cm4vllm.common.folders.ownership_notes import note_written
from cm4vllm.common.folders.temporary_folders import scratch_folder
from cm4vllm.common.programs.processes import exit_in_words, run
from cm4vllm.common.progress import say, step, warn
from cm4vllm.common.records import write_record
from cm4vllm.common.terminal_text import first_of
from cm4vllm.records.accuracy import ACCURACY_TEXT, NOT_SCORED
from cm4vllm.records.checker import CHECKER_FILE, CheckerRecord, CheckerRun
from cm4vllm.records.run import MLPERF_CONF
from cm4vllm.records.software import FACTS_FILES
from cm4vllm.results.checks import CHECKS
from cm4vllm.results.judgement.campaign_verdict import expected_words, unexpected_findings
from cm4vllm.results.log_folders import PROBLEMS, head_and_tail, text_at
from cm4vllm.rules import Checker, EndpointsRules, round_terms, tree_layouts
from cm4vllm.submission.checker.source import Source, extract_checker
from cm4vllm.submission.privacy_check import inspect_tree

_TIMEOUT_S = 1800.0
_LINE = re.compile(r"^\[[^\]]* (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\] (?P<text>.*)$")
_BARE = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):[^:]*:(?P<text>.*)$")


def check_submission(
    tree: Path, submitter: str, round_name: str, source: Source, rules: EndpointsRules | None = None
) -> CheckerRecord:
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
        record = run_checkers(tree, submitter, round_name, source, logs, rules)
    write_record(tree.parent / CHECKER_FILE, record)
    _judge(record, logs, rehearsal=is_rehearsal(tree, submitter))
    return record


def is_rehearsal(tree: Path, submitter: str) -> bool:
    """Return True if a tree calls itself a rehearsal: everywhere, for one result in it makes it a submission."""
    files = [
        file
        for folder in {layout.settings.format(system="*", model="*", scenario="*") for layout in tree_layouts()}
        for file in tree.glob(f"*/{submitter}/{folder}/*")
        if file.suffix in (".conf", ".json") and file.name not in (MLPERF_CONF, *FACTS_FILES) and file.is_file()
    ]
    return bool(files) and all(REHEARSAL_NOTICE in text_at(file) for file in files)


def run_checkers(
    tree: Path, submitter: str, round_name: str, source: Source, logs: Path, rules: EndpointsRules | None = None
) -> CheckerRecord:
    """Run the round's official checkers on `tree` and return what they found; their logs and CSV files go to `logs`.

    Each is taken at the commit that `rules`, without them those of this version, name for it in the round. Raises
    SourceUnavailable when `source` lacks one.
    """
    logs.mkdir(parents=True, exist_ok=True)
    runs, commits = [], []
    for checker in round_terms(round_name).checkers:
        with scratch_folder("mlperf-checker-") as folder:
            named = rules.checker_commit(round_name, checker.name) if rules else ""
            tools, commit = extract_checker(source, folder, named or checker.commit)
            runs.append(_run(checker, tools, tree.absolute(), submitter, round_name, logs.absolute()))
        commits.append(commit)
    return CheckerRecord(
        commit=", ".join(dict.fromkeys(commits)),
        round=round_name,
        passed=any(run.passed for run in runs) and all(run.passed or run.own_fault for run in runs),
        runs=runs,
        tree_sha256=sha256_of_tree(tree),
        unscored=sorted(
            path.parent.relative_to(tree).as_posix()
            for path in tree.rglob(ACCURACY_TEXT)
            if f"\n{NOT_SCORED}".encode() in head_and_tail(path)
        ),
    )


def _run(checker: Checker, tools: Path, tree: Path, submitter: str, round_name: str, logs: Path) -> CheckerRun:
    name = checker.name
    log, table = logs / f"{name}.log", logs / f"{name}.csv"
    forget(table)
    make_way(log)
    make_way(table)
    options = ["--input", str(tree), "--version", round_name, "--submitter", submitter, "--csv", str(table)]
    argv = [sys.executable, "-P", "-B", *checker.argv, *options]
    try:
        status = run(
            argv, cwd=tools, env={"PYTHONUTF8": "1", "PYTHONPATH": str(tools)}, log=log, timeout_s=_TIMEOUT_S
        ).status
    except subprocess.TimeoutExpired as error:
        raise CheckerFailed(f"{name} did not end within {_TIMEOUT_S:.0f} s", remedy=f"its log is {log}") from error
    try:
        lines = text_of(log, 2**28).splitlines()
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
    errors, critical, warnings = (
        list(dict.fromkeys(text for at, text in said if at == level)) for level in ("ERROR", "CRITICAL", "WARNING")
    )
    return errors + critical, warnings


def _rows(table: Path) -> int:
    """Return the number of results in the checker's table, 0 without one."""
    try:
        with table.open(newline="", errors="replace", encoding="utf-8") as file:
            return max(0, sum(1 for _ in csv.reader(file)) - 1)
    except OSError:
        return 0


def _judge(record: CheckerRecord, logs: Path, *, rehearsal: bool) -> None:
    """Print that all is well, or raise CheckerFailed."""
    for checker in record.runs:
        if checker.own_fault:
            warn(f"{checker.name} gives no verdict on this tree: it ends by a fault of its own, {checker.own_fault}")
    where = f"the checkers' logs are in {logs}"
    if rehearsal:
        if unexpected := unexpected_findings(record):
            raise _checker_failure(
                "the official checker has findings that a rehearsal does not explain", unexpected, where
            )
        count = sum(len(run.errors) for run in record.runs)
        say(f"official checker: {expected_words(record)} ({count} findings, {where})")
        return
    if not record.passed:
        errors = [f"{run.name}: {error}" for run in record.runs for error in run.errors if not run.passed]
        errors += [f"{run.name}: no result was counted" for run in record.runs if not run.passed and not run.errors]
        apart = disagreements({run.name: run.errors for run in record.runs})
        raise _checker_failure("the official checker refuses the submission", errors, "; ".join([*apart, where]))
    say(f"official checker: the submission passes ({where})")


def _checker_failure(failure: str, findings: list[str], where: str) -> CmError:
    return CheckerFailed(failure, cause=first_of([*map(explain, findings)], 20, "\n"), remedy=where)


#: Folders in a message: their names are the submitter's, or that of a test whose files the message is not about.
_FOLDERS = re.compile(r"\b(?:closed|open|network)/(?:[^\s/'\"]+/)*")
#: The words of a checker that fails itself, as on benchmarks and files that it does not know.
_OWN_FAILURE = re.compile(r"^crashed: |caused exception|^Execution occurred in running check")
#: A pattern of a message and the codes that stand for its rule, the most special message first.
_MEANINGS = tuple(
    (re.compile(pattern), codes.split())
    for pattern, codes in (
        (r"^Execution of check \w+ skipped", ""),  # the check is not one of this kind of result
        (r"rng_seed is wrong", "LOG-SEEDS"),
        (r"Test duration less than", "LOG-MIN-DURATION"),
        (r"Early stopping condition|early stopping to make an estimate", "RESULT-INVALID"),
        (r"TTFT and TPOT|TTFT or TPOT|Latency constraint", "LATENCY-LIMIT"),
        (r"use_token_latencies", "METRIC-MISSING"),
        (r"minimum samples per query|performance_sample_count, found|minimum Query Count", "PERFORMANCE-SAMPLES"),
        (r"does not cover all dataset|accuracy_sample_count, found", "ACCURACY-SAMPLES"),
        (r"loadgen errors|contains errors:", "LOG-ERRORS"),
        (r"accuracy not (?:valid|met)|accuracy score|is OK but accuracy", "ACCURACY-TARGET SCORE-UNREADABLE"),
        (r"not hash value", "ACCURACY-HASH"),
        (r"is not truncated|Max expected file size", "ACCURACY-LOG-SIZE"),
        (r"[Cc]ompliance|TEST0\d", "COMPLIANCE"),
        (r"invalid sut name", "NETWORK-NAME"),
        (r"incorrect network mode", "NETWORK-SYSTEM"),
        (r"required scenarios|can not be inferred", "SCENARIO-REQUIRED"),
        (r"unknown scenarios|ignoring scenario", "SCENARIO-UNKNOWN"),
        (r"invalid model", "MODEL-MAPPED CLOSED-MAPPED"),
        (r"has (?:division|submitter) |invalid status|invalid system type", "SYSTEM-VALUES"),
        (r", field \S+ (?:is missing$|requires|is missing meaningful)", "SYSTEM-KEYS WEIGHTS-KEYS"),
        (r"system json file not found|no system_desc|Performance log missing", "FILE-MISSING"),
        (r"files with no results", "SYSTEM-GHOST"),
        (r"measurements json file not found|missing \S*\*?\.json", "FILE-MISSING"),
        (r"src directory does not exist|missing code_dir", "PROGRAM-MISSING"),
        (r"calibration file", "CALIBRATION-MISSING"),
        (
            r"has no (?:accuracy\.txt|accuracy directory|performance/run_1)|is missing|is having empty|measurement_dir",
            "RESULT-FILES FILE-MISSING",
        ),
        (r"expected to have the following extra files", "RESULT-FILES"),
        (r"Could not load json file|Yaml file not found", "FILE-MISSING"),
        (r"file list mismatch", "FILE-UNEXPECTED RESULT-FILES"),
        (
            r"broken symbolic links|git unfriendly|greater than 50 MB|with spaces|__pycache__|empty directories|"
            r"contains files outside",
            "FILE-UNEXPECTED",
        ),
    )
)


def codes_of(message: str) -> list[str]:
    """Return the codes of findings that stand for the rule of an official message.

    There is none for a sum of others, and for a failure of the checker itself.
    """
    if _OWN_FAILURE.search(message):
        return []
    text = _FOLDERS.sub("", message)
    return next((codes for pattern, codes in _MEANINGS if pattern.search(text)), [])


def explain(message: str) -> str:
    """Return an official message with the codes of its rule, and what to do about the first."""
    if _OWN_FAILURE.search(message):
        return f"{message} [the checker itself failed, which is no finding on the tree]"
    if not (codes := codes_of(message)):
        return message
    remedy = CHECKS[codes[0]].remedy if codes[0] in CHECKS else PROBLEMS[codes[0]].text
    return f"{message} [{' or '.join(codes)}: {remedy}]"


def disagreements(errors: Mapping[str, Sequence[str]]) -> list[str]:
    """Return for each checker, by its name, which rules it alone calls broken; `errors` are the messages of each."""
    codes = {name: {codes_of(message)[0] for message in said if codes_of(message)} for name, said in errors.items()}
    alone = {
        name: sorted(own - set().union(*(other for checker, other in codes.items() if checker != name)))
        for name, own in codes.items()
    }
    return [f"only {name} refuses: {', '.join(rules)}" for name, rules in alone.items() if rules and len(codes) > 1]
