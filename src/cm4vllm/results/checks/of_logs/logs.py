"""LoadGen's performance logs against the rules of their round, and against our records of the runs."""

import math
from collections.abc import Iterator

from cm4vllm import rules
from cm4vllm.common.checking.checks import Fault, check
from cm4vllm.common.checking.findings import Severity
from cm4vllm.results.checks.of_logs.shared_logs import is_inferred
from cm4vllm.results.checks.subjects import Part, measured, parts, with_submission
from cm4vllm.results.endpoints.endpoints_harness import ENDPOINTS
from cm4vllm.results.model import Accuracy, Performance, Result, Submission

#: The difference allowed between LoadGen's token count and the client's: LoadGen's logs round rates to six digits.
TOKENS_TOLERANCE = 0.001

_CONSTANTS = "tools/submission/submission_checker/constants.py"
_AGAIN = "remove the run's folder and run it again"


@check("LOG-SCENARIO", source="loadgen/test_settings.h", remedy=_AGAIN, each=with_submission(measured))
def scenario(submission: Submission, result: Result, part: Performance) -> Iterator[Fault]:
    """LoadGen ran the scenario that the result is of."""
    if part.terms is None or is_inferred(submission, result):
        return
    if part.loadgen_scenario != part.terms.loadgen_scenario:
        yield Fault(
            f"LoadGen ran {part.loadgen_scenario} where the result is of {part.terms.scenario}",
            part.log,
            "effective_scenario",
            part.loadgen_scenario,
            part.terms.loadgen_scenario,
        )


@check("LOG-SEEDS", source=f"{_CONSTANTS}, seeds", remedy=_AGAIN, each=parts)
def seeds(_: Result, part: Part) -> Iterator[Fault]:
    """A log has the three seeds of its round."""
    is_accuracy = isinstance(part, Accuracy)
    if part.terms is None or part.terms.round not in rules.round_names() or (is_accuracy and part.detail is None):
        return
    # A record may state other seeds; the terms of a log in a tree are the rules' own, and those of its test.
    stated = rules.round_terms(part.terms.round).seeds if part.run else part.terms.seeds
    by_endpoints = isinstance(part, Performance) and part.harness == ENDPOINTS
    expected = (None if by_endpoints else stated.qsl), stated.sample_index, stated.schedule
    if part.seeds != expected:
        yield Fault(
            f"the seeds of the {'accuracy run' if is_accuracy else 'log'} are not those of round {part.terms.round}",
            part.log,
            "effective_qsl_rng_seed, effective_sample_index_rng_seed, effective_schedule_rng_seed",
            part.seeds,
            expected,
            # An accuracy run answers every sample, in whatever order: no official checker reads its seeds.
            severity=Severity.WARNING if is_accuracy else None,
        )


@check("LOG-MIN-DURATION", source=f"{_CONSTANTS}, min duration", remedy=_AGAIN, each=measured)
def min_duration(_: Result, part: Performance) -> Iterator[Fault]:
    """A result's run was configured to last the minimum duration at least."""
    if part.terms is None or (part.run and part.run.settings.rehearsal):
        return
    wanted = part.terms.min_duration_ms / 1e3
    if part.min_duration < wanted:
        yield Fault(
            f"a result needs a minimum duration of {wanted:g} s, LoadGen was given {part.min_duration}",
            part.log,
            "effective_min_duration_ms",
            part.min_duration * 1e3,
            part.terms.min_duration_ms,
        )


@check("LOG-TARGET-QPS", source="user.conf of the run", remedy=_AGAIN, each=measured)
def target_qps(_: Result, part: Performance) -> Iterator[Fault]:
    """LoadGen was given the target QPS of the record."""
    wanted = part.run.settings.target_qps if part.run else 0.0
    if wanted and not math.isclose(wanted, part.target_qps, rel_tol=1e-4):
        yield Fault(
            f"LoadGen was asked for target_qps {part.target_qps:g}, the record says {wanted:g}",
            part.log,
            "effective_target_qps",
            part.target_qps,
            wanted,
        )


@check("TOKENS-RATE", source="loadgen/results.cc, tps_as_completed and tokens_per_second", remedy=_AGAIN, each=measured)
def tokens_rate(_: Result, part: Performance) -> Iterator[Fault]:
    """tokens/s is samples/s times the tokens of a sample: LoadGen's log against the client's count."""
    rate, duration = part.tokens_per_second, part.duration
    if part.run is None or rate is None or not duration:
        return
    counted = part.run.client.reported_tokens or part.run.client.completion_tokens
    least, most = (rate * (duration + last) for last in _last_answer_s(part))
    if not least * (1 - TOKENS_TOLERANCE) <= counted <= most * (1 + TOKENS_TOLERANCE):
        yield Fault(
            f"tokens/s is not samples/s times tokens per sample in {part.log}",
            part.log,
            part.figures["tokens_per_second"].source.field,
            f"{rate} at {part.samples_per_second}, which makes {rate * duration:,.0f} tokens",
            f"the {counted:,} tokens that the client reported to LoadGen",
        )


def _last_answer_s(part: Performance) -> tuple[float, float]:
    """Return in s how much longer than its duration a run lasts at least and at most until all is answered.

    Where queries come one by one LoadGen's duration ends when it issues the last one, but its tokens/s are of the time
    until that one is answered (loadgen/results.cc, final_query_issued_time and final_query_all_samples_done_time).
    """
    if not part.one_by_one:
        return 0.0, 0.0
    return (part.figures.value("latency_min") or 0.0) / 1e3, (part.figures.value("latency_max") or 0.0) / 1e3
