import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.report.parsed_page import LOADING, Page, traced

from cm4vllm import STAND_IN_NOTICE
from cm4vllm.common.number_texts import ms, number, rate
from cm4vllm.records.accuracy import ACCURACY_FILE, AccuracyRecord
from cm4vllm.records.assets import STAND_IN_SOURCE
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.records.checker import CHECKER_FILE, CheckerRecord
from cm4vllm.records.metrics import METRICS_FILE, MetricsSample, ServerMetrics
from cm4vllm.records.run import RUN_FILE, MachineLoad, RunRecord
from cm4vllm.report.final_table import final_table
from cm4vllm.report.summary import MAX_BYTES, render
from cm4vllm.report.summary_exports import summary_record
from cm4vllm.report.tree_texts import measurement_readmes
from cm4vllm.results.campaign_results import load
from cm4vllm.results.judgement.published_rank import place, places_of
from cm4vllm.results.result_index import Index, row_of
from cm4vllm.results.results_at_path import open_results

Change = Callable[..., None]


SYSTEM_NAME = "1xXeon_vLLM-0.32.0"


def test_it_is_well_formed_and_accessible(page: Page) -> None:
    ids = page.ids()
    assert len(set(ids)) == len(ids)
    assert page.elements[0] == ("html", {"lang": "en"})
    for tag, attrs in page.elements:
        if "aria-labelledby" in attrs:
            assert attrs["aria-labelledby"] in ids
        if tag == "th":
            assert attrs.get("scope") in ("row", "col")
        if tag == "svg":
            assert attrs["role"] == "img" and attrs["aria-label"]
    tags = [tag for tag, _ in page.elements]
    assert tags.count("caption") == tags.count("table") and tags.count("main") == tags.count("header") == 1
    assert page.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(page.headings[1:], page.headings[2:], strict=False))


def test_it_loads_and_runs_nothing(real_runs: Path, page: Page) -> None:
    text = render(load(real_runs))
    assert not re.search(r"url\(|@import|expression\(|javascript:", text)
    for tag, attrs in page.elements:
        assert tag not in ("script", "iframe", "object", "embed", "img", "link", "base", "form")
        assert not LOADING & set(attrs) and not [name for name in attrs if name.startswith("on")]
    policy = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_verdict_comes_before_all_else(page: Page) -> None:
    assert page.titles == [
        "tiny-llama on 1xXeon_vLLM-0.32.0",
        "A rehearsal, not a result",
        "Results",
        "System",
        "Server and versions",
        "Model and dataset",
        "How to reproduce",
        "Official checker",
        "What the client saw",
        "What the server did",
        "Not stated",
        "Logs",
    ]


def test_the_first_screen_has_figure_validity_reason_and_headroom_of_each_scenario(page: Page, real_runs: Path) -> None:
    first = page.text.partition("All that the scorer")[0].partition(" Results Model")[0]
    report = load(real_runs)
    assert f"tiny-llama, served by vLLM 0.32.0 on {SYSTEM_NAME}, reached" in first
    for m in report.results:
        assert m.performance and m.performance.metric
        assert f"{rate(m.performance.metric.value)} {m.performance.metric.unit}" in first
        assert all(reason in first for reason in m.performance.reasons)
        for latency in m.performance.latencies:
            assert f"{latency.name} p99 {ms(latency.p99)} of {number(latency.limit or 0)} ms:" in first


def test_an_invalid_result_says_so_and_why_on_the_first_screen(out: Path, change: Change) -> None:
    change(next(out.glob("runs/*/*/Server/performance")) / RUN_FILE, RunRecord, client__failed=3)
    shown = Page(render(load(out)))
    tiles = [
        str(a["class"]) for tag, a in shown.elements if tag == "section" and str(a.get("class")).startswith("tile")
    ]
    assert tiles[1] == "tile bad"
    first = shown.text.partition(" Results Model")[0]
    assert "Server ✗ INVALID" in first and " requests failed" in first


def test_the_results_table_has_a_row_for_each_scenario(page: Page, real_runs: Path) -> None:
    for m in load(real_runs).results:
        assert m.performance and m.performance.metric
        row = (
            f"tiny-llama as llama3.1-8b {m.scenario} ROUGE1 ≥ 38.391408 ROUGE2 ≥ 15.748425 ROUGEL ≥ 24.250743 "
            "ROUGELSUM ≥ 35.43507 GEN_LEN ≥ 7,350,879.6 and ≤ 8,984,408.4 ROUGE1 41.5 ROUGE2 12.25 ROUGEL 24.3 "
            f"ROUGELSUM 36.125 GEN_LEN 8,123 tokens/s {rate(m.performance.metric.value)} "
        )
        assert row in page.text


