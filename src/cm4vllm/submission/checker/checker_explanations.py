"""Explains messages of the official checkers: the code of our check of the same rule, and the remedy."""

import re
from collections.abc import Mapping, Sequence

from cm4vllm.results.checks import CHECKS
from cm4vllm.results.log_folders import PROBLEMS

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


def explained(message: str) -> str:
    """Return an official message with the codes of its rule, and what to do about the first."""
    if _OWN_FAILURE.search(message):
        return f"{message} [the checker itself failed, which is no finding on the tree]"
    codes = codes_of(message)
    if not codes:
        return message
    remedy = CHECKS[codes[0]].remedy if codes[0] in CHECKS else PROBLEMS[codes[0]].text
    return f"{message} [{' or '.join(codes)}: {remedy}]"


def disagreements(errors: Mapping[str, Sequence[str]]) -> list[str]:
    """Return for each checker, by its name, which rules it alone calls broken; `errors` are the messages of each."""
    codes = {name: {codes_of(message)[0] for message in said if codes_of(message)} for name, said in errors.items()}
    lines = []
    for name, own in codes.items():
        alone = sorted(own - set().union(*(other for checker, other in codes.items() if checker != name)))
        if alone and len(codes) > 1:
            lines.append(f"only {name} refuses: {', '.join(alone)}")
    return lines
