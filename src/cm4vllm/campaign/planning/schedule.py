"""The schedule of a job: its steps in their order, as data. The job executes this list, and --plan prints it."""

from collections.abc import Iterator, Mapping

import msgspec

from cm4vllm import SIMULATED_POWER_NOTICE
from cm4vllm.accuracy.rouge import expected_seconds
from cm4vllm.accuracy.scoring import scorer_of
from cm4vllm.campaign.amendments import amended
from cm4vllm.campaign.planning.asset_steps import asset_steps, steps_before
from cm4vllm.campaign.planning.computed_targets import LATENCY_QUERIES
from cm4vllm.campaign.planning.run_targets import (
    FOUND_BY_SEARCH,
    MODE,
    NO_LATENCY,
    NO_TARGET,
    RATE_STEP,
    SCENARIO,
    SYSTEM,
    TARGET,
    TEST,
    given_target,
    is_at_once,
    is_one_by_one,
    is_searched,
    is_sized,
    keeps_target,
    lacks_latency,
    lacks_rate,
    latency_name,
    run_duration,
    run_folder,
    run_name,
    run_place,
    search_duration,
    search_name,
    target_inputs,
    target_share,
)
from cm4vllm.campaign.planning.steps import FOLDER, Condition, Duration, MeasuredTarget, Need, Product, Step, shown
from cm4vllm.campaign.powered_run import step_inputs
from cm4vllm.campaign.settings import Job
from cm4vllm.common.processors import usable_processors
from cm4vllm.common.units import four_digits
from cm4vllm.loadgen.user_conf import REHEARSAL_SAMPLES
from cm4vllm.rules import Division, Mode, Scenario, Terms

#: yes: a stopped accuracy run continues with the answers that it had, as in the open division.
KEEP = "CM_MLPERF_KEEP_ANSWERS"
#: The number of times that a full-length run which misses a limit at the rate found is made again at a lower rate.
BACK_OFFS = 2
#: Seconds that a power session adds to its two runs: 57 s and 83 s in published ones, 40 s with a simulated analyzer.
SESSION_S = 90


def common_inputs(job: Job) -> dict[str, str]:
    """Return the environment keys that every step of the job gets."""
    settings = job.settings
    inputs = {
        "CM_MLPERF_ROUND": job.round.name,
        "CM_MLPERF_MODEL": job.benchmark.name,
        "CM_MLPERF_RUN_STYLE": str(job.execution_mode),
        "CM_MLPERF_SUBMISSION_DIVISION": str(job.division),
        "CM_MLPERF_SUBMISSION_SYSTEM_TYPE": str(job.category),
        "CM_MLPERF_SUBMITTER": settings.submitter,
        "CM_MLPERF_INFERENCE_API_SERVER": settings.api_server,
        "CM_MLPERF_RESULTS_DIR": str(job.out),
    }
    if settings.rehearse:
        inputs["CM_MLPERF_REHEARSE"] = settings.rehearse
    if settings.device and not settings.api_server:
        inputs["CM_VLLM_VARIANT"] = settings.device
    for key, value in (
        ("CM_TEST_QUERY_COUNT", settings.test_query_count),
        ("CM_MLPERF_MAX_DURATION_TEST", settings.max_test_duration),
    ):
        if value is not None:
            inputs[key] = str(value)
    return inputs


def schedule(job: Job) -> tuple[Step, ...]:
    """Return the steps of a job in their order. A value known only in the run is named by the step that exports it.

    Raises UsageError for an input of --adr that the job itself gives.
    """
    steps = (*steps_before(job), *asset_steps(job), *_runs(job), *_submission(job))
    return tuple(msgspec.structs.replace(step, inputs=amended(step, job.step_inputs)) for step in steps)


# --- the LoadGen runs ------------------------------------------------------------------------------------------------