def test_a_page_with_pictures_is_well_formed_small_and_loads_nothing(measured_runs: Path) -> None:
    html = render(load(measured_runs))
    page = Page(html)
    test_it_is_well_formed_and_accessible(page)
    assert not re.search(r"url\(|@import|javascript:", html) and not [a for _, a in page.elements if LOADING & set(a)]
    assert page.elements.count(("figure", {})) >= 16
    assert len(html.encode()) < MAX_BYTES
    assert traced(page, measured_runs) >= 20


def test_it_says_how_the_server_was_asked(page: Page) -> None:
    assert "The client asked it at /inference/v1/generate" in page.text
    assert "its processes have 10 more niceness" in page.text


def test_what_the_server_did_is_shown_where_its_metrics_were_recorded(
    out: Path, page: Page, change: Change, server_metrics: Callable[..., ServerMetrics]
) -> None:
    assert "Not recorded: it shows no metrics of vLLM." in page.text
    folder = next(out.glob("runs/*/*/Server/performance"))
    change(folder / RUN_FILE, RunRecord, server_metrics=server_metrics(preemptions=7))
    sample = MetricsSample(
        at_s=1.0,
        running=20,
        waiting=40,
        kv_cache_usage=0.41,
        preemptions=7,
        prefix_cache_hits=0,
        cached_prompt_tokens=0,
        prompt_tokens=0,
        generation_tokens=0,
    )
    (folder / METRICS_FILE).write_bytes(msgspec.json.encode(sample) + b"\n")
    shown = Page(render(load(out)))
    assert "Server performance 10.00, 20 13.33, 40 41.0% 7 0 12.5 ms 3.25 ms" in shown.text
    assert "up to 20 running, 40 waiting" in " ".join(str(a.get("aria-label")) for _, a in shown.elements)


def test_who_used_the_machine_is_shown_where_it_was_measured(out: Path, page: Page, change: Change) -> None:
    assert "Who used this machine" not in page.text
    used = MachineLoad(processors=2, wall_s=100, busy_s=180, stolen_s=4, own_s=120)
    change(next(out.glob("runs/*/*/Server/performance")) / RUN_FILE, RunRecord, machine_load=used)
    shown = Page(render(load(out))).text
    assert "Server performance 2 90.0% 60.0% 30.0% 2.0%" in shown
    assert "other processes used 30% of this machine's 2 processors" in shown
    change(next(out.glob("runs/*/*/Server/performance")) / RUN_FILE, RunRecord, machine_load=replace(used, own_s=None))
    assert "Server performance 2 90.0% not known not known 2.0%" in Page(render(load(out))).text


def test_a_rehearsal_is_loud_on_screen_and_on_paper(real_runs: Path, published: Path, page: Page) -> None:
    assert ("div", {"class": "notice", "role": "note"}) in page.elements
    assert ("body", {"class": "rehearsal"}) in page.elements
    assert page.text.startswith("REHEARSAL, NOT A RESULT")
    result = Page(render(load(published)))
    assert ("body", {}) in result.elements and not any(a.get("class") == "notice" for _, a in result.elements)


def test_stand_in_weights_are_loud_on_the_page_of_a_result(published: Path, change: Change) -> None:
    for path in published.glob(f"runs/*/*/*/*/{RUN_FILE}"):
        change(path, RunRecord, settings__model__source=STAND_IN_SOURCE, notice=STAND_IN_NOTICE)
    for path in published.glob("runs/*/*/*/*/accuracy.json"):
        change(path, AccuracyRecord, notice=STAND_IN_NOTICE)
    page = Page(render(load(published)))
    assert page.text.startswith("STAND-IN WEIGHTS")
    assert "the tiny model that cm4vllm trains" in page.text and "REHEARSAL" not in page.text.upper()
    assert "\n*** STAND-IN WEIGHTS ***\n" in final_table(load(published))


def test_hostile_input_stays_text(out: Path, change: Change) -> None:
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    for path in out.glob(f"runs/*/*/*/*/{RUN_FILE}"):
        change(
            path,
            RunRecord,
            settings__model__name=evil,
            settings__dataset__source=evil,
            client__failures={evil: 1},
            settings__user_conf=evil,
            settings__target_qps_source=evil,
        )
    change(out / CHECKER_FILE, CheckerRecord, unavailable=evil)
    change(out / CAMPAIGN_FILE, CampaignRecord, command=f"cm run {evil!r}")
    page = Page(render(load(out)))
    assert not [tag for tag, _ in page.elements if tag in ("script", "img")]
    assert "<script>alert(1)</script>" in page.text


