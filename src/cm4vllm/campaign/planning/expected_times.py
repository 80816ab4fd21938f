"""Expected durations of the steps of a job, by the rates that a rehearsal in the same folder measured."""

import contextlib
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from cm4vllm.campaign.ledger import read_ledger
from cm4vllm.campaign.planning.minutes import Minutes, Rate, run_size, run_terms
from cm4vllm.campaign.planning.published_times import expected_rates
from cm4vllm.campaign.planning.run_targets import FOUND_BY_SEARCH
from cm4vllm.campaign.planning.step_environment import run_of
from cm4vllm.campaign.planning.step_values import measured_rate
from cm4vllm.campaign.planning.steps import SEARCH_RUNS, Duration, MeasuredTarget, Need, Product, Step
from cm4vllm.campaign.settings import Job
from cm4vllm.common.errors import CmError
from cm4vllm.common.units import four_digits
from cm4vllm.loadgen.measurement import RunInputs
from cm4vllm.loadgen.user_conf import rehearsal_queries
from cm4vllm.rules import ExecutionMode, Mode, Scenario

#: The steps whose tags say what is measured.
_SUBJECT = ("model", "quantisation", "dataset", "performance dataset", "server")
_REHEARSALS = str(ExecutionMode.TEST)


def with_expected_times(job: Job, steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return the steps of a job with how long its runs are expected to take, and notes on what that comes from.

    On this machine they are computed from what a rehearsal measured, on a named one from the nearest published results.
    """
    steps = tuple(_of_given_target(job, step) for step in steps)
    if job.machine is not None:
        return _on_named_machine(job, steps, expected_rates(job))
    rates = _rehearsed_rates(job, steps)
    if not job.rehearsal:
        return tuple(_full_length(job, step, rates.get(_terms_key(job, step))) for step in steps), ()
    minutes = Minutes(job, steps, rates=rates)
    known = tuple(replace(step, duration=minutes.expected(step) or step.duration) for step in steps)
    return known, tuple(_bound_notes(job, steps, rates))


def _of_given_target(job: Job, step: Step) -> Step:
    """Return a step with how long its run is at least where LoadGen paces its queries at a rate that is given."""
    if job.rehearsal or step.product is not Product.RUN or step.condition is not None:
        return step
    terms, target = run_terms(job, step), run_of(step).target_qps
    if not terms.paced or target is None or isinstance(target, MeasuredTarget):
        return step
    size = run_size(job, step, target, run_of(step))
    words = f"{size.queries:,} queries at the given {four_digits(target)} a second"
    return replace(step, duration=Duration(seconds=size.issue_s, source=words, at_least=True, by_rules=True))


def _on_named_machine(
    job: Job, steps: tuple[Step, ...], rates: Mapping[Scenario, Rate]
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return the steps with the least and the expected time of each."""
    if job.rehearsal:
        return steps, (
            f"--rehearsal_minutes={job.rehearsal_minutes:g} is an upper bound, from the start of the server on",
        )
    known = tuple(
        replace(step, expected=_full_length(job, step, rates.get(run_of(step).scenario)).duration)
        if step.product in (Product.RUN, Product.SEARCH)
        else step
        for step in steps
    )
    missing = [str(scenario) for scenario in job.scenarios if scenario not in rates]
    words = (
        f"{', '.join(missing)}: how long the runs take is not known: no published result with vLLM has this model, "
        "with weights of this data type, on such accelerators"
    )
    # The least length of a run is no expectation where nothing says how fast the server is.
    known = tuple(step if step.expected != step.duration else replace(step, expected=None) for step in known)
    return known, (words,) if missing else ()


#: The steps that are only taken where a run before was not valid.
_AGAIN = (Need.TOO_SHORT, Need.MISSED_LIMITS)


def hours_words(job: Job, steps: tuple[Step, ...]) -> str:
    """Return the least and the expected hours of all runs, searches and scores, for the last line of a plan."""
    if job.rehearsal:
        return f"hours: at most {job.rehearsal_minutes / 60:.2g} from the start of the server on"
    taken = [step for step in steps if step.condition is None or step.condition.need not in _AGAIN]
    least = sum(
        step.duration.seconds for step in taken if step.duration is not None and step.duration != FOUND_BY_SEARCH
    )
    runs = [step for step in taken if step.product in (Product.RUN, Product.SEARCH)]
    unknown = [step.name for step in runs if step.duration != FOUND_BY_SEARCH and _expected(step) is None]
    words = f"hours: at least {least / 3600:.2g}"
    if unknown:
        return f"{words}; expected: not known for {', '.join(unknown)}"
    expected = sum(seconds for step in taken if (seconds := _expected(step)) is not None)
    return f"{words}; expected {expected / 3600:.2g}, without downloads and the start of the server"


def _expected(step: Step) -> float | None:
    """Return the expected seconds of a step, None where only the least is known."""
    if step.expected is not None:
        return step.expected.seconds
    return step.duration.seconds if step.duration is not None and not step.duration.by_rules else None


def _terms_key(job: Job, step: Step) -> bool:
    """Return the key of a rehearsed rate: whether queries of the step's run follow each other."""
    is_run = step.product in (Product.RUN, Product.SEARCH)
    return run_terms(job, step).one_by_one if is_run else False


def _bound_notes(job: Job, steps: tuple[Step, ...], rates: dict[bool, Rate]) -> Iterator[str]:
    """Yield what bounds a rehearsal, and what the times of its runs are computed from."""
    source = " and ".join(rate.words for rate in rates.values())
    known = (
        f"the times of its runs are computed from {source} in {job.out}"
        if source
        else f"the times of its runs are not known, since no run in {job.out} measured a rate; it is measured first, "
        "and runs that would take too long by it have fewer queries"
    )
    yield f"--rehearsal_minutes={job.rehearsal_minutes:g} is an upper bound, from the start of the server on; {known}"
    limited = [
        terms
        for step in steps
        if step.product is Product.RUN and (terms := run_terms(job, step)).mode is Mode.PERFORMANCE and terms.limits
    ]
    if limited and not rates:
        names = ", ".join(dict.fromkeys(terms.scenario for terms in limited))
        yield (
            f"{names}: with fewer than {rehearsal_queries(limited[0]):,} queries, LoadGen's verdict may be INVALID for "
            "that alone; the run and the page say so"
        )


def _full_length(job: Job, step: Step, rate: Rate | None) -> Step:
    """Return a step of a valid job with how long its run is by the rules, at a rate that was measured.

    The rate that a search finds is not known: it is that of the server at most.
    """
    if step.product not in (Product.RUN, Product.SEARCH) or step.duration == FOUND_BY_SEARCH:
        return step
    terms, run = run_terms(job, step), run_of(step)
    if rate is None:
        return step
    is_searched = step.product is Product.SEARCH or (
        isinstance(run.target_qps, MeasuredTarget) and run.target_qps.searched
    )
    size = run_size(job, step, rate.value, replace(run, target_qps=rate.value) if is_searched else run)
    seconds = max(size.seconds, step.duration.seconds if step.duration and step.product is Product.RUN else 0.0)
    source = f"{size.queries:,} queries by {rate.words}"
    if step.product is Product.SEARCH:
        seconds, source = SEARCH_RUNS * seconds, f"{SEARCH_RUNS} full-length runs, each {source}"
    return replace(step, duration=Duration(seconds=seconds, source=source, at_least=terms.paced))


def _rehearsed_rates(job: Job, steps: tuple[Step, ...]) -> dict[bool, Rate]:
    """Return the rates that a rehearsal of the same model and server measured, by whether queries follow each other."""
    folder = job.out.parent / _REHEARSALS
    try:
        ledger = read_ledger(folder)
    except OSError:
        return {}
    tags = {step.name: step.tags for step in steps if step.name in _SUBJECT}
    if any(name in ledger.states and ledger.states[name].last.tags != asked for name, asked in tags.items()):
        return {}
    rates: dict[bool, Rate] = {}
    for name, state in ledger.states.items():
        if not state.good:
            continue
        with contextlib.suppress(CmError, OSError, KeyError):
            run = RunInputs.of(state.last.inputs)  # raises UsageError for a step that makes no run
            terms = job.terms(Scenario.parse(run.scenario), Mode.parse(run.mode))
            if not terms.paced:
                rates[terms.one_by_one] = Rate(
                    float(measured_rate(folder / run.output_dir)), f"{name} in the rehearsal"
                )
    return rates
