"""The schedule of a job: its steps in their order, as data. The job executes this list, and --plan prints it."""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from cm4vllm import SIMULATED_POWER_NOTICE
from cm4vllm.accuracy.rouge import expected_seconds
from cm4vllm.accuracy.scorer_needs import ScoreInputs
from cm4vllm.accuracy.scoring import scorer_of
from cm4vllm.campaign.amendments import added_inputs
from cm4vllm.campaign.planning.asset_steps import asset_steps, steps_before
from cm4vllm.campaign.planning.run_targets import (
    FOUND_BY_SEARCH,
    NO_LATENCY,
    NO_TARGET,
    RATE_STEP,
    SYSTEM,
    Target,
    given_target,
    is_at_once,
    is_one_by_one,
    is_searched,
    is_sized,
    is_target_kept,
    lacks_latency,
    lacks_rate,
    latency_name,
    run_duration,
    run_folder,
    run_name,
    run_place,
    search_duration,
    search_name,
    target_of_runs,
    target_share,
)
from cm4vllm.campaign.planning.step_environment import NOTHING, JobInputs, RunStep, StepEnvironment
from cm4vllm.campaign.planning.steps import (
    LATENCY_QUERIES,
    Condition,
    Duration,
    MeasuredTarget,
    Need,
    Product,
    Step,
    readable_text,
)
from cm4vllm.campaign.settings import Job
from cm4vllm.common import input_types
from cm4vllm.common.processors import usable_processors
from cm4vllm.common.units import four_digits
from cm4vllm.compliance.verification import VerificationInputs
from cm4vllm.loadgen.user_conf import REHEARSAL_SAMPLES
from cm4vllm.rules import Division, ExecutionMode, Mode, Scenario, Terms
from cm4vllm.serving.installation.vllm_choice import Choice
from cm4vllm.submission.tree_inputs import TreeSettings

#: The number of times that a full-length run which misses a limit at the rate found is made again at a lower rate.
BACK_OFFS = 2
#: Seconds that a power session adds to its two runs: 57 s and 83 s in published ones, 40 s with a simulated analyzer.
SESSION_S = 90


class CommonInputs(JobInputs, frozen=True, kw_only=True):
    """The inputs of every step of the job: the names that the settings stand for."""

    round: input_types.Round
    model: input_types.Benchmark
    division: input_types.Division
    category: input_types.Category
    submitter: input_types.Submitter


def environment_of(job: Job, typed: Mapping[str, str] = NOTHING) -> StepEnvironment:
    """Return the environment of the job's steps before the first; `typed` is what the user set by --env."""
    settings = job.settings
    common = CommonInputs(
        round=job.round.name,
        model=job.benchmark.name,
        execution_mode=str(job.execution_mode),
        division=str(job.division),
        category=str(job.category),
        submitter=settings.submitter,
        api_server=settings.api_server,
        results_dir=str(job.out),
    )
    return StepEnvironment(
        typed, Choice(variant="" if settings.api_server else settings.device), settings, common=common
    )


def schedule(job: Job) -> tuple[Step, ...]:
    """Return the steps of a job in their order. A value known only in the run is named by the step that exports it.

    Raises UsageError for an input of --adr that the job itself gives.
    """
    steps = (*steps_before(job), *asset_steps(job), *_runs(job), *_submission_steps(job))
    return tuple(replace(step, amended=added_inputs(step, job.step_inputs)) for step in steps)


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
        target = target_of_runs(job, scenario, latency_name(scenario) if measured else rate)
        if Mode.PERFORMANCE in job.modes:
            yield from _performance(job, scenario, target, searched=searched)
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
    inputs = _run(at_once, mode, str(job.out / "rate"), NO_TARGET)
    if mode is Mode.PERFORMANCE:  # of so many samples, however long they take
        inputs = replace(
            inputs, test_query_count=job.settings.test_query_count or REHEARSAL_SAMPLES, max_test_duration=""
        )
    yield _measurement(
        RATE_STEP,
        replace(inputs, execution_mode=ExecutionMode.TEST),
        "rate/run.json",
        condition=condition,
        notes=("no target QPS was given, and no accuracy run before gives the server's rate",),
    )


