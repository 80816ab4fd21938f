"""user.conf: LoadGen's settings beyond the mlperf.conf that is compiled into it.

LoadGen reads a key in this order: model.scenario, *.scenario, model.*, *.* (loadgen/test_settings_internal.cc,
FromConfig); what user.conf sets replaces what mlperf.conf sets. Times are in ms.
"""

import os
from dataclasses import dataclass

from cm4vllm.common.errors import DatasetError, UsageError
from cm4vllm.common.progress import say_facts
from cm4vllm.records.logs.early_stopping import missing_queries
from cm4vllm.rules import ExecutionMode, Mode, Terms

#: Seconds that a rehearsal's performance run issues queries, unless a count or a shorter time is asked for.
REHEARSAL_DURATION_S = 10.0
#: Samples of the query sample library in a rehearsal: what its accuracy run covers.
REHEARSAL_SAMPLES = 256
#: A rehearsal has queries enough for LoadGen's early-stopping test although so many of them are over a latency limit.
_REHEARSAL_OVER = 1
#: The least queries from which LoadGen estimates the 90th percentile of a latency (loadgen/early_stopping.cc).
LEAST_ONE_BY_ONE = 64
#: LoadGen asks for this many times the samples of the target rate and the least duration (test_settings_internal.cc).
_SLACK = 1.1
#: Bytes that LoadGen keeps for each sample that it generates (SampleMetadata, query_sample.h), and the share of the
#: machine's memory that this may take.
_SAMPLE_BYTES, _MEMORY_SHARE = 32, 0.5


