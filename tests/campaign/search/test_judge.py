"""The judge of a probe, and the interval of the true rate: as wide as what the probes point to changes with each."""

import pytest

from cm4vllm.campaign.search.probe_verdict import Judge, ProbePlan
from cm4vllm.campaign.search.projection import rate_interval
from cm4vllm.loadgen.process.messages import Latencies, Timed
from cm4vllm.records.searches.rate_search import ProbeRecord, Verdict
from cm4vllm.rules import LatencyLimits

LIMITS = LatencyLimits(ttft_ms=2000, tpot_ms=100, latency_ms=None, source="the test's")
WHOLE = LatencyLimits(ttft_ms=None, tpot_ms=None, latency_ms=3000, source="the test's")


def judged(answers, *, elapsed_s=60.0, issued=None, overdue=0, oldest=None, seconds=60.0, limits=LIMITS, **plan):
    judge = Judge(limits, 20.0, ProbePlan(seconds, 0.0 if plan else 10.0, full_s=600, sure=bool(plan), **plan))
    news = {"elapsed_s": elapsed_s, "answers": answers, "issued": issued or len(answers), "overdue": overdue}
    return judge, judge.take(Latencies(**news, oldest_open_s=oldest))


def answers(count, ttft_ms=lambda number: 50.0, seconds=60.0, tpot_ms=lambda number: 10.0):
    return [Timed(number * seconds / count, ttft_ms(number), tpot_ms(number), 500.0) for number in range(count)]


def late_each(count):
    """Return the time to first token of queries of which one in `count` is late."""
    return lambda number: 5000.0 if number % count == 0 else 50.0


#: Answers to three in four queries; the others have waited for longer than the limit.
WAITING = {"elapsed_s": 40.0, "issued": 800, "overdue": 150, "oldest": 30.0}


def test_whole_answers_are_judged_by_their_limit_and_are_late_while_they_are_open():
    slow = [
        Timed(answer.issued_s, answer.latency_ms, 0.0, 5000.0 if place % 20 == 0 else 500.0)
        for place, answer in enumerate(answers(1200))
    ]
    judge, verdict = judged(slow, elapsed_s=60.5, limits=WHOLE)
    assert verdict is Verdict.FAILS
    assert [(answer.name, answer.limit_ms, answer.over) for answer in judge.limits()] == [("latency", 3000, 50)]
    late = answers(600, seconds=30.0)
    assert judged(late, **WAITING, limits=WHOLE)[1] is Verdict.FAILS
    assert judged(late, **WAITING | {"overdue": 0}, limits=WHOLE)[1] is None
    growing = [Timed(answer.issued_s, 1.0, 0.0, 20.0 + place) for place, answer in enumerate(answers(1200))]
    assert judged(growing, limits=WHOLE)[0].growing


def test_queries_of_the_warm_up_do_not_count():
    judge, verdict = judged(answers(1200, lambda number: 5000.0 if number < 200 else 50.0))
    assert judge.queries == 1000
    assert judge.verdict() is Verdict.PASSES
    assert verdict is None
    assert [limit.over for limit in judge.limits()] == [0, 0]


def test_what_is_open_is_not_forgotten():
    """Slow answers come last: only what was issued before the oldest open query counts as known."""
    judge, verdict = judged(answers(1200), oldest=12.0)
    assert verdict is None
    assert judge.queries == 40


EARLY = {"elapsed_s": 60.5}


@pytest.mark.parametrize(
    ("given", "news", "words"),
    [
        (answers(600, seconds=30.0), WAITING, "TTFT, which 150 of 600 queries exceed, 150 of them unanswered"),
        (answers(1200, late_each(20)), EARLY, "TTFT, which 50 of 1,000 queries exceed"),
        (
            answers(1200, lambda number: 20.0 + number),
            {},
            "TTFT, which rises steadily and would exceed it in a full-length run",
        ),
        (
            answers(1200, late_each(20), tpot_ms=lambda number: 101.0),
            EARLY,
            "TTFT, which 50 of 1,000 queries exceed; TPOT, which 1,000 of 1,000 queries exceed",
        ),
        (answers(1200), EARLY, ""),
    ],
)
def test_the_limits_that_a_probe_fails_by_are_named_with_the_queries_that_wait(given, news, words):
    judge, verdict = judged(given, **news)
    assert judge.exceeded == words
    assert verdict is Verdict.FAILS or news != WAITING, "queries beyond the limit are late before their first token"


def test_a_growing_queue_does_not_pass_though_it_is_within_the_limit_so_far():
    judge, verdict = judged(answers(1200, lambda number: 20.0 + number))
    assert judge.growing
    assert verdict is None
    assert judge.verdict() is Verdict.UNDECIDED


def test_a_probe_ends_when_what_was_issued_in_time_is_answered():
    assert judged(answers(1200), elapsed_s=60.5)[1] is Verdict.PASSES
    late = answers(1200, late_each(50))  # 2 %: enough to fail, not to be sure
    judge, verdict = judged(late, elapsed_s=60.5)
    assert (verdict, judge.verdict()) == (Verdict.FAILS, Verdict.FAILS)
    assert judged(late, elapsed_s=59.5, oldest=59.0)[1] is None


def test_a_probe_that_is_certain_ends_when_half_of_its_time_is_over():
    many = answers(3000, seconds=59.0)
    assert judged(many, elapsed_s=59.5, oldest=59.2)[1] is Verdict.PASSES
    assert judged(many, elapsed_s=59.5, oldest=59.2, seconds=200.0)[1] is None


def test_queries_issued_to_keep_the_server_busy_do_not_count():
    judge, _ = judged(answers(2400, seconds=120.0), elapsed_s=121.0)
    assert judge.queries == 1001  # from 10 s to 60 s
    assert judge.window.issued[-1] == 60.0
    assert judge.window.seconds == 60.0


def test_a_full_length_run_fails_only_where_it_could_not_pass_any_more():
    late = answers(1200, lambda number: 5000.0 if number >= 1140 else 50.0)
    assert judged(late)[1] is Verdict.FAILS
    assert judged(late, most_late=60)[1] is None
    judge, verdict = judged(late, most_late=59)
    assert verdict is Verdict.FAILS
    assert judge.window.whole


def test_a_full_length_run_counts_all_its_queries():
    judge, _ = judged(answers(1200, lambda number: 5000.0 if number < 5 else 50.0), most_late=100)
    assert (judge.queries, judge.limits()[0].over) == (1200, 5)


# --- the interval of the true rate: as wide as what the probes point to changes with each of them


def probe(number, rate, **projected):
    times = {"planned_s": 600.0, "took_s": 605.0, "warm_up_s": 0, "ended_early": False}
    seen = {"queries": 1000, "limits": [], "verdict": Verdict.PASSES, "projected": projected}
    return ProbeRecord(number=number, rate=rate, **times, **seen)


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
