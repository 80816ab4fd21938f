"""The schedule of a job: its steps in their order, as data. The job executes this list, and --plan prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from cm4vllm import SIMULATED_NOTICE
from cm4vllm.campaign.searches import FOUND_BY_SEARCH, search_duration, settings_search
from cm4vllm.campaign.settings import Job
from cm4vllm.campaign.steps import FOLDER, Check, Condition, Duration, MeasuredTarget, Need, Product, Step, shown
from cm4vllm.campaign.targets import LATENCY_QUERIES, LATENCY_SHARE, OFFLINE_MARGIN, REHEARSAL_MARGIN, SERVER_SHARE
from cm4vllm.loadgen.user_conf import REHEARSAL_DURATION_S, REHEARSAL_SAMPLES
from cm4vllm.rules import Division, Mode, RateUse, Scenario, audit

__all__ = ["FOLDER", "TARGET", "TARGET_SOURCE", "common_inputs", "schedule", "with_durations"]

TEST = "CM_MLPERF_LOADGEN_COMPLIANCE_TEST"
SCENARIO, MODE = "CM_MLPERF_LOADGEN_SCENARIO", "CM_MLPERF_LOADGEN_MODE"
#: Whether an accuracy run that was stopped goes on with the answers that it had: in the open division.
KEEP = "CM_MLPERF_KEEP_ANSWERS"
TARGET, TARGET_SOURCE = "CM_MLPERF_LOADGEN_TARGET_QPS", "CM_MLPERF_LOADGEN_TARGET_QPS_SOURCE"
#: The step that measures the server's rate where no accuracy run gives it.
_RATE = "Offline rate"
#: How often a full-length run that misses a limit at the rate found is made again at a lower one.
BACK_OFFS = 2
_NO_TARGET = {TARGET: "1", TARGET_SOURCE: "unused: every sample is sent at once"}
_NO_LATENCY = {TARGET: "", TARGET_SOURCE: "unused: each query follows the answer before it"}
_SYSTEM = "<<<CM_SUT_NAME>>>/<<<CM_ML_MODEL_NAME>>>"


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
    """Return the steps of a job in their order. A value known only in the run is named by the step that exports it."""
    return (*_before(job), *_assets(job), *_runs(job), *_submission(job))


def with_durations(steps: tuple[Step, ...], known: Mapping[str, Duration]) -> tuple[Step, ...]:
    """Return the steps with how long those of the same names took before, where the schedule does not say it."""
    return tuple(msgspec.structs.replace(step, duration=step.duration or known.get(step.name)) for step in steps)


def _before(job: Job) -> Iterator[Step]:
    """Give the steps before hours are spent: a result that cannot be checked is not begun."""
    if job.settings.run_checker and not job.no_tree:
        yield Step(
            name="checker source",
            tags="get,mlperf,inference,src",
            gives="the official checkers' files",
            without="the official checker will not run on this rehearsal" if job.rehearsal else "",
        )
    for name in job.graders:
        yield Step(
            name=f"grader {name}",
            tags=f"get,mlperf,grader,_{name}",
            gives="an official script that judges answers, and its environment",
            without="what it judges will not be scored in this rehearsal" if job.rehearsal else "",
        )


def _assets(job: Job) -> Iterator[Step]:
    """Give the steps up to a server that is ready and a machine that is described."""
    sources, given = job.sources, bool(job.settings.api_server)
    if given:  # before all else: a wrong address should not cost a download
        yield _server(job)
    yield Step(
        name="LoadGen",
        tags=f"get,mlperf,inference,loadgen,_r{job.round.name.removeprefix('v')}",
        gives=f"the LoadGen wheel of {job.round.name}",
    )
    yield Step(
        name="model",
        tags=f"get,ml-model,{sources.model}",
        gives="the model's folder and its record",
        brings=sources.model_brings,
        notes=sources.model_notes,
        checks=(Check.VOCABULARY,) if given else (),
    )
    if job.proves_model:
        yield _identity("model identity")
    if job.quantisation:
        yield Step(
            name="calibration set",
            tags=f"get,dataset,_calibration,{sources.calibration}",
            gives="the calibration set's file and its record",
            brings=sources.calibration_brings,
        )
        yield Step(
            name="quantisation",
            tags=f"quantize,ml-model,{job.quantisation}",
            gives="the quantised model's folder and its record",
        )
        if job.proves_model:
            yield _identity("quantised model identity")
    yield from _datasets(job)
    if job.needs_sentence_model:
        yield Step(name="sentence model", tags="get,nltk-data", gives="nltk's sentence model, for the scores")
    if not given:
        if job.space is not None:
            yield settings_search(job, job.space)
        yield _server(job)
    if not job.settings.rehearse:
        yield Step(name="processors", tags="detect,cpu", gives="facts of this machine's processors")
    yield Step(
        name="system",
        tags="get,sut,description",
        inputs={"CM_SUT_DIR": str(job.out / "system")},
        gives="system/system.json, system/machine.json",
    )


def _datasets(job: Job) -> Iterator[Step]:
    """Give the steps that provide the dataset of each mode: mostly it is one."""
    sources = job.sources
    if Mode.ACCURACY in job.modes or not sources.performance:
        yield Step(
            name="dataset",
            tags=f"get,dataset,{sources.dataset}",
            gives="the dataset's file and its record",
            brings=sources.dataset_brings,
        )
    if sources.performance:
        yield Step(
            name="performance dataset",
            tags=f"get,dataset,_performance,{sources.performance}",
            gives="the file and the record of performance runs' dataset",
            brings=sources.performance_brings,
        )
    for test in job.tests:
        if _has_own_dataset(job, test):
            yield Step(
                name=f"{test} dataset",
                tags=f"get,dataset,_compliance.{test},{sources.compliance}",
                gives="the file and the record of the test's dataset",
                brings=sources.compliance_brings,
            )


def _identity(name: str) -> Step:
    return Step(name=name, tags="verify,ml-model", gives="the model's record under the name of the benchmark")


def _server(job: Job) -> Step:
    """Return the step that checks the given server, or starts one for the model that the steps before provide."""
    given = bool(job.settings.api_server)
    named = {} if given else {"CM_VLLM_SERVER_MODEL_NAME": ""}
    return Step(
        name="server",
        tags="run,simulated-vllm-server" if job.settings.rehearse else "run,vllm-server",
        gives="server/server.json",
        notes=(f"{SIMULATED_NOTICE}: with the times of the profile {job.settings.rehearse}",)
        if job.settings.rehearse
        else (),
        product=None if given else Product.SERVER,
        checks=(Check.NAMED_MODEL,) if given and not job.sources.named else (),
        inputs={**named, "CM_VLLM_SERVER_BACKGROUND": "yes", "CM_VLLM_SERVER_DIR": str(job.out / "server")},
    )


# --- the LoadGen runs ------------------------------------------------------------------------------------------------


def _runs(job: Job) -> Iterator[Step]:
    rate = ""
    for scenario in job.scenarios:
        at_once = _at_once(job, scenario)
        if at_once and Mode.ACCURACY in job.modes:
            yield from _accuracy(job, scenario, _NO_TARGET)
            if not job.sources.performance:  # the rate of other prompts and lengths is another
                rate = _name(scenario, Mode.ACCURACY)
        if not rate and (wanting := [one for one in job.scenarios if _lacks_rate(job, one)]):
            yield from _rate(job, wanting)
            rate = _RATE
        if searched := _is_searched(job, scenario):
            yield from _search(job, scenario, rate)
        if measured := _lacks_latency(job, scenario):
            yield from _latency(job, scenario)
        target = _target(job, scenario, _latency_name(scenario) if measured else rate)
        if Mode.PERFORMANCE in job.modes:
            yield from _performance(job, scenario, target, searched=searched)
            if searched and not job.rehearsal:
                yield from _backed_off(job, scenario, target)
        if not at_once and Mode.ACCURACY in job.modes:
            needs_rate = job.terms(scenario, Mode.ACCURACY).needs_rate
            yield from _accuracy(job, scenario, target if needs_rate else _NO_LATENCY)
        for test in job.tests:
            yield from _compliance(job, scenario, test, target)


def _rate(job: Job, scenarios: list[Scenario]) -> Iterator[Step]:
    """Give the short run of its own that measures the server's rate, where no accuracy run before gives it."""
    condition = None
    if all(_keeps_target(job, scenario) for scenario in scenarios):
        condition = Condition(
            need=Need.NO_EARLIER_RESULT, of=tuple(_place(scenario, Mode.PERFORMANCE) for scenario in scenarios)
        )
    at_once = next(scenario for scenario in job.benchmark.scenarios if _at_once(job, scenario))
    mode = Mode.PERFORMANCE if job.sources.performance else Mode.ACCURACY
    inputs = {**_run(job, at_once, mode, str(job.out / "rate")), **_NO_TARGET, "CM_MLPERF_RUN_STYLE": "test"}
    if mode is Mode.PERFORMANCE:  # of so many samples, however long they take
        count = job.settings.test_query_count or REHEARSAL_SAMPLES
        inputs |= {"CM_TEST_QUERY_COUNT": str(count), "CM_MLPERF_MAX_DURATION_TEST": ""}
    yield from _measurement(
        _RATE,
        inputs,
        "rate/run.json",
        condition=condition,
        notes=("no target QPS was given, and no accuracy run before gives the server's rate",),
    )


