"""The searches of a schedule: the step that searches for server settings, and how long a search for a rate takes."""

from __future__ import annotations

from cm4vllm.campaign.computed_targets import REHEARSAL_SEARCH_S, SEARCH_RUNS
from cm4vllm.campaign.search.search_space import Space
from cm4vllm.campaign.settings import Job
from cm4vllm.campaign.steps import FOLDER, Duration, Product, Step
from cm4vllm.results.settings_search_record import SETTINGS_FILE, STEP
from cm4vllm.rules import Mode, Scenario

__all__ = ["FOUND_BY_SEARCH", "search_duration", "settings_search"]

#: Seconds of the run that follows a search: mostly the search has made it.
FOUND_BY_SEARCH = Duration(
    seconds=0.0, source="the search has made it, or the length by the rules where it confirms no rate", at_least=True
)


def settings_search(job: Job, space: Space) -> Step:
    """Return the step that searches for the settings of the server that the step after it starts."""
    folder = "search/server-settings"
    start = "each takes a start of the server" if space.restarts else "the server is started once"
    return Step(
        name=STEP,
        tags="find,mlperf,inference,server-settings",
        gives=f"{folder}/{SETTINGS_FILE}",
        product=Product.SETTINGS,
        duration=Duration(seconds=60 * job.search_minutes, source="at most (--search_minutes)"),
        inputs={
            FOLDER: str(job.out / folder),
            "CM_VLLM_SEARCH": job.settings.search,
            "CM_VLLM_SEARCH_MINUTES": str(job.search_minutes),
            "CM_MLPERF_SEARCH_SCENARIOS": ",".join(job.scenarios),
            "CM_VLLM_SERVER_MODEL_NAME": "",
        },
        notes=(
            f"{space.size} candidates, and the server as it is where it is none of them: {start}; the "
            "best third is measured three times as long, and so on",
        ),
    )


def search_duration(job: Job, scenario: Scenario) -> Duration:
    """Return how long a search for a rate takes at most, where LoadGen need not issue whole datasets."""
    if job.rehearsal:
        return Duration(seconds=REHEARSAL_SEARCH_S, source="about, as a rehearsal")
    run_s = job.terms(scenario, Mode.PERFORMANCE).min_duration_ms / 1000
    return Duration(
        seconds=SEARCH_RUNS * run_s,
        source=f"{SEARCH_RUNS} full-length runs of {run_s:,.4g} s at most, one of which is the scenario's result; at a "
        "low rate a run of whole datasets is longer",
    )
