"""The page of a curve: its figures, windows, distributions, limits and scores, and two curves side by side."""

import re

import pytest
from made_points import change_json, change_yaml, write_points

from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import write_json
from cm4vllm.report.comparison_texts import report_comparison
from cm4vllm.report.curve_bounds import bounds
from cm4vllm.report.curve_page import changes, curve_table, write_curve_page
from cm4vllm.results.endpoints.curves import read_curves

pytestmark = pytest.mark.usefixtures("any_day")


def curve_of(points):
    (curve,), problems = read_curves(points[8].parent)
    assert problems == ()
    return curve


@pytest.fixture
def page(points, tmp_path):
    """A function that writes the page of the points and returns its text, without markup."""

    def page(*curves):
        text = write_curve_page(curves or [curve_of(points)], tmp_path / "curve.html").read_text()
        return re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)

    return page


def cells(text, caption):
    """The rows of the table with this caption."""
    table = text[text.index(f"<caption>{caption}</caption>") :]
    rows = re.findall(r"<tr>(.*?)</tr>", table[: table.index("</table>")], re.DOTALL)
    return [[re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]


def set_rates(points, *rates):
    """Set the points to these tokens/s, in the order of their concurrency."""
    for folder, rate in zip(points.values(), rates, strict=True):
        change_json(
            folder / "performance" / "result_summary.json",
            lambda content, rate=rate: content.update(
                duration_ns=10**9, output_sequence_lengths={"total": rate}, latency={"avg": 1e9}
            ),
        )


def test_the_page_loads_nothing_and_has_no_script(page):
    text = page()
    assert "<script" not in text
    assert not re.findall(r"(?:src|href)=", text)


@pytest.mark.parametrize(
    "change",
    [
        {"counts": [500, 400, -1]},
        {"counts": [500, 400, 1.79e308]},
        {"counts": [500, 400]},
        {"buckets": [[1, 2], [2, 4], [4, "inf"]]},
        {"buckets": [[-5, 2], [2, 4], [4, 8]]},
        {"buckets": [[4, 2], [2, 4], [4, 8]]},
        {"buckets": {"1": 2}},
    ],
    ids=str,
)
def test_a_histogram_of_numbers_that_none_can_have_is_left_out(points, page, change):
    before = page()
    for concurrency in points:
        change_json(
            points[concurrency] / "performance" / "result_summary.json",
            lambda content: content["ttft"]["histogram"].update(change),
        )
    curve = curve_of(points)
    assert all(set(point.histograms) == {"tpot"} for point in curve.points)
    assert page().count("<svg") == before.count("<svg") - len(points)


@pytest.mark.parametrize("count", [0, 9.9e29])
def test_a_histogram_of_large_counts_is_drawn(points, page, count):
    for concurrency in points:
        change_json(
            points[concurrency] / "performance" / "result_summary.json",
            lambda content: content["ttft"]["histogram"].update(
                counts=[count] * 3, buckets=[[0, 1], [1, 2], [2, 9e29]]
            ),
        )
    assert all("ttft" in point.histograms for point in curve_of(points).points)
    assert "<svg" in page()


def test_each_point_has_its_window_regions_and_verdict_on_accuracy(page):
    text = page()
    rows = {row[0]: row for row in cells(text, "Points of the curve")}
    assert rows["14"][1] == "Ultra Low, Low"
    assert rows["256"][1] == "High, Offline"
    assert rows["14"][9] == "met"
    assert rows["11"][9] == ""
    windows = {row[0]: row for row in cells(text, "Windows of the steady state")}
    assert windows["14"][1:] == [
        "windowable", "steady state", "p50 plateau, p90 plateau", "1 to 5", "66,840", "1,500.0 s (25.0 min)",
    ]  # fmt: skip
    assert "Regions of concurrency: Ultra Low 1 to 32; Low 9 to 14; Medium 15 to 47; High 48 to 256." in text


def test_the_figures_over_a_window_stand_beside_it(page, points):
    assert "TTFT p90, ms" not in cells(page(), "Windows of the steady state")[0]
    figures = {"system_tps": 1234.5, "ttft_p90_ms": 41.5, "tpot_p90_ms": 3.25}
    write_json(points[14] / "point.json", {"steady_state": {"figures": figures}})
    rows = {row[0]: row for row in cells(page(), "Windows of the steady state")}
    assert rows["concurrency"][7:] == ["tokens/s", "TTFT p90, ms", "TPOT p90, ms"]
    assert rows["14"][7:] == ["1,234.50", "41.5", "3.25"]
    assert rows["11"][7:] == ["", "", ""]


def test_a_point_without_a_window_says_by_how_much_tpot_varies(page, points):
    assert "insufficient passes" not in page()
    state = {"status": "insufficient_passes", "verdict": "not found"}
    change_yaml(points[14] / "point.yaml", lambda content: content.update(steady_state=state))
    write_json(points[14] / "point.json", {"steady_state": {**state, "least_variation": 0.18}})
    text = page()
    rows = {row[0]: row for row in cells(text, "Windows of the steady state")}
    assert rows["14"][1:5] == ["insufficient passes", "not found", "varies by 18.0% at least", "none"]
    assert "A point with insufficient passes has too few, or TPOT varies more" in text


def test_a_window_that_is_too_short_says_what_it_takes(page, points):
    change_yaml(
        points[14] / "point.yaml", lambda content: content["steady_state"].update(status="insufficient_duration")
    )
    assert {row[0]: row for row in cells(page(), "Windows of the steady state")}["14"][6] == "1,500.0 s (25.0 min)"
    least = {"floor_s": 600.0, "latencies_s": 2000.0, "precision_s": 0.0, "region_s": 600.0}
    write_json(points[14] / "point.json", {"steady_state": {"least": least}})
    text = page()
    row = {row[0]: row for row in cells(text, "Windows of the steady state")}["14"]
    assert row[6] == "1,500.0 s (25.0 min) of 2,000.0 s (33.3 min) at least"
    assert "A point of insufficient duration is steady over its window" in text


def test_a_score_below_its_target_is_not_met(page, points):
    change_json(
        points[14] / "accuracy" / "accuracy_results.json",
        lambda content: content["accuracy_scores"][0]["score"].update(rouge1="12.5"),
    )
    text = page()
    assert {row[0]: row for row in cells(text, "Points of the curve")}["14"][9] == "not met"
    scores = cells(text, "Scores of the accuracy runs, as the client computed them")
    assert [row[2] for row in scores if row[0] == "14" and row[-1] == "not met"] == ["12.5"]


def test_each_point_has_the_distributions_of_its_latencies(page):
    text = page()
    assert text.count("<b>TTFT at concurrency ") == text.count("<b>TPOT at concurrency ") == 7
    assert "<title>24.6 to 26.3 ms: 72,188 samples</title>" in text
    assert ["p99", "29.6"] in cells(text, "TTFT at concurrency 54")


def test_the_line_follows_the_concurrency(page, points):
    """The speed that a user sees need not fall from point to point."""
    change_json(
        points[8] / "performance" / "result_summary.json",
        lambda content: content["tpot"]["percentiles"].update({"90.0": 9e6, "90": 9e6}),
    )
    rows = cells(page(), "Throughput over the speed that a user sees")
    assert [row[0] for row in rows[1:]] == ["8", "11", "14", "32", "54", "128", "256"]
    assert float(rows[1][1]) < float(rows[2][1])


def test_throughput_per_kw_is_shown_where_the_power_is_stated(page, points):
    assert "tokens/s per kW" not in page()
    powers = {folder.name: {"system_tps_per_kw": 12.5} for folder in points.values()}
    write_json(points[8].parent / "power.json", {"points": powers})
    text = page()
    assert cells(text, "Points of the curve")[1][-1] == "12.50"
    assert cells(text, "Throughput per kW over the speed that a user sees")[1][-1] == "12.50"


def test_the_limit_of_a_point_is_named_by_the_growth_of_throughput(points):
    # In flight are 8, 11, 14, 32, 54, 128, 256.
    set_rates(points, 800, 1100, 1250, 2800, 3500, 3500, 3600)
    words = [bounds(curve_of(points))[folder].words for folder in points.values()]
    load, both, server = "the load", "load and server: decoding", "the server: decoding"
    assert words == [load, both, load, both, server, server, server]
    assert "from 8 to 11 requests in flight tokens/s change by +37.5%" in bounds(curve_of(points))[points[8]].evidence


def test_a_curve_that_the_rules_do_not_allow_has_no_regions(page, points):
    for folder in points.values():
        change_yaml(folder / "point.yaml", lambda content: content.update(max_supported_concurrency=20))
    assert cells(page(), "Points of the curve")[1][1] == "not stated"
    assert "not stated" in curve_table([curve_of(points)])


def test_two_curves_are_compared_at_the_same_concurrency(page, points, tmp_path):
    others = write_points(tmp_path / "others")
    set_rates(points, *[1000] * 7)
    set_rates(others, *[1100] * 7)
    first, second = curve_of(points), curve_of(others)
    assert changes(first, second)[0][:4] == ("8", "1,000.00", "1,100.00", "+10.0%")
    text = page(first, second)
    assert cells(text, "Points at the same concurrency")[1][:4] == ["8", "1,000.00", "1,100.00", "+10.0%"]
    assert '<polyline class="line-2"' in text


def test_compare_takes_two_curves_of_any_folders(points, tmp_path):
    others = write_points(tmp_path / "results" / "points")
    comparison = report_comparison(f"{points[8].parent},{tmp_path / 'results'}", tmp_path / "page.html")
    assert [side["path"] for side in comparison["comparison"]["sides"]] == [
        str(points[8].parent),
        str(others[8].parent),
    ]
    assert comparison["comparison"]["points"][0]["change of tokens/s"] == "+0.0%"
    assert "B against A" in (tmp_path / "page.html").read_text()


def test_compare_refuses_one_curve_alone(points, tmp_path):
    with pytest.raises(UsageError, match="1 curve of MLPerf Endpoints cannot be compared"):
        report_comparison(str(points[8].parent), tmp_path / "page.html")