def _runs(job: Job) -> Iterator[Step]:
    rate = ""
    for scenario in job.scenarios:
        at_once = is_at_once(job, scenario)
        if at_once and Mode.ACCURACY in job.modes:
            yield from _accuracy(job, scenario, NO_TARGET)
            if not job.sources.performance:  # the rate of other prompts and lengths is another
                rate = run_name(scenario, Mode.ACCURACY)
        if not rate and (wanting := [scenario for scenario in job.scenarios if lacks_rate(job, scenario)]):
            yield from _rate(job, wanting)
            rate = RATE_STEP
        if searched := is_searched(job, scenario):
            yield from _search(job, scenario, rate)
        if measured := lacks_latency(job, scenario):
            yield from _latency(job, scenario)
        target = target_inputs(job, scenario, latency_name(scenario) if measured else rate)
        if Mode.PERFORMANCE in job.modes:
            yield from _performance(job, scenario, target, searched=searched)
            if searched and not job.rehearsal:
                yield from _backed_off(job, scenario, target)
        if not at_once and Mode.ACCURACY in job.modes:
            needs_rate = job.terms(scenario, Mode.ACCURACY).needs_rate
            yield from _accuracy(job, scenario, target if needs_rate else NO_LATENCY)
        for test in job.tests:
            yield from _compliance(job, scenario, test, target)


def _rate(job: Job, scenarios: list[Scenario]) -> Iterator[Step]:
    """Yield the short run of its own that measures the server's rate, where no accuracy run before gives it."""
    condition = _without_earlier(job, scenarios)
    at_once = next(scenario for scenario in job.benchmark.scenarios if is_at_once(job, scenario))
    mode = Mode.PERFORMANCE if job.sources.performance else Mode.ACCURACY
    inputs = {**_run(at_once, mode, str(job.out / "rate")), **NO_TARGET, "CM_MLPERF_RUN_STYLE": "test"}
    if mode is Mode.PERFORMANCE:  # of so many samples, however long they take
        count = job.settings.test_query_count or REHEARSAL_SAMPLES
        inputs |= {"CM_TEST_QUERY_COUNT": str(count), "CM_MLPERF_MAX_DURATION_TEST": ""}
    yield _measurement(
        RATE_STEP,
        inputs,
        "rate/run.json",
        condition=condition,
        notes=("no target QPS was given, and no accuracy run before gives the server's rate",),
    )


def _without_earlier(job: Job, scenarios: list[Scenario]) -> Condition | None:
    """Return the condition that an earlier result, whose target would be kept, is missing in one of the scenarios."""
    if not all(keeps_target(job, scenario) for scenario in scenarios):
        return None
    places = tuple(run_place(scenario, Mode.PERFORMANCE) for scenario in scenarios)
    return Condition(need=Need.NO_EARLIER_RESULT, of=places)


def _latency(job: Job, scenario: Scenario) -> Iterator[Step]:
    """Yield the short run of its own that measures the mean latency, from which LoadGen computes how long a run is."""
    condition = _without_earlier(job, [scenario])
    folder = f"latency/{scenario}"
    inputs = {
        **_run(scenario, Mode.PERFORMANCE, str(job.out / folder)),
        **NO_LATENCY,
        "CM_MLPERF_RUN_STYLE": "test",
        "CM_TEST_QUERY_COUNT": str(LATENCY_QUERIES),
    }
    yield _measurement(
        latency_name(scenario),
        inputs,
        f"{folder}/run.json",
        condition=condition,
        notes=("no target latency was given: a short run measures it",),
    )


def _accuracy(job: Job, scenario: Scenario, target: Mapping[str, str | MeasuredTarget]) -> Iterator[Step]:
    name, folder = run_name(scenario, Mode.ACCURACY), run_folder(job, scenario, Mode.ACCURACY)
    gives = shown(run_place(scenario, Mode.ACCURACY))
    inputs = {**_run(scenario, Mode.ACCURACY, folder), **target, KEEP: "yes" if job.division is Division.OPEN else "no"}
    yield _measurement(name, inputs, f"{gives}/run.json")
    if not job.scores:
        return
    yield Step(
        name=f"{name}: scores",
        tags="process,mlperf,accuracy",
        gives=f"{gives}/accuracy.json",
        product=Product.SCORES,
        duration=None if job.rehearsal else _scoring_time(job.terms(scenario, Mode.ACCURACY)),
        inputs={
            "CM_MLPERF_ACCURACY_RESULTS_DIR": folder,
            "CM_MLPERF_GRADERS": ",".join(f"<<<CM_MLPERF_GRADER_{grader.upper()}>>>" for grader in job.graders),
        },
    )


