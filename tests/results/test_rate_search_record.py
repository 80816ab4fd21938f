"""The result of a search in one line says what run the rate was tried in."""

import pytest

from cm4vllm.records.searches.rate_search import Boundary, LimitRecord, ProbeRecord, SearchRecord, Verdict


def made(*, queries, rehearsal, confirmed=True):
    limit = LimitRecord(name="TPOT", limit_ms=100, over=0, within=1, low=0.9, high=1, p99_ms=8)
    probe = ProbeRecord(
        number=1,
        rate=600,
        planned_s=10,
        took_s=4,
        warm_up_s=0,
        queries=queries,
        limits=[limit],
        verdict=Verdict.PASSES,
        ended_early=False,
        sure=True,
    )
    return SearchRecord(
        scenario="Server",
        benchmark="llama3.1-8b",
        rate=600,
        confirmed=confirmed,
        lowest_failing=None,
        low=600,
        high=None,
        binding="TPOT",
        cause="",
        boundary=Boundary.UNKNOWN,
        precision=0.01,
        start=100,
        start_source="a test",
        stopped="",
        cost_s=6,
        rehearsal=rehearsal,
        probes=[probe] if confirmed else [],
    )


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (made(queries=6000, rehearsal=False), "600 queries/s pass a full-length run; "),
        (made(queries=600, rehearsal=True), "600 queries/s pass a rehearsal's run of 600 queries; "),
        (made(queries=64, rehearsal=True), "run of 64 queries, too few for LoadGen's test; "),
        (made(queries=0, rehearsal=True, confirmed=False), "no rehearsal's run passed, the probes point to 600"),
        (made(queries=0, rehearsal=False, confirmed=False), "no full-length run passed, the probes point to 600"),
    ],
)
def test_a_run_of_a_rehearsal_is_not_called_full_length(search, words):
    assert words in search.words
