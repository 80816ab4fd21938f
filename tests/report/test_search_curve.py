"""The picture of a search, drawn from a record that the search itself writes."""

from pathlib import Path

import msgspec

from cm4vllm.records.searches.rate_search import SEARCH_FILE
from cm4vllm.report.searches import search_curves
from cm4vllm.report.summary import render
from cm4vllm.results.campaign_results import load


def test_p99_is_drawn_over_the_rate_with_the_rate_that_was_found(searched: Path) -> None:
    (picture,) = search_curves(searched, "Server")
    assert search_curves(searched, "Offline") == []
    assert picture.words == "4 probes found 8 queries/s; interval of the true rate: 7.9 to 8.6; near enough"
    assert picture.source == f"search/Server/{SEARCH_FILE}: probes"
    lines = [shape.attributes["points"] for shape in picture.shapes if shape.tag == "polyline"]
    assert [len(str(line).split()) for line in lines] == [3, 4]  # a probe without an answer has no TTFT
    assert [row[0] for row in picture.tables[0].rows] == ["4", "4", "8", "8", "16", "16", "32"]
    assert "4 probes found 8 queries/s" in render(load(searched))


def test_a_server_whose_speed_changed_is_told(searched: Path) -> None:
    file = searched / "search" / "Server" / SEARCH_FILE
    record = msgspec.json.decode(file.read_bytes())
    file.write_bytes(msgspec.json.encode({**record, "drift": "the server's speed changed"}))
    (picture,) = search_curves(searched, "Server")
    assert picture.words.endswith("near enough; the server's speed changed")


def test_a_search_that_is_being_written_is_left_out(searched: Path) -> None:
    (searched / "search" / "Server" / SEARCH_FILE).write_text("{")
    assert search_curves(searched, "Server") == []
