"""Notes on a job's unexpected behaviour, which plan and run show before anything is done."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cm4vllm import DUMMY_NOTICE, SIMULATED_NOTICE
from cm4vllm.campaign.job_checks.capabilities import reads_problems, unscored_metrics, unscored_words
from cm4vllm.campaign.planning.run_targets import given_target, run_name
from cm4vllm.campaign.rehearsal.profile import read_profile
from cm4vllm.campaign.settings import Job
from cm4vllm.common.units import four_digits
from cm4vllm.hardware.readiness import MachineLimits
from cm4vllm.loadgen.limits import Demand, Load, highest_rate, load_of, needs
from cm4vllm.loadgen.settings import in_flight_of, longest_answer
from cm4vllm.loadgen.user_conf import REHEARSAL_DURATION_S, REHEARSAL_SAMPLES, rehearsal_queries, user_conf
from cm4vllm.records.logs.early_stopping import missing_queries, passes
from cm4vllm.records.vllm.given_options import OptionValue
from cm4vllm.records.vllm.server_needs import api_processes, ring_buffer_bytes
from cm4vllm.rules import Division, Mode, Scenario, terms
from cm4vllm.serving.launch_settings import asked_options
from cm4vllm.serving.probing.server_requests import base_urls

#: The differences of a job with random weights.
_DUMMY_NOTE = (
    f"{DUMMY_NOTICE}: the model has random weights, and each answer one fixed length; only the performance is "
    "measured, and no submission can be made of it"
)
#: The differences of a job on a simulated server.
_SIMULATED_NOTE = (
    f"{SIMULATED_NOTICE}: the server is simulated, with the times of --rehearse's profile; its answers mean nothing: "
    "accuracy is not scored, and no submission can be made of it"
)


def job_notes(job: Job) -> tuple[str, ...]:
    """Return the notes, one or two sentences each."""
    return (*_flag_notes(job), *_weight_notes(job), *_unscored_notes(job), *_length_notes(job), *_rehearsal_notes(job))


def _flag_notes(job: Job) -> Iterator[str]:
    """Yield the flags that have no effect, or another one than their name says."""
    settings = job.settings
    if settings.implementation == "reference":
        yield "--implementation=reference: the built-in asynchronous client takes the reference client's place"
    if settings.scenario and settings.all_scenarios:
        yield f"_all-scenarios overrides --scenario={settings.scenario}: all scenarios are run"
    if settings.device and settings.api_server:
        yield f"--device={settings.device}: ignored, it does not affect the server at --api_server"
    if not job.rehearsal:
        for flag, value in (
            ("test_query_count", settings.test_query_count),
            ("max_test_duration", settings.max_test_duration),
            ("rehearsal_minutes", settings.rehearsal_minutes),
        ):
            if value is not None:
                yield f"--{flag}={value}: ignored, a valid run has the length that the rules require"


def _weight_notes(job: Job) -> Iterator[str]:
    if job.settings.rehearse:
        yield _SIMULATED_NOTE
    elif job.sources.dummy:
        yield _DUMMY_NOTE


def _rehearsal_notes(job: Job) -> Iterator[str]:
    """Yield the properties of a result that a rehearsal lacks, and of LoadGen's verdict with the given queries."""
    if not job.rehearsal:
        return
    count, performance = job.settings.test_query_count, Mode.PERFORMANCE
    every = [job.terms(scenario, performance) for scenario in job.scenarios]
    most, least = job.benchmark.samples, max(run_terms.min_duration_ms for run_terms in every) / 1000
    size = f"{count:,} queries" if count else f"about {REHEARSAL_DURATION_S:g} s or {REHEARSAL_SAMPLES:,} samples"
    bound = f", fewer where it would take more than {job.rehearsal_minutes:g} minutes" if not count else ""
    yield f"a rehearsal has runs of {size}{bound}; a result needs {least:g} s and all {most:,} samples"
    few = [
        run_terms.scenario for run_terms in every if count and rehearsal_queries(run_terms) > 2 and not passes(count, 0)
    ]
    if few and performance in job.modes:
        yield (
            f"--test_query_count={count}: LoadGen calls {', '.join(few)} INVALID, because its test of the latencies "
            f"needs {missing_queries(0, 0):,} queries or more"
        )


def _unscored_notes(job: Job) -> Iterator[str]:
    benchmark, problems = job.benchmark, job.settings.livecodebench_path
    if problems and not (reads_problems(benchmark) and Mode.ACCURACY in job.modes):
        yield f"--livecodebench_path={problems}: ignored, no answer of this job is judged by LiveCodeBench's tests"
    if Mode.ACCURACY in job.modes:
        yield from (
            f"{benchmark.name}: not scored: {words}"
            for words in unscored_words(unscored_metrics(benchmark, problems, here=job.machine is None))
        )


