"""The findings of the official checkers that a rehearsal explains, and those that it does not."""

import re

from cm4vllm.common.programs.processes import exit_in_words
from cm4vllm.records.checker import CheckerRecord

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


def expected_words(record: CheckerRecord) -> str:
    """Return in words that the checkers found nothing in a rehearsal's tree but what a rehearsal explains."""
    latency = any(_OF_LATENCY.search(error) for run in record.runs for error in run.errors)
    return f"only length {'and latency ' if latency else ''}findings, expected of a rehearsal"