def _latency(job: Job, scenario: Scenario) -> Iterator[Step]:
    """Give the short run of its own that measures the mean latency, from which LoadGen computes how long a run is."""
    condition = None
    if _keeps_target(job, scenario):
        condition = Condition(need=Need.NO_EARLIER_RESULT, of=(_place(scenario, Mode.PERFORMANCE),))
    folder = f"latency/{scenario}"
    inputs = {
        **_run(job, scenario, Mode.PERFORMANCE, str(job.out / folder)),
        **_NO_LATENCY,
        "CM_MLPERF_RUN_STYLE": "test",
        "CM_TEST_QUERY_COUNT": str(LATENCY_QUERIES),
    }
    yield from _measurement(
        _latency_name(scenario),
        inputs,
        f"{folder}/run.json",
        condition=condition,
        notes=("no target latency was given: a short run measures it",),
    )


def _accuracy(job: Job, scenario: Scenario, target: Mapping[str, str | MeasuredTarget]) -> Iterator[Step]:
    name, folder = _name(scenario, Mode.ACCURACY), _folder(job, scenario, Mode.ACCURACY)
    gives = shown(_place(scenario, Mode.ACCURACY))
    inputs = {
        **_run(job, scenario, Mode.ACCURACY, folder),
        **target,
        KEEP: "yes" if job.division is Division.OPEN else "no",
    }
    yield from _measurement(name, inputs, f"{gives}/run.json")
    if not job.scores:
        return
    yield Step(
        name=f"{name}: scores",
        tags="process,mlperf,accuracy",
        gives=f"{gives}/accuracy.json",
        product=Product.SCORES,
        inputs={
            "CM_MLPERF_ACCURACY_RESULTS_DIR": folder,
            "CM_MLPERF_GRADERS": ",".join(f"<<<CM_MLPERF_GRADER_{one.upper()}>>>" for one in job.graders),
        },
    )


