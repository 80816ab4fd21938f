"""Notes on a job's unexpected behaviour, which plan and run show before anything is done."""

from collections.abc import Iterator

from cm4vllm import DUMMY_NOTICE, SIMULATED_NOTICE
from cm4vllm.campaign.job_checks.capabilities import reads_problems, unscored, unscored_words
from cm4vllm.campaign.settings import Job
from cm4vllm.loadgen.user_conf import REHEARSAL_DURATION_S, REHEARSAL_SAMPLES, rehearsal_queries
from cm4vllm.records.logs.early_stopping import missing_queries, passes
from cm4vllm.rules import Division, Mode, terms

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
        yield from (f"{benchmark.name}: not scored: {words}" for words in unscored_words(unscored(benchmark, problems)))


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