def _without_earlier(job: Job, scenarios: list[Scenario]) -> Condition | None:
    """Return the condition that an earlier result, whose target would be kept, is missing in one of the scenarios."""
    if not all(is_target_kept(job, scenario) for scenario in scenarios):
        return None
    places = tuple(run_place(scenario, Mode.PERFORMANCE) for scenario in scenarios)
    return Condition(need=Need.NO_EARLIER_RESULT, of=places)


def _latency(job: Job, scenario: Scenario) -> Iterator[Step]:
    """Yield the short run of its own that measures the mean latency, from which LoadGen computes how long a run is."""
    folder = f"latency/{scenario}"
    inputs = replace(
        _run(scenario, Mode.PERFORMANCE, str(job.out / folder), NO_LATENCY),
        execution_mode=ExecutionMode.TEST,
        test_query_count=LATENCY_QUERIES,
    )
    yield _measurement(
        latency_name(scenario),
        inputs,
        f"{folder}/run.json",
        condition=_without_earlier(job, [scenario]),
        notes=("no target latency was given: a short run measures it",),
    )


def _accuracy(job: Job, scenario: Scenario, target: Target) -> Iterator[Step]:
    name, folder = run_name(scenario, Mode.ACCURACY), run_folder(job, scenario, Mode.ACCURACY)
    gives = readable_text(run_place(scenario, Mode.ACCURACY))
    # A stopped run continues with the answers that it had where the division permits it.
    inputs = replace(_run(scenario, Mode.ACCURACY, folder, target), keep_answers=job.division is Division.OPEN)
    yield _measurement(name, inputs, f"{gives}/run.json")
    if not job.scores:
        return
    yield Step(
        name=f"{name}: scores",
        tags="process,mlperf,accuracy",
        gives=f"{gives}/accuracy.json",
        product=Product.SCORES,
        duration=None if job.rehearsal else _scoring_time(job, job.terms(scenario, Mode.ACCURACY)),
        inputs=ScoreInputs(
            result_dir=folder, graders=",".join(f"<<<CM_MLPERF_GRADER_{grader.upper()}>>>" for grader in job.graders)
        ),
    )


def _scoring_time(job: Job, terms: Terms) -> Duration | None:
    """Return how long ROUGE of a whole dataset takes; None where nothing is scored by it, or nothing known of cores."""
    cores = usable_processors() if job.machine is None else job.machine.cores
    types, tokens = scorer_of(terms).rouge, terms.mean_tokens or terms.generation.max_tokens
    if not types or not tokens or not cores:
        return None
    answers = f"{terms.samples:,} answers of {tokens:,.0f} tokens on {cores} cores"
    seconds = expected_seconds(terms.samples, tokens, types, cores)
    return Duration(seconds=seconds, source=f"estimated for ROUGE of {answers}")


