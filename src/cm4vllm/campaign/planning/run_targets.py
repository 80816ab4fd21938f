"""Targets of a schedule's LoadGen runs, given, or by the step that measures or finds them; and how long runs take."""

from typing import NamedTuple

from cm4vllm.campaign.planning.steps import (
    LATENCY_SHARE,
    OFFLINE_MARGIN,
    REHEARSAL_MARGIN,
    REHEARSAL_SEARCH_S,
    REHEARSAL_SHARE,
    SEARCH_RUNS,
    SERVER_SHARE,
    Duration,
    MeasuredTarget,
)
from cm4vllm.campaign.settings import Job
from cm4vllm.common.units import four_digits
from cm4vllm.loadgen.user_conf import REHEARSAL_DURATION_S
from cm4vllm.records.campaign import TARGET_FLAGS
from cm4vllm.rules import Mode, RateUse, Scenario


class Target(NamedTuple):
    """The target of a run in queries/s, None where it has none, and its source."""

    qps: float | MeasuredTarget | None
    source: str | None = None


#: The step that measures the server's rate where no accuracy run gives it.
RATE_STEP = "Offline rate"
NO_TARGET = Target(1, "unused: every sample is sent at once")
NO_LATENCY = Target(None, "unused: each query follows the answer before it")
#: Seconds of the run that follows a search: mostly the search has made it.
FOUND_BY_SEARCH = Duration(
    seconds=0.0, source="the search has made it, or the length by the rules where it confirms no rate", at_least=True
)
SYSTEM = "<<<CM_SUT_NAME>>>/<<<CM_ML_MODEL_NAME>>>"


# --- names and places of runs ----------------------------------------------------------------------------------------


def run_name(scenario: Scenario, mode: Mode) -> str:
    """Return the name of a run's step."""
    return f"{scenario} {mode}"


def run_place(scenario: Scenario, mode: Mode) -> str:
    """Return the folder of a run below the results."""
    return f"runs/{SYSTEM}/{scenario}/{mode}"


def run_folder(job: Job, scenario: Scenario, mode: Mode) -> str:
    """Return the folder of a run."""
    return f"{job.out}/{run_place(scenario, mode)}"


def search_name(scenario: Scenario) -> str:
    """Return the name of the step that searches for a scenario's rate."""
    return f"{scenario} search"


def latency_name(scenario: Scenario) -> str:
    """Return the name of the step that measures a scenario's latency."""
    return f"{scenario} latency"


# --- targets ----------------------------------------------------------------------------------------------------------


def is_at_once(job: Job, scenario: Scenario) -> bool:
    """Return True if LoadGen sends all samples at once, so that the time they take gives the server's rate."""
    return job.terms(scenario, Mode.ACCURACY).at_once


def is_one_by_one(job: Job, scenario: Scenario) -> bool:
    """Return True if each query follows the answer before it, so that a latency takes the place of a rate."""
    return job.terms(scenario, Mode.PERFORMANCE).one_by_one


def is_sized(job: Job, scenario: Scenario) -> bool:
    """Return True if LoadGen computes the size of a performance run from its target."""
    return job.terms(scenario, Mode.PERFORMANCE).rate is RateUse.SIZES


def lacks_rate(job: Job, scenario: Scenario) -> bool:
    """Return True if a scenario's runs aim at a rate, and none is given."""
    return not is_one_by_one(job, scenario) and given_target(job, scenario) is None


def lacks_latency(job: Job, scenario: Scenario) -> bool:
    """Return True if runs are sized by a latency, and none is given."""
    return (
        is_one_by_one(job, scenario)
        and given_target(job, scenario) is None
        and (Mode.PERFORMANCE in job.modes or bool(job.tests))
    )


def is_searched(job: Job, scenario: Scenario) -> bool:
    """Return True if the target of a scenario's runs is searched for: where no rate is given."""
    terms = job.terms(scenario, Mode.PERFORMANCE)
    return (
        job.searches_rate
        and terms.paced
        and terms.limits is not None
        and Mode.PERFORMANCE in job.modes
        and given_target(job, scenario) is None
    )


def given_target(job: Job, scenario: Scenario) -> float | None:
    """Return the target that the user gave, in queries/s, also where it was given as a latency."""
    target = job.settings.targets.get(scenario)
    return 1000 / target if is_one_by_one(job, scenario) and target is not None else target


def target_of_runs(job: Job, scenario: Scenario, rate: str) -> Target:
    """Return what a scenario's runs aim at: as given, or by what the step `rate` measures."""
    given, one_by_one = given_target(job, scenario), is_one_by_one(job, scenario)
    if given is not None:
        return Target(given, f"given by --{TARGET_FLAGS[scenario]}")
    kept = run_place(scenario, Mode.PERFORMANCE) if is_target_kept(job, scenario) else ""
    if is_searched(job, scenario):
        return Target(MeasuredTarget(step=search_name(scenario), searched=True, kept_from=kept))
    share = target_share(job, scenario)
    return Target(MeasuredTarget(step=rate, share=share, kept_from=kept, one_by_one=one_by_one))


def target_share(job: Job, scenario: Scenario) -> float:
    """Return the part of a measured rate that a scenario's runs aim at."""
    if is_one_by_one(job, scenario):
        return LATENCY_SHARE
    if not is_at_once(job, scenario):
        return REHEARSAL_SHARE if job.rehearsal else SERVER_SHARE
    return REHEARSAL_MARGIN if job.rehearsal else OFFLINE_MARGIN


def is_target_kept(job: Job, scenario: Scenario) -> bool:
    """Return True if the target of a valid result of an earlier run is kept."""
    return not job.rehearsal and not any(map(job.reruns, (search_name(scenario), latency_name(scenario), RATE_STEP)))


def run_duration(job: Job, scenario: Scenario) -> Duration | None:
    """Return how long a performance run lasts at least; None where the number of its queries is given."""
    if not job.rehearsal:
        least = job.terms(scenario, Mode.PERFORMANCE).min_duration_ms
        return Duration(seconds=least / 1000, source="by the rules", at_least=True, by_rules=True)
    if job.settings.test_query_count is not None:
        return None
    longest = job.settings.max_test_duration or REHEARSAL_DURATION_S
    return Duration(seconds=min(REHEARSAL_DURATION_S, longest), source="as a rehearsal", at_least=True)


def search_duration(job: Job, scenario: Scenario) -> Duration:
    """Return how long a search for a rate takes at most, where LoadGen need not issue whole datasets."""
    if job.rehearsal:
        return Duration(seconds=REHEARSAL_SEARCH_S, source="about, as a rehearsal")
    run_s = job.terms(scenario, Mode.PERFORMANCE).min_duration_ms / 1000
    return Duration(
        seconds=SEARCH_RUNS * run_s,
        source=f"{SEARCH_RUNS} full-length runs of {four_digits(run_s)} s at most, one of which is the scenario's "
        "result; at a low rate a run of whole datasets is longer",
        by_rules=True,
    )
