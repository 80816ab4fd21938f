"""The interval of the true rate: as wide as what the probes point to changes with each of them."""

import pytest

from cm4vllm.campaign.search.projection import rate_interval
from cm4vllm.records.searches.rate_search import ProbeRecord, Verdict


def probe(number, rate, seconds=600.0, **projected):
    return ProbeRecord(
        number=number,
        rate=rate,
        planned_s=seconds,
        took_s=seconds + 5,
        warm_up_s=0,
        queries=1000,
        limits=[],
        verdict=Verdict.PASSES,
        ended_early=False,
        projected=projected,
    )


def test_probes_that_agree_give_a_narrow_interval_and_those_that_do_not_a_wide_one():
    agreed = rate_interval([probe(number, 10.0 + 0.1 * number, TTFT=10.3) for number in range(4)])
    assert agreed.rate == pytest.approx(10.3, rel=0.001)
    assert agreed.low == pytest.approx(agreed.high, rel=0.002)
    edges = (9.5, 10.0, 10.5, 11.0)
    spread = rate_interval([probe(number, 10.2, TTFT=edge) for number, edge in enumerate(edges)])
    assert spread.low < min(edges) < spread.rate < max(edges) < spread.high
    assert spread.probes == 4


def test_probes_that_say_nothing_do_not_count_and_few_give_no_interval():
    silent = [probe(number, 30.0) for number in range(5)]
    telling = [probe(number, 10.0, TTFT=10.0 + 0.1 * number) for number in range(3)]
    assert rate_interval([*silent, *telling]) == rate_interval(telling)
    assert rate_interval([*silent, *telling[:2]]) is None


def test_the_limit_that_binds_first_gives_the_interval():
    both = rate_interval([probe(number, 10.0, TTFT=20.0, TPOT=10.0 + 0.1 * number) for number in range(4)])
    assert both.high < 20
    assert both.rate == pytest.approx(10.15, rel=0.01)