@dataclass(frozen=True)
class UserConf:
    """The settings of one run. `samples` is the size of its query sample library; None leaves a key to mlperf.conf.

    Where a query follows the answer before it, `target_qps` is written as the latency that it comes from.
    """

    terms: Terms
    rehearsal: bool
    samples: int
    target_qps: float | None
    min_duration_ms: int
    min_query_count: int | None = None
    performance_sample_count: int | None = None

    @property
    def text(self) -> str:
        """The text of user.conf."""
        name, scenario, rate = self.terms.loadgen_name, self.terms.loadgen_scenario, self.target_qps
        one_by_one = self.terms.one_by_one
        values = {
            # The time that a query takes when so many follow one another in a second, to six digits.
            f"{scenario}.target_latency": float(f"{1000 / rate:.6g}") if rate is not None and one_by_one else None,
            f"{scenario}.target_qps": None if one_by_one else rate,
            f"{scenario}.min_duration": self.min_duration_ms,
            f"{scenario}.min_query_count": self.min_query_count,
            "*.performance_sample_count_override": self.performance_sample_count,
        }
        head = "# A rehearsal: shorter than the rules ask, not for submission.\n" if self.rehearsal else ""
        return head + "".join(f"{name}.{key} = {value!r}\n" for key, value in values.items() if value is not None)

    @property
    def queries(self) -> int:
        """The samples that LoadGen issues by these settings: whole passes over those that it draws from."""
        terms = self.terms
        if terms.mode is Mode.ACCURACY:
            return self.samples
        least = self.min_query_count or max(terms.min_samples, 1 if terms.early_stopping else terms.min_queries)
        if self.target_qps is not None and not terms.one_by_one:
            slack = _SLACK if terms.at_once else 1.0
            least = max(least, int(slack * self.target_qps * self.min_duration_ms / 1000))
        whole = self.performance_sample_count or self.samples
        return (least // whole + 1) * whole if terms.one_by_one else -(-least // whole) * whole


def verdict_queries(terms: Terms) -> int:
    """Return the queries of a performance run below which LoadGen's verdict may fail for want of queries.

    0 where the verdict does not depend on their number.
    """
    if terms.mode is not Mode.PERFORMANCE:
        return 0
    if terms.one_by_one:
        return LEAST_ONE_BY_ONE
    return rehearsal_queries(terms) if terms.paced and terms.limits is not None else 0


def rehearsal_queries(terms: Terms) -> int:
    """Return the least queries of a rehearsal's performance run.

    Where latencies have limits, LoadGen's early-stopping test has to be able to pass; elsewhere it needs two, because
    with one query it has no rate to compute.
    """
    return missing_queries(0, _REHEARSAL_OVER) if terms.paced and terms.limits is not None else 2


def user_conf(
    terms: Terms,
    execution: ExecutionMode,
    *,
    target_qps: float | None = None,
    test_query_count: int | None = None,
    max_test_duration_s: float | None = None,
    dataset_samples: int | None = None,
) -> UserConf:
    """Return the settings of a run.

    `target_qps` is in samples/s; it is needed wherever LoadGen paces or sizes the run by it, or by the latency that it
    stands for. `test_query_count` and `max_test_duration_s` bound a rehearsal alone, which covers as many samples as
    queries, or REHEARSAL_SAMPLES. `dataset_samples` is the size of the given dataset.
    Raises UsageError for a missing or impossible value, DatasetError when the dataset is not the benchmark's size.
    """
    if not terms.needs_rate:
        target_qps = None  # nothing depends on a rate
    given = {
        "target_qps": target_qps,
        "test_query_count": test_query_count,
        "max_test_duration": max_test_duration_s,
        "samples_of_the_dataset": dataset_samples,
    }
    for name, value in given.items():
        if value is not None and not value > 0:
            raise UsageError(f"{name}={value} is not usable", cause="it must be greater than 0")
    if execution is ExecutionMode.VALID:
        return _valid_conf(terms, target_qps, dataset_samples)
    return _rehearsal(terms, target_qps, dataset_samples or terms.samples, test_query_count, max_test_duration_s)


def _valid_conf(terms: Terms, target_qps: float | None, dataset_samples: int | None) -> UserConf:
    """Return the settings of a run by the rules. Raises DatasetError for another number of samples."""
    if dataset_samples is not None and dataset_samples != terms.samples:
        raise DatasetError(
            f"the dataset has {dataset_samples} samples, a valid run of {terms.benchmark} needs {terms.samples}",
            remedy="use the benchmark's dataset, or rehearse with --execution_mode=test",
        )
    _require_qps(terms, target_qps)
    return UserConf(
        terms,
        False,
        terms.samples,
        target_qps,
        terms.min_duration_ms,
        min_query_count=_least_samples(terms, target_qps),
        performance_sample_count=terms.user_conf.get("performance_sample_count_override"),
    )


def _rehearsal(
    terms: Terms,
    target_qps: float | None,
    at_hand: int,
    test_query_count: int | None,
    max_test_duration_s: float | None,
) -> UserConf:
    """Return the settings of a run over at most `at_hand` samples. Raises UsageError where its rate is missing."""
    samples = min(test_query_count or REHEARSAL_SAMPLES, at_hand)
    if test_query_count is None or terms.paced:
        _require_qps(terms, target_qps)
    queries, duration_s = test_query_count, 0.0
    if queries is None:
        queries = rehearsal_queries(terms)
        duration_s = min(REHEARSAL_DURATION_S, max_test_duration_s or REHEARSAL_DURATION_S)
    if max_test_duration_s is not None and target_qps is not None:
        queries = max(2, min(queries, int(max_test_duration_s * target_qps)))
    if terms.one_by_one and terms.needs_rate:
        # LoadGen makes whole passes over the samples, one more where the number of queries is whole passes already.
        enough = queries if duration_s == 0 else max(LEAST_ONE_BY_ONE, int(duration_s * (target_qps or 0)))
        samples, queries = min(samples, enough), max(1, queries - 1)
    return UserConf(
        terms,
        True,
        samples,
        target_qps,
        round(duration_s * 1000),
        min_query_count=queries,
        performance_sample_count=samples,
    )


def _least_samples(terms: Terms, target_qps: float | None) -> int | None:
    """Return the least that a valid run asks LoadGen for; None leaves it to mlperf.conf.

    One sample more than the dataset where the round's LoadGen would otherwise fill the memory of this machine: it then
    takes whole datasets, two of them.
    """
    least = terms.user_conf.get("min_query_count")
    if target_qps is None or not terms.at_once or not terms.loadgen.repeats_whole_datasets:
        return least
    samples = max(least or terms.min_samples, int(_SLACK * target_qps * terms.min_duration_ms / 1000))
    needed = samples * terms.samples * _SAMPLE_BYTES
    if samples % terms.samples or needed <= _MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        return least
    say_facts(
        f"note: {terms.scenario}",
        f"LoadGen {terms.loadgen.wheel} needs {needed / 1e9:.0f} GB to generate a run of "
        f"exactly {samples:,} samples: it is asked for {2 * samples:,}, which it generates once",
    )
    return samples + 1


def _require_qps(terms: Terms, target_qps: float | None) -> None:
    """Raise UsageError if LoadGen needs a rate, or a latency, that is not given."""
    if target_qps is None and terms.needs_rate and terms.one_by_one:
        raise UsageError(
            f"no expected latency for the {terms.scenario} {terms.mode} run",
            cause="LoadGen computes from it how many queries the run has",
            remedy="give the ms that an answer takes, as --target_latency of app,mlperf,inference,vllm",
        )
    if target_qps is None and terms.needs_rate:
        raise UsageError(
            f"no target_qps for the {terms.scenario} {terms.mode} run",
            cause="LoadGen sizes an Offline run and paces a Server run by it",
            remedy="give the samples/s to aim at, as --target_qps of app,mlperf,inference,vllm",
        )