def _scoring_time(terms: Terms) -> Duration | None:
    """Return how long ROUGE of a whole dataset takes on this machine; None where nothing is scored by it."""
    types, tokens = scorer_of(terms).rouge, terms.mean_tokens or terms.generation.max_tokens
    if not types or not tokens:
        return None
    answers = f"{terms.samples:,} answers of {tokens:,.0f} tokens on {usable_processors()} cores"
    seconds = expected_seconds(terms.samples, tokens, types)
    return Duration(seconds=seconds, source=f"estimated for ROUGE of {answers}")


def _performance(
    job: Job, scenario: Scenario, target: Mapping[str, str | MeasuredTarget], *, searched: bool
) -> Iterator[Step]:
    """Yield the performance run, and once more where a target that we chose may let it end too early to be valid."""
    name, folder = run_name(scenario, Mode.PERFORMANCE), run_folder(job, scenario, Mode.PERFORMANCE)
    gives = f"{shown(run_place(scenario, Mode.PERFORMANCE))}/run.json"
    inputs = {**_run(scenario, Mode.PERFORMANCE, folder), **target, **_power(job)}
    duration = _with_power(job, run_duration(job, scenario))
    first = FOUND_BY_SEARCH if searched and not job.rehearsal else duration
    yield _measurement(name, inputs, gives, duration=first, notes=_power_notes(job))
    if is_sized(job, scenario) and given_target(job, scenario) is None and not job.rehearsal:
        again = {
            **inputs,
            TARGET: MeasuredTarget(
                step=name, share=target_share(job, scenario), one_by_one=is_one_by_one(job, scenario)
            ),
        }
        yield _measurement(
            f"{name} again", again, gives, duration=duration, condition=Condition(need=Need.TOO_SHORT, of=(name,))
        )


def _compliance(job: Job, scenario: Scenario, test: str, target: Mapping[str, str | MeasuredTarget]) -> Iterator[Step]:
    """Yield the run of a compliance test and its verification; a test that fails ends the job after the report."""
    name, place = f"{scenario} {test}", f"runs/{SYSTEM}/{scenario}/{test}"
    folder, gives = f"{job.out}/{place}", shown(place)
    inputs = {**_run(scenario, Mode.PERFORMANCE, folder), TEST: test, **target}
    yield _measurement(name, inputs, f"{gives}/run.json")
    yield Step(
        name=f"{name}: verification",
        tags="process,mlperf,compliance",
        gives=f"{gives}/compliance.json",
        product=Product.VERDICT,
        inputs={"CM_MLPERF_COMPLIANCE_RESULTS_DIR": folder},
        report_first=True,
    )


def _search(job: Job, scenario: Scenario, rate: str) -> Iterator[Step]:
    """Yield the search for the highest rate that keeps the scenario's limits, from the rate on that `rate` measures."""
    condition = _without_earlier(job, [scenario])
    folder = f"search/{scenario}"
    inputs: dict[str, str | MeasuredTarget] = {
        **_run(scenario, Mode.PERFORMANCE, str(job.out / folder)),
        "CM_MLPERF_SEARCH_RESULT_DIR": run_folder(job, scenario, Mode.PERFORMANCE),
        TARGET: MeasuredTarget(step=rate),
    }
    yield Step(
        name=search_name(scenario),
        tags="find,mlperf,inference,target-qps",
        inputs=inputs,
        gives=f"{folder}/search.json",
        condition=condition,
        product=Product.SEARCH,
        duration=search_duration(job, scenario),
        notes=(
            "short runs at different rates search for the highest rate that keeps the latency limits",
            "its logs take about 0.1 MB a probe, and 40 bytes more for each query of a full-length run",
        ),
    )