def test_it_stays_small_whatever_the_checker_says(out: Path, change: Change) -> None:
    noise = [f"results/{i}: " + "x" * 2000 for i in range(500)]
    run = load(out).checker
    assert run is not None
    change(
        out / CHECKER_FILE,
        CheckerRecord,
        passed=False,
        runs=[replace(r, errors=noise, warnings=noise, passed=False) for r in run.runs],
    )
    for path in out.glob(f"runs/*/*/*/*/{RUN_FILE}"):
        change(path, RunRecord, client__failures=dict.fromkeys(noise, 1))
    html = render(load(out))
    assert len(html.encode()) < MAX_BYTES
    assert "460 more in the checker's log" in Page(html).text


def test_a_usual_page_is_a_fraction_of_that(real_runs: Path) -> None:
    assert len(render(load(real_runs)).encode()) < 90_000


def test_what_was_not_measured_says_so(out: Path) -> None:
    for path in ("campaign.json", "checker.json", "system/system.json", "system/machine.json", "server/server.json"):
        (out / path).unlink()
    root = next(out.glob("runs/*/*"))
    shutil.rmtree(root / "Offline")
    shutil.rmtree(root / "Server" / "performance")
    (root / "Server" / "accuracy" / ACCURACY_FILE).unlink()
    text = Page(render(load(out))).text
    assert "Offline Not measured." in text and "Performance was not measured." in text
    assert "Accuracy was measured, but not scored." in text
    assert "The system is not described." in text and "The command that started the runs is not stated." in text
    assert "Official checker Not run." in text


def test_the_published_page_leaves_the_checkers_to_its_reader_and_says_how_to_run_them(real_runs: Path) -> None:
    page = Page(render(load(real_runs), published=True))
    assert "checker passed" not in page.text and "submission_checker: passed" not in page.text
    assert (
        'python -m submission_checker.main --input="${SUBMISSION:?}" --version=v6.1 --submitter=not-stated '
        "# at commit b66003e1"
    ) in page.text
    assert "Official checker" in Page(render(load(real_runs))).text.partition("Results")[0]
    assert "Official checker" not in page.text.partition("Results")[0]


def test_a_checker_finding_in_a_rehearsal_that_its_shortness_does_not_explain(out: Path, change: Change) -> None:
    checker = load(out).checker
    assert checker is not None
    change(
        out / CHECKER_FILE,
        CheckerRecord,
        passed=False,
        runs=[replace(checker.runs[0], errors=["systems/x.json is no JSON"], passed=False, status=1)],
    )
    text = Page(render(load(out))).text
    assert "1 finding that a rehearsal does not explain" in text and "systems/x.json is no JSON" in text


def test_scores_of_a_part_of_the_dataset_say_so(out: Path, change: Change) -> None:
    for path in out.glob(f"runs/*/*/*/*/{ACCURACY_FILE}"):
        change(path, AccuracyRecord, sentences="punkt_tab")
    assert "64 of 13,368 samples" in Page(render(load(out))).text


@pytest.mark.parametrize("name", ["punkt_tab", ""])
def test_pages_name_how_sentences_are_split_where_a_score_is_of_sentences(out: Path, change: Change, name: str) -> None:
    for path in out.glob(f"runs/*/*/*/*/{ACCURACY_FILE}"):
        change(path, AccuracyRecord, sentences=name)
    assert ("sentences: punkt_tab" in Page(render(load(out))).text) is bool(name)
    for text in (Page(render(load(out))).text, *measurement_readmes(load(out)).values()):
        assert ("sentences:" in text) is bool(name)


def test_the_page_shows_the_places_that_were_given_and_nothing_without(real_runs: Path, neural_magic: Path) -> None:
    (mine,) = open_results(
        neural_magic / "results" / "4xH100-SXM-80GB_vLLM_FP8-reference-cpu-pytorch-v2.3.1-default_config"
    )
    own = row_of(mine, mine.results[0])
    index = Index((own, replace(own, system="<other>", value=3 * (own.value or 0))), 1, 0)
    report = load(real_runs)
    assert "published results" not in render(report)
    given = dataclasses.replace(report, places=(place(mine, mine.results[0], index),))
    shown = render(given)
    test_it_is_well_formed_and_accessible(Page(shown))
    assert shown.count(">place 2 of 2</td>") == 2 and "&lt;other&gt;</span></td>" in shown
    assert f'title="{own.file}: {own.field}, divided by 4 accelerators"' in shown
    assert "Not compared, of the same benchmark and scenario: 1 of v4.1 (it is this result)." in shown
    assert summary_record(given).places[0].standings[0].among_all.place == 2
    rehearsed = render(dataclasses.replace(report, places=tuple(places_of(report.submission, index))))
    assert rehearsed.count("No place, because these runs are no result.") == 2