def _performance(job: Job, scenario: Scenario, target: Target, *, searched: bool) -> Iterator[Step]:
    """Yield the performance run, and those that follow where a target that we chose does not lead to a valid one.

    It may end too early to be valid, or at the rate found miss a limit at full length: then lower rates are tried.
    """
    name, folder = run_name(scenario, Mode.PERFORMANCE), run_folder(job, scenario, Mode.PERFORMANCE)
    gives = f"{readable_text(run_place(scenario, Mode.PERFORMANCE))}/run.json"
    under_power = None if job.settings.power == "no" else job.settings.power
    inputs = replace(_run(scenario, Mode.PERFORMANCE, folder, target), under_power=under_power)
    duration = _with_power(job, run_duration(job, scenario))
    first = FOUND_BY_SEARCH if searched and not job.rehearsal else duration
    yield _measurement(name, inputs, gives, duration=first, notes=_power_notes(job))
    if job.rehearsal:
        return
    for times in range(1, BACK_OFFS + 1) if searched else ():
        yield _measurement(
            f"{name} again{f' ({times})' if times > 1 else ''}",
            replace(inputs, target_qps=MeasuredTarget(step=search_name(scenario), searched=True, lowered=times)),
            gives,
            duration=duration,
            condition=Condition(need=Need.MISSED_LIMITS, of=(name,)),
        )
    if is_sized(job, scenario) and given_target(job, scenario) is None:
        measured = MeasuredTarget(step=name, share=target_share(job, scenario), one_by_one=is_one_by_one(job, scenario))
        again = replace(inputs, target_qps=measured)
        yield _measurement(
            f"{name} again", again, gives, duration=duration, condition=Condition(need=Need.TOO_SHORT, of=(name,))
        )


def _compliance(job: Job, scenario: Scenario, test: str, target: Target) -> Iterator[Step]:
    """Yield the run of a compliance test and its verification; a test that fails ends the job after the report."""
    name, place = f"{scenario} {test}", f"runs/{SYSTEM}/{scenario}/{test}"
    folder, gives = f"{job.out}/{place}", readable_text(place)
    inputs = replace(_run(scenario, Mode.PERFORMANCE, folder, target), compliance_test=test)
    yield _measurement(name, inputs, f"{gives}/run.json")
    yield Step(
        name=f"{name}: verification",
        tags="process,mlperf,compliance",
        gives=f"{gives}/compliance.json",
        product=Product.VERDICT,
        inputs=VerificationInputs(test_dir=folder),
        report_first=True,
    )


def _search(job: Job, scenario: Scenario, rate: str) -> Iterator[Step]:
    """Yield the search for the highest rate that keeps the scenario's limits, from the rate on that `rate` measures."""
    folder = f"search/{scenario}"
    inputs = replace(
        _run(scenario, Mode.PERFORMANCE, str(job.out / folder), Target(MeasuredTarget(step=rate))),
        search_result_dir=run_folder(job, scenario, Mode.PERFORMANCE),
    )
    yield Step(
        name=search_name(scenario),
        tags="find,mlperf,inference,target-qps",
        inputs=inputs,
        gives=f"{folder}/search.json",
        condition=_without_earlier(job, [scenario]),
        product=Product.SEARCH,
        duration=search_duration(job, scenario),
        notes=(
            "short runs at different rates search for the highest rate that keeps the latency limits",
            "its logs take about 0.1 MB a probe, and 40 bytes more for each query of a full-length run",
        ),
    )


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
    return replace(duration, seconds=2 * duration.seconds + SESSION_S, source=source)


def _measurement(
    name: str,
    inputs: RunStep,
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


def _run(scenario: Scenario, mode: Mode, folder: str, target: Target) -> RunStep:
    """Return the inputs of every LoadGen run: what it measures and aims at, and where its logs go."""
    return RunStep(
        scenario=scenario, mode=mode, output_dir=folder, target_qps=target.qps, target_qps_source=target.source
    )


# --- the submission --------------------------------------------------------------------------------------------------


def _submission_steps(job: Job) -> Iterator[Step]:
    """Yield the steps that build the tree and check it, where one is made."""
    if job.no_tree:
        return
    tree = TreeSettings(in_job=True)
    yield Step(name="submission", tags="generate,mlperf,inference,submission", inputs=tree, gives="submission/")
    yield Step(name="truncation", tags="truncate,mlperf,inference,accuracy,log", gives="accuracy logs as submitted")
    if job.settings.run_checker:
        yield Step(
            name="checkers",
            tags="run,mlperf,inference,submission,checker",
            gives="checker.json",
            condition=Condition(need=Need.ENDED_WELL, of=("checker source",)) if job.rehearsal else None,
            report_first=True,
        )