def _length_notes(job: Job) -> Iterator[str]:
    """Yield what decides how long answers are, where the division states other lengths than the reference."""
    name, division = job.benchmark.name, job.division
    for mode in job.modes:
        stated, reference = (
            terms(job.round.name, name, job.scenarios[0], mode, each).generation for each in (division, Division.OPEN)
        )
        if (stated.min_tokens, stated.max_tokens) != (reference.min_tokens, reference.max_tokens):
            yield (
                f"{name}: answers of {mode} runs have {stated.min_tokens:,} to {stated.max_tokens:,} new "
                f"tokens, by the {stated.lengths_source}, which decides in the {division} division; the "
                f"{reference.source} has {reference.min_tokens:,} to {reference.max_tokens:,}"
            )


#: A rate that bounds nothing: where no rate is known, what does not depend on it is found with this one, in queries/s.
_ANY_RATE = 1e9


def machine_notes(job: Job, limits: MachineLimits) -> tuple[str, ...]:
    """Return the needs of the job's runs on the machine: those of the largest run, and the rates that fit.

    Raises LimitTooLow for a run that the machine's limits do not allow.
    """
    options = _server_options(job)
    known: list[Demand] = []
    notes: list[str] = []
    for scenario in job.scenarios:
        for mode in job.modes:
            load, rate = _load(job, scenario, mode, options), given_target(job, scenario)
            demand = _demand(job, scenario, mode, options, load, rate)
            need = needs(demand, limits)
            if load.at(rate) is not None:
                known.append(need)
            else:
                notes.extend(_rate_notes(demand, load, limits))
    if known:
        most = max(known, key=lambda known_need: known_need.most_files)
        allowed = "no limit is set" if limits.open_files is None else f"{limits.open_files:,} are allowed (ulimit -Hn)"
        notes.insert(0, f"this machine: {most.words}; {allowed}")
    return tuple(notes)


def _server_options(job: Job) -> dict[str, OptionValue]:
    """Return the options of the servers that the job starts, none where they run already."""
    if job.settings.api_server:
        return {}
    options = asked_options(job.settings.launch)
    if job.settings.rehearse:
        options = {"max-num-seqs": read_profile(job.settings.rehearse).server.max_num_seqs, **options}
    return options


def _load(job: Job, scenario: Scenario, mode: Mode, options: Mapping[str, OptionValue]) -> Load:
    terms, settings = job.terms(scenario, mode), job.settings
    conf = ""
    if terms.paced:
        conf = user_conf(
            terms,
            job.execution_mode,
            target_qps=given_target(job, scenario) or _ANY_RATE,
            test_query_count=settings.test_query_count,
            max_test_duration_s=settings.max_test_duration,
        ).text
    samples = min(settings.test_query_count or REHEARSAL_SAMPLES, terms.samples) if job.rehearsal else terms.samples
    return load_of(
        terms,
        conf,
        samples=samples,
        max_tokens=longest_answer(terms, fixed=job.sources.dummy and not settings.rehearse),
        max_in_flight=settings.max_in_flight or in_flight_of(options) * _servers(job),
    )


def _demand(
    job: Job, scenario: Scenario, mode: Mode, options: Mapping[str, OptionValue], load: Load, rate: float | None
) -> Demand:
    urls = base_urls(job.settings.api_server) if job.settings.api_server else []
    open_ = load.at(rate)
    return Demand(
        title=f"the {run_name(scenario, mode)} run",
        open=1 if open_ is None else open_,
        why=load.words(rate),
        at_once=job.terms(scenario, mode).at_once,
        servers=_servers(job),
        api_processes=0 if job.settings.api_server else api_processes(options),
        tcp=not urls or not all(url.startswith("unix:") for url in urls),
        ring_buffer_bytes=0 if job.settings.rehearse or job.settings.launch.container else ring_buffer_bytes(options),
        workers=job.settings.num_workers or 0,
    )


def _servers(job: Job) -> int:
    return len(base_urls(job.settings.api_server)) if job.settings.api_server else job.settings.launch.servers


def _rate_notes(demand: Demand, load: Load, limits: MachineLimits) -> Iterator[str]:
    """Yield the highest rate that fits, where the run's rate is not known yet and the machine bounds it."""

    def demand_at(rate: float) -> Demand:
        return replace(demand, open=load.at(rate) or demand.open)

    rate, _ = highest_rate(demand_at, limits)
    if rate < math.inf:
        fits = needs(demand_at(rate), limits)
        yield (
            f"this machine: {demand.title}, whose rate is measured before it, may have {fits.open:,} requests open at "
            f"once, with {fits.files_in_words}: a rate above about {four_digits(rate)} queries/s is refused"
        )