def _performance(
    job: Job, scenario: Scenario, target: Mapping[str, str | MeasuredTarget], *, searched: bool
) -> Iterator[Step]:
    """Give the performance run, and once more where a target that we chose may let it end too early to be valid."""
    name, folder = _name(scenario, Mode.PERFORMANCE), _folder(job, scenario, Mode.PERFORMANCE)
    gives = f"{shown(_place(scenario, Mode.PERFORMANCE))}/run.json"
    inputs = {**_run(job, scenario, Mode.PERFORMANCE, folder), **target}
    duration = _duration(job, scenario)
    first = FOUND_BY_SEARCH if searched and not job.rehearsal else duration
    yield from _measurement(name, inputs, gives, duration=first)
    if _is_sized(job, scenario) and _given(job, scenario) is None and not job.rehearsal:
        again = {
            **inputs,
            TARGET: MeasuredTarget(step=name, share=_share(job, scenario), one_by_one=_one_by_one(job, scenario)),
        }
        yield from _measurement(
            f"{name} again", again, gives, duration=duration, condition=Condition(need=Need.TOO_SHORT, of=(name,))
        )


def _compliance(job: Job, scenario: Scenario, test: str, target: Mapping[str, str | MeasuredTarget]) -> Iterator[Step]:
    """Give the run of a compliance test and its verification; a test that fails ends the job after the report."""
    name, place = f"{scenario} {test}", f"runs/{_SYSTEM}/{scenario}/{test}"
    folder, gives = f"{job.out}/{place}", shown(place)
    inputs = {**_run(job, scenario, Mode.PERFORMANCE, folder), TEST: test, **target}
    if _has_own_dataset(job, test):
        inputs["CM_DATASET_RECORD"] = "<<<CM_COMPLIANCE_DATASET_RECORD>>>"
    yield from _measurement(name, inputs, f"{gives}/run.json")
    yield Step(
        name=f"{name}: verification",
        tags="process,mlperf,compliance",
        gives=f"{gives}/compliance.json",
        product=Product.VERDICT,
        inputs={"CM_MLPERF_COMPLIANCE_RESULTS_DIR": folder},
        report_first=True,
    )