def _backed_off(job: Job, scenario: Scenario, target: Mapping[str, str | MeasuredTarget]) -> Iterator[Step]:
    """Yield the runs at lower rates that follow where one at the rate found misses a limit at full length."""
    before = run_name(scenario, Mode.PERFORMANCE)
    gives = f"{shown(run_place(scenario, Mode.PERFORMANCE))}/run.json"
    for times in range(1, BACK_OFFS + 1):
        name = f"{run_name(scenario, Mode.PERFORMANCE)} again{f' ({times})' if times > 1 else ''}"
        inputs = {
            **_run(scenario, Mode.PERFORMANCE, run_folder(job, scenario, Mode.PERFORMANCE)),
            **target,
            **_power(job),
            TARGET: MeasuredTarget(step=search_name(scenario), searched=True, lowered=times),
        }
        yield _measurement(
            name,
            inputs,
            gives,
            duration=_with_power(job, run_duration(job, scenario)),
            condition=Condition(need=Need.MISSED_LIMITS, of=(before,)),
        )


def _power(job: Job) -> dict[str, str]:
    """Return the inputs by which a performance run is made under power; none where power is not measured."""
    settings = job.settings
    stated = {
        "CM_MLPERF_POWER_SERVER_ADDRESS": settings.power_server,
        "CM_MLPERF_POWER_NTP_SERVER": settings.ntp_server,
        "CM_MLPERF_POWER_SETTINGS": settings.power_settings,
        "CM_MLPERF_POWER_WIRING": settings.power_wiring,
        "CM_MLPERF_POWER_SUPPLIES": settings.power_supplies,
        "CM_MLPERF_POWER_SERVER_PORT": str(settings.power_port),
    }
    return step_inputs(settings.power, stated)


def _power_notes(job: Job) -> tuple[str, ...]:
    if job.settings.power == "no":
        return ()
    simulated = f"; {SIMULATED_POWER_NOTICE}" if job.settings.power == "simulated" else ""
    return (f"made twice in one power session, for ranging and for testing, of which the second counts{simulated}",)


def _with_power(job: Job, duration: Duration | None) -> Duration | None:
    """Return how long a run takes where it is made under power: ranging, testing, and what the session adds."""
    if duration is None or job.settings.power == "no":
        return duration
    source = f"{duration.source}: ranging and testing of {four_digits(duration.seconds)} s, {SESSION_S} s around them"
    return Duration(seconds=2 * duration.seconds + SESSION_S, source=source, at_least=duration.at_least)


def _measurement(
    name: str,
    inputs: Mapping[str, str | MeasuredTarget],
    gives: str,
    *,
    duration: Duration | None = None,
    condition: Condition | None = None,
    notes: tuple[str, ...] = (),
) -> Step:
    """Return the step of one LoadGen run."""
    return Step(
        name=name,
        tags="app,mlperf,inference,vllm",
        inputs=inputs,
        gives=gives,
        duration=duration,
        condition=condition,
        product=Product.RUN,
        notes=notes,
    )


def _run(scenario: Scenario, mode: Mode, folder: str) -> dict[str, str]:
    """Return the inputs of every LoadGen run: what it measures, and where its logs go."""
    return {SCENARIO: str(scenario), MODE: str(mode), FOLDER: folder}


# --- the submission --------------------------------------------------------------------------------------------------


def _submission(job: Job) -> Iterator[Step]:
    """Yield the steps that build the tree and check it, where one is made."""
    if job.no_tree:
        return
    yield Step(
        name="submission",
        tags="generate,mlperf,inference,submission",
        inputs={"CM_MLPERF_SUBMISSION_IN_JOB": "yes"},
        gives="submission/",
    )
    yield Step(name="truncation", tags="truncate,mlperf,inference,accuracy,log", gives="accuracy logs as submitted")
    if job.settings.run_checker:
        source = Condition(need=Need.ENDED_WELL, of=("checker source",)) if job.rehearsal else None
        yield Step(
            name="checkers",
            tags="run,mlperf,inference,submission,checker",
            gives="checker.json",
            condition=source,
            report_first=True,
        )
