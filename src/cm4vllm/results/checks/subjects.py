"""The subjects of checks, one by one: results, their runs, our records of them, and systems.

Each function gives the arguments of a check, once for each subject. What is missing or was not read is left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVarTuple

from cm4vllm.records.run import RunRecord
from cm4vllm.results.model import Accuracy, Performance, Result, Submission, System
from cm4vllm.rules import Division

Ts = TypeVarTuple("Ts")

Part = Performance | Accuracy


def is_strict(of: Submission | Result) -> bool:
    """Return True if the rules of the closed division hold, as they do in the network division."""
    return of.division != Division.OPEN


def with_submission(
    subjects: Callable[[Submission], Iterable[tuple[*Ts]]],
) -> Callable[[Submission], Iterator[tuple[Submission, *Ts]]]:
    """Return a function that gives these subjects, each after the submission."""
    return lambda submission: ((submission, *subject) for subject in subjects(submission))


def results(submission: Submission) -> Iterator[tuple[Result]]:
    """Yield each result."""
    return ((result,) for result in submission.results)


def strict_results(submission: Submission) -> Iterator[tuple[Result]]:
    """Yield each result for which the rules of the closed division hold."""
    yield from results(submission) if is_strict(submission) else ()


def parts(submission: Submission) -> Iterator[tuple[Result, Part]]:
    """Yield each performance run and each accuracy run, after its result."""
    return ((result, part) for result in submission.results for part in result.parts.values())


def measured_results(submission: Submission) -> Iterator[tuple[Result, Performance]]:
    """Yield each result that has a performance log, with it."""
    return ((result, result.performance) for result in submission.results if result.performance is not None)


def scored_results(submission: Submission) -> Iterator[tuple[Result, Accuracy]]:
    """Yield each result that has an accuracy run, with it."""
    return ((result, result.accuracy) for result in submission.results if result.accuracy is not None)


def with_tests(submission: Submission) -> Iterator[tuple[Part]]:
    """Yield the runs of the results and those of their compliance tests."""
    return ((part,) for result in submission.results for part in result.logged)


def recorded_parts(submission: Submission) -> Iterator[tuple[Part, RunRecord]]:
    """Yield each of our runs with its record."""
    return ((part, part.run) for _, part in parts(submission) if part.run is not None)


def systems(submission: Submission) -> Iterator[tuple[System]]:
    """Yield each system."""
    return ((system,) for system in submission.systems)


def described_systems(submission: Submission) -> Iterator[tuple[System, Mapping[str, Any]]]:
    """Yield each system that has a description, and the description."""
    return ((system, system.description) for system in submission.systems if system.description)
