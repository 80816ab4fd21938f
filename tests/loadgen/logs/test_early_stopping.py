"""The early-stopping test gives the numbers that LoadGen gives, on fresh and on recorded logs."""

import itertools
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.records.logs.detail_log import DETAIL_LOG, read_detail_log
from cm4vllm.records.logs.early_stopping import (
    is_surely_failing,
    missing_queries,
    most_over,
    passes,
    percentile,
    required_within,
    wilson_interval,
)

#: Queries, and how many of them are over the limit of TTFT and of TPOT: either side of where the test turns.
CASES = "40:0:0 458:0:0 459:0:0 661:1:0 662:1:0 662:0:1 837:1:2 838:2:2 1500:7:3 2009:10:0 2010:10:0 1200:500:2".split()
RUNS = [tuple(map(int, case.split(":"))) for case in CASES]
MORE = re.compile(r"Processed (\d+) queries\D+at least (\d+) more queries")


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    program = Path(__file__).with_name("early_stopping_sut.py")
    subprocess.run([sys.executable, program, folder, *CASES], check=True)
    return {run: read_detail_log(folder / "-".join(map(str, run)) / DETAIL_LOG) for run in RUNS}


@pytest.mark.parametrize("run", RUNS)
def test_loadgen_says_the_same_of_a_run_it_just_made(logs, run):
    log, (queries, over_ttft, over_tpot) = logs[run], run
    for key, over in (("tpot", over_tpot), ("ttft", over_ttft)):
        said = log.text(f"early_stopping_{key}_result")
        if not said:  # the test of TTFT is left out where that of TPOT has failed
            assert key == "ttft"
            assert not passes(queries, over_tpot)
        elif passes(queries, over):
            assert "Run successful" in said, (key, said)
        else:
            assert tuple(map(int, MORE.search(said).groups())) == (queries, missing_queries(queries, over)), key
    assert log.flag("early_stopping_met") is (passes(queries, over_ttft) and passes(queries, over_tpot))


def test_a_percentile_is_the_value_that_loadgen_takes(logs):
    for (queries, over_ttft, _), log in logs.items():
        late = log.number("result_first_token_99.00_percentile_latency_ns") / 1e6 > 500
        assert late == (percentile([0] * (queries - over_ttft) + [1] * over_ttft) == 1)


def test_recorded_runs_say_the_same():
    """Real vLLM runs: 40 queries within the limits, and what full-length runs of published results must have met."""
    assert missing_queries(40, 0) == 419
    assert passes(40_104, 0)
    assert [required_within(over) + over for over in (0, 1, 2, 10)] == [459, 662, 838, 2010]


def test_the_least_number_of_queries_is_that_of_the_binomial_distribution():
    def at_most(over, queries):
        return sum(math.comb(queries, k) * 0.01**k * 0.99 ** (queries - k) for k in range(over + 1))

    for over in (0, 1, 3, 8, 20):
        least = required_within(over) + over
        assert at_most(over, least) < 0.01 <= at_most(over, least - 1)
        assert passes(least, over)
        assert not passes(least - 1, over)


def test_failing_is_the_other_side():
    def at_least(over, queries):
        return 1 - sum(math.comb(queries, k) * 0.01**k * 0.99 ** (queries - k) for k in range(over))

    for queries, over in itertools.product((20, 100, 700), range(1, 20)):
        assert is_surely_failing(queries, over) is (at_least(over, queries) < 0.01), (queries, over)
        assert not (is_surely_failing(queries, over) and passes(queries, over))
    assert is_surely_failing(10_000, 9_000)
    assert is_surely_failing(50, 50)
    assert not is_surely_failing(1_000_000, 10_000)
    assert not passes(0, 0)
    assert not is_surely_failing(0, 0)


def test_wilson_intervals():
    low, high = wilson_interval(990, 1000)
    assert (round(low, 4), round(high, 4)) == (0.9817, 0.9946)  # Brown, Cai and DasGupta's formula, computed by hand
    assert wilson_interval(0, 0) == (0, 1)
    low, high = wilson_interval(459, 459)
    assert low > 0.99
    assert high == 1


def test_the_most_that_may_be_over_a_limit():
    assert [most_over(queries) for queries in (0, 458, 459, 661, 662, 2010)] == [-1, -1, 0, 0, 1, 10]
