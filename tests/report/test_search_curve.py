"""The picture of a search, drawn from a record that the search itself writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cm4vllm.campaign.search.records import SEARCH_FILE, Boundary, LimitRecord, ProbeRecord, SearchRecord, Verdict
from cm4vllm.common.records import write_record
from cm4vllm.report import search_curve
from cm4vllm.report.search_curve import search_curves
from cm4vllm.report.summary import summary_html


def probe(number: int, rate: float, ttft: float | None, tpot: float) -> ProbeRecord:
    limits = [
        LimitRecord(name=name, limit_ms=limit, over=0, within=1, low=0.9, high=1, p99_ms=p99)
        for name, limit, p99 in (("TTFT", 2000.0, ttft), ("TPOT", 100.0, tpot))
    ]
    passes = ttft is not None and ttft < 2000 and tpot < 100
    return ProbeRecord(
        number=number,
        rate=rate,
        planned_s=10,
        took_s=12,
        warm_up_s=1,
        queries=100,
        limits=limits,
        verdict=Verdict.PASSES if passes else Verdict.FAILS,
        ended_early=False,
    )


@pytest.fixture
def searched(out: Path) -> Path:
    probes = [
        probe(1, 4.0, 300.0, 40.0),
        probe(2, 16.0, 9000.0, 70.0),
        probe(3, 8.0, 1500.0, 55.0),
        probe(4, 32.0, None, 300.0),
    ]
    write_record(
        out / "search" / "Server" / SEARCH_FILE,
        SearchRecord(
            scenario="Server",
            benchmark="llama3.1-8b",
            rate=8.0,
            confirmed=True,
            lowest_failing=16.0,
            low=8.0,
            high=16.0,
            binding="TTFT",
            cause="",
            boundary=Boundary.SMOOTH,
            precision=0.03,
            start=4.0,
            start_source="the test",
            stopped="near enough",
            cost_s=48.0,
            rehearsal=True,
            probes=probes,
        ),
    )
    return out


def test_the_record_is_that_of_the_search() -> None:
    assert search_curve.SEARCH_FILE == SEARCH_FILE


def test_p99_is_drawn_over_the_rate_with_the_rate_that_was_found(searched: Path) -> None:
    (picture,) = search_curves(searched, "Server")
    assert search_curves(searched, "Offline") == []
    assert picture.words == "4 probes found 8 queries/s; near enough"
    assert picture.source == f"search/Server/{SEARCH_FILE}: probes"
    lines = [shape.attributes["points"] for shape in picture.shapes if shape.tag == "polyline"]
    assert [len(str(line).split()) for line in lines] == [3, 4]  # a probe without an answer has no TTFT
    assert [row[0] for row in picture.tables[0].rows] == ["4", "4", "8", "8", "16", "16", "32"]
    assert "4 probes found 8 queries/s" in summary_html(searched)


def test_a_search_that_is_being_written_is_left_out(searched: Path) -> None:
    (searched / "search" / "Server" / SEARCH_FILE).write_text("{")
    assert search_curves(searched, "Server") == []