def _has_own_dataset(job: Job, test: str) -> bool:
    return bool(audit(test, job.benchmark.name).own_dataset)


def _search(job: Job, scenario: Scenario, rate: str) -> Iterator[Step]:
    """Give the search for the highest rate that keeps the scenario's limits, from the rate on that `rate` measures."""
    condition = None
    if _keeps_target(job, scenario):
        condition = Condition(need=Need.NO_EARLIER_RESULT, of=(_place(scenario, Mode.PERFORMANCE),))
    folder = f"search/{scenario}"
    inputs: dict[str, str | MeasuredTarget] = {
        **_run(job, scenario, Mode.PERFORMANCE, str(job.out / folder)),
        "CM_MLPERF_SEARCH_RESULT_DIR": _folder(job, scenario, Mode.PERFORMANCE),
        TARGET: MeasuredTarget(step=rate),
    }
    yield Step(
        name=_search_name(scenario),
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
    """Give the runs at lower rates that follow where one at the rate found misses a limit at full length."""
    before = _name(scenario, Mode.PERFORMANCE)
    gives = f"{shown(_place(scenario, Mode.PERFORMANCE))}/run.json"
    for times in range(1, BACK_OFFS + 1):
        name = f"{_name(scenario, Mode.PERFORMANCE)} again{f' ({times})' if times > 1 else ''}"
        inputs = {
            **_run(job, scenario, Mode.PERFORMANCE, _folder(job, scenario, Mode.PERFORMANCE)),
            **target,
            TARGET: MeasuredTarget(step=_search_name(scenario), found=True, lowered=times),
        }
        yield from _measurement(
            name,
            inputs,
            gives,
            duration=_duration(job, scenario),
            condition=Condition(need=Need.MISSED_LIMITS, of=(before,)),
        )


def _is_searched(job: Job, scenario: Scenario) -> bool:
    """Say whether the target of a scenario's runs is searched for: where no rate is given."""
    terms = job.terms(scenario, Mode.PERFORMANCE)
    return (
        job.searches_rate
        and terms.paced
        and terms.limits is not None
        and Mode.PERFORMANCE in job.modes
        and _given(job, scenario) is None
    )


def _search_name(scenario: Scenario) -> str:
    return f"{scenario} search"


def _measurement(
    name: str,
    inputs: Mapping[str, str | MeasuredTarget],
    gives: str,
    *,
    duration: Duration | None = None,
    condition: Condition | None = None,
    notes: tuple[str, ...] = (),
) -> Iterator[Step]:
    """Give the two steps of one LoadGen run: its settings, and the run."""
    yield Step(
        name=f"{name}: settings",
        tags="generate,user-conf,mlperf,inference",
        inputs=inputs,
        gives="user.conf",
        condition=condition,
    )
    yield Step(
        name=name,
        tags="app,mlperf,inference,vllm",
        inputs=inputs,
        gives=gives,
        duration=duration,
        condition=condition,
        product=Product.RUN,
        notes=notes,
    )


def _run(job: Job, scenario: Scenario, mode: Mode, folder: str) -> dict[str, str]:
    """Return the inputs of every LoadGen run: what it measures, on which dataset, and where its logs go."""
    inputs = {SCENARIO: str(scenario), MODE: str(mode), FOLDER: folder}
    if mode is Mode.PERFORMANCE and job.sources.performance:
        inputs["CM_DATASET_RECORD"] = "<<<CM_PERFORMANCE_DATASET_RECORD>>>"
    return inputs


def _name(scenario: Scenario, mode: Mode) -> str:
    return f"{scenario} {mode}"


def _place(scenario: Scenario, mode: Mode) -> str:
    """Return the folder of a run below the results."""
    return f"runs/{_SYSTEM}/{scenario}/{mode}"


def _folder(job: Job, scenario: Scenario, mode: Mode) -> str:
    return f"{job.out}/{_place(scenario, mode)}"


def _at_once(job: Job, scenario: Scenario) -> bool:
    """Say whether LoadGen sends all samples at once, so that the time they take gives the server's rate."""
    return job.terms(scenario, Mode.ACCURACY).at_once


def _one_by_one(job: Job, scenario: Scenario) -> bool:
    """Say whether each query follows the answer before it, so that a latency takes the place of a rate."""
    return job.terms(scenario, Mode.PERFORMANCE).one_by_one


def _is_sized(job: Job, scenario: Scenario) -> bool:
    """Say whether LoadGen computes the size of a performance run from its target."""
    return job.terms(scenario, Mode.PERFORMANCE).rate is RateUse.SIZES


def _lacks_rate(job: Job, scenario: Scenario) -> bool:
    return not _one_by_one(job, scenario) and _given(job, scenario) is None


def _lacks_latency(job: Job, scenario: Scenario) -> bool:
    return (
        _one_by_one(job, scenario)
        and _given(job, scenario) is None
        and (Mode.PERFORMANCE in job.modes or bool(job.tests))
    )


def _latency_name(scenario: Scenario) -> str:
    return f"{scenario} latency"


def _given(job: Job, scenario: Scenario) -> float | None:
    """Return the target that the user gave; that of a paced scenario goes by LoadGen's name for it, Server."""
    settings = job.settings
    if _one_by_one(job, scenario):
        latency = settings.singlestream_target_latency
        return None if latency is None else 1000 / latency
    return settings.offline_target_qps if _at_once(job, scenario) else settings.server_target_qps


def _target(job: Job, scenario: Scenario, rate: str) -> dict[str, str | MeasuredTarget]:
    """Return the inputs that say what a scenario's runs aim at: as given, or by what the step `rate` measures."""
    given, one_by_one = _given(job, scenario), _one_by_one(job, scenario)
    if given is not None:
        flag = job.terms(scenario, Mode.PERFORMANCE).loadgen_scenario.lower()
        return {TARGET: str(given), TARGET_SOURCE: f"given by --{flag}_target_{'latency' if one_by_one else 'qps'}"}
    kept = _place(scenario, Mode.PERFORMANCE) if _keeps_target(job, scenario) else ""
    if _is_searched(job, scenario):
        return {TARGET: MeasuredTarget(step=_search_name(scenario), found=True, kept_from=kept)}
    return {TARGET: MeasuredTarget(step=rate, share=_share(job, scenario), kept_from=kept, one_by_one=one_by_one)}


def _share(job: Job, scenario: Scenario) -> float:
    """Return the part of a measured rate that a scenario's runs aim at."""
    if _one_by_one(job, scenario):
        return LATENCY_SHARE
    if not _at_once(job, scenario):
        return SERVER_SHARE
    return REHEARSAL_MARGIN if job.rehearsal else OFFLINE_MARGIN


def _keeps_target(job: Job, scenario: Scenario) -> bool:
    """Say whether the target of a valid result of an earlier run is kept."""
    return not job.rehearsal and not any(map(job.reruns, (_search_name(scenario), _latency_name(scenario), _RATE)))


def _duration(job: Job, scenario: Scenario) -> Duration | None:
    """Return how long a performance run lasts at least; None where the number of its queries is given."""
    if not job.rehearsal:
        least = job.terms(scenario, Mode.PERFORMANCE).min_duration_ms
        return Duration(seconds=least / 1000, source="by the rules", at_least=True)
    if job.settings.test_query_count is not None:
        return None
    longest = job.settings.max_test_duration or REHEARSAL_DURATION_S
    return Duration(seconds=min(REHEARSAL_DURATION_S, longest), source="as a rehearsal", at_least=True)


# --- the submission --------------------------------------------------------------------------------------------------


def _submission(job: Job) -> Iterator[Step]:
    """Give the steps that build the tree and check it, where one is made."""
    if job.no_tree:
        return
    yield Step(name="submission", tags="generate,mlperf,inference,submission", gives="submission/")
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
