import csv
import dataclasses
import io
import json
import re
import shutil
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.report.parsed_page import LOADING, Page, traced

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "campaign" / "search"))

from test_halving import record

from builders import metrics_sample
from cm4vllm import STAND_IN_NOTICE
from cm4vllm.common.files import write_json
from cm4vllm.common.number_texts import ms, number, rate, time_text
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.accuracy import ACCURACY_FILE, AccuracyRecord
from cm4vllm.records.assets import STAND_IN_SOURCE
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.records.checker import CHECKER_FILE, CheckerRecord
from cm4vllm.records.metrics import METRICS_FILE
from cm4vllm.records.run import RUN_FILE, MachineLoad, RunRecord
from cm4vllm.records.searches.rate_search import SEARCH_FILE
from cm4vllm.report.final_table import final_table
from cm4vllm.report.searches import SETTINGS_PATH, search_curves, tried_settings
from cm4vllm.report.summary import (
    CSV_COLUMNS,
    MAX_BYTES,
    SummaryRecord,
    render,
    summary_csv,
    summary_record,
    write_summary,
)
from cm4vllm.report.tree_texts import measurement_readmes
from cm4vllm.results.campaign_results import load
from cm4vllm.results.judgement.published_rank import place, places_of
from cm4vllm.results.result_index import Index, read_index, row_of
from cm4vllm.results.run_folders import open_results

pytestmark = pytest.mark.xdist_group("runs-report")  # one process makes the runs of these files

SYSTEM_NAME = "1xXeon_vLLM-0.32.0"


def test_it_is_well_formed_and_accessible(page):
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


def test_it_loads_and_runs_nothing(real_runs, page):
    text = render(load(real_runs))
    assert not re.search(r"url\(|@import|expression\(|javascript:", text) and len(text.encode()) < 90_000
    for tag, attrs in page.elements:
        assert tag not in ("script", "iframe", "object", "embed", "img", "link", "base", "form")
        assert not LOADING & set(attrs) and not [name for name in attrs if name.startswith("on")]
    policy = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_verdict_comes_before_all_else(page):
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


def test_the_first_screen_has_figure_validity_reason_and_headroom_of_each_scenario(page, real_runs):
    first = page.text.partition("All that the scorer")[0].partition(" Results Model")[0]
    report = load(real_runs)
    assert f"tiny-llama, served by vLLM 0.32.0 on {SYSTEM_NAME}, reached" in first
    for m in report.results:
        assert m.performance and m.performance.metric
        assert f"{rate(m.performance.metric.value)} {m.performance.metric.unit}" in first
        assert all(reason in first for reason in m.performance.reasons)
        for latency in m.performance.latencies:
            assert f"{latency.name} p99 {ms(latency.p99)} of {number(latency.limit or 0)} ms:" in first


def test_an_invalid_result_says_so_and_why_on_the_first_screen(out, change):
    change(next(out.glob("runs/*/*/Server/performance")) / RUN_FILE, RunRecord, client__failed=3)
    shown = Page(render(load(out)))
    tiles = [
        str(a["class"]) for tag, a in shown.elements if tag == "section" and str(a.get("class")).startswith("tile")
    ]
    assert tiles[1] == "tile bad"
    first = shown.text.partition(" Results Model")[0]
    assert "Server ✗ INVALID" in first and " requests failed" in first


def test_the_results_table_has_a_row_for_each_scenario(page, real_runs):
    for m in load(real_runs).results:
        assert m.performance and m.performance.metric
        row = (
            f"tiny-llama as llama3.1-8b {m.scenario} ROUGE1 ≥ 38.391408 ROUGE2 ≥ 15.748425 ROUGEL ≥ 24.250743 "
            "ROUGELSUM ≥ 35.43507 GEN_LEN ≥ 7,350,879.6 and ≤ 8,984,408.4 ROUGE1 41.5 ROUGE2 12.25 ROUGEL 24.3 "
            f"ROUGELSUM 36.125 GEN_LEN 8,123 tokens/s {rate(m.performance.metric.value)} "
        )
        assert row in page.text


def test_a_page_with_pictures_is_well_formed_small_and_loads_nothing(measured_runs):
    html = render(load(measured_runs))
    page = Page(html)
    test_it_is_well_formed_and_accessible(page)
    assert not re.search(r"url\(|@import|javascript:", html) and not [a for _, a in page.elements if LOADING & set(a)]
    assert page.elements.count(("figure", {})) >= 16
    assert len(html.encode()) < MAX_BYTES
    assert traced(page, measured_runs) >= 20


def test_what_the_server_did_is_shown_where_its_metrics_were_recorded(out, page, change, server_metrics):
    assert "Not recorded: it shows no metrics of vLLM." in page.text
    folder = next(out.glob("runs/*/*/Server/performance"))
    change(folder / RUN_FILE, RunRecord, server_metrics=server_metrics(preemptions=7))
    sample = metrics_sample(at_s=1.0, running=20, waiting=40, kv_cache_usage=0.41, preemptions=7)
    (folder / METRICS_FILE).write_bytes(msgspec.json.encode(sample) + b"\n")
    shown = Page(render(load(out)))
    assert "Server performance 10.00, 20 13.33, 40 41.0% 7 0 12.5 ms 3.25 ms" in shown.text
    assert "up to 20 running, 40 waiting" in " ".join(str(a.get("aria-label")) for _, a in shown.elements)


def test_who_used_the_machine_is_shown_where_it_was_measured(out, page, change):
    assert "Who used this machine" not in page.text
    used = MachineLoad(processors=2, wall_s=100, busy_s=180, stolen_s=4, own_s=120)
    change(next(out.glob("runs/*/*/Server/performance")) / RUN_FILE, RunRecord, machine_load=used)
    shown = Page(render(load(out))).text
    assert "Server performance 2 90.0% 60.0% 30.0% 2.0%" in shown
    assert "other processes used 30% of this machine's 2 processors" in shown
    change(next(out.glob("runs/*/*/Server/performance")) / RUN_FILE, RunRecord, machine_load=replace(used, own_s=None))
    assert "Server performance 2 90.0% not known not known 2.0%" in Page(render(load(out))).text


def test_a_rehearsal_is_loud_on_screen_and_on_paper(real_runs, published, page):
    assert ("div", {"class": "notice", "role": "note"}) in page.elements
    assert ("body", {"class": "rehearsal"}) in page.elements
    assert page.text.startswith("REHEARSAL, NOT A RESULT")
    result = Page(render(load(published)))
    assert ("body", {}) in result.elements and not any(a.get("class") == "notice" for _, a in result.elements)


def test_stand_in_weights_are_loud_on_the_page_of_a_result(published, change):
    change(
        published.glob(f"runs/*/*/*/*/{RUN_FILE}"),
        RunRecord,
        settings__model__source=STAND_IN_SOURCE,
        notice=STAND_IN_NOTICE,
    )
    change(published.glob("runs/*/*/*/*/accuracy.json"), AccuracyRecord, notice=STAND_IN_NOTICE)
    page = Page(render(load(published)))
    assert page.text.startswith("STAND-IN WEIGHTS")
    assert "a tiny model that comes with cm4vllm" in page.text and "REHEARSAL" not in page.text.upper()
    assert "\n*** STAND-IN WEIGHTS ***\n" in final_table(load(published))


def test_hostile_input_stays_text(out, change):
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    change(
        out.glob(f"runs/*/*/*/*/{RUN_FILE}"),
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


def test_it_stays_small_whatever_the_checker_says(out, change):
    noise = [f"results/{i}: " + "x" * 2000 for i in range(500)]
    run = load(out).checker
    assert run is not None
    change(
        out / CHECKER_FILE,
        CheckerRecord,
        passed=False,
        runs=[replace(r, errors=noise, warnings=noise, passed=False) for r in run.runs],
    )
    change(out.glob(f"runs/*/*/*/*/{RUN_FILE}"), RunRecord, client__failures=dict.fromkeys(noise, 1))
    html = render(load(out))
    assert len(html.encode()) < MAX_BYTES
    assert "460 more in the checker's log" in Page(html).text


def test_what_was_not_measured_says_so(out):
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


def test_the_published_page_leaves_the_checkers_to_its_reader_and_says_how_to_run_them(real_runs):
    page = Page(render(load(real_runs), published=True))
    assert "checker passed" not in page.text and "submission_checker: passed" not in page.text
    assert (
        'python -m submission_checker.main --input="${SUBMISSION:?}" --version=v6.1 --submitter=not-stated '
        "# at commit b66003e1"
    ) in page.text
    assert "Official checker" in Page(render(load(real_runs))).text.partition("Results")[0]
    assert "Official checker" not in page.text.partition("Results")[0]


def test_a_checker_finding_in_a_rehearsal_that_its_shortness_does_not_explain(out, change):
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


@pytest.mark.parametrize("name", ["punkt_tab", ""])
def test_pages_name_how_sentences_are_split_where_a_score_is_of_sentences(out, change, name):
    change(out.glob(f"runs/*/*/*/*/{ACCURACY_FILE}"), AccuracyRecord, sentences=name)
    assert ("sentences: punkt_tab" in Page(render(load(out))).text) is bool(name)
    for text in (Page(render(load(out))).text, *measurement_readmes(load(out)).values()):
        assert ("sentences:" in text) is bool(name)


def test_the_page_shows_the_places_that_were_given_and_nothing_without(real_runs, neural_magic):
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


# --- the figures of the page are those of LoadGen's logs and of the system description


def test_each_figure_of_a_page_is_that_of_loadgens_log(real_runs, page, published):
    assert traced(page, real_runs) >= 20
    assert traced(Page(render(load(published))), published) >= 20


def test_each_place_is_computed_from_the_logs_of_published_results(published, neural_magic, tmp_path):
    report = load(published)
    own = row_of(report.submission, report.results[1])
    real = read_index(neural_magic.parents[1], tmp_path).rows
    rows = [
        replace(row, model=own.model, benchmark=own.benchmark, scenario=own.scenario, system=f"system {at}")
        for at, row in enumerate(real)
        if row.unit == own.unit and row.accelerators
    ]
    rows += [replace(row, round="v5.0") for row in rows[:3]]
    given = dataclasses.replace(report, places=tuple(places_of(report.submission, Index(tuple(rows), 1, 0))))
    page = Page(render(given))
    root = neural_magic.parents[1]
    assert traced(page, published, root) >= traced(Page(render(load(published))), published) + 6
    titles = [str(a["title"]) for tag, a in page.elements if tag == "data" and "per accelerator" in str(a["data-unit"])]
    assert any(title.startswith("mean of ") for title in titles) and any(
        "divided by 4 acc" in title for title in titles
    )
    with pytest.raises(AssertionError):
        traced(Page(render(given).replace("divided by 4 accelerators", "divided by 5 accelerators")), published, root)


def test_a_figure_that_was_changed_is_found(real_runs):
    html = render(load(real_runs))
    value = re.search(r'<data value="([\d.]+)" data-unit="tokens/s"', html)
    assert value
    with pytest.raises(AssertionError):
        traced(Page(html.replace(value[1], f"{float(value[1]) + 0.01}")), real_runs)


def test_every_number_of_the_model_is_there(real_runs, page):
    report = load(real_runs)
    expected: list[str] = [number(report.model.parameters or 0), number(report.benchmark.samples)]
    for m in report.results:
        assert m.performance and m.accuracy and m.accuracy.record
        result, record = m.performance, m.accuracy.record
        expected += [rate(result.tokens_per_second) + " tokens/s", rate(result.samples_per_second) + " samples/s"]
        expected += [number(result.samples), number(record.samples), number(record.tokens)]
        expected.append(f" of {number(round(result.figures.value('tokens_per_sample') or 0, 2))} tokens")
        if result.scheduled_samples_per_second is not None:
            expected.append(rate(result.scheduled_samples_per_second) + " samples/s")
        for latency in m.performance.latencies:
            expected += [ms(latency.p99) + " ms", ms(latency.mean or 0) + " ms", number(latency.limit or 0) + " ms"]
        for score in record.scores:
            expected += [score.metric, number(score.value), number(score.lower)]
            expected += [number(score.upper)] if score.upper is not None else []
        expected += [f"{label} {number(value)}" for label, value in record.values.items()]
        for run in m.runs:
            client = run.client
            expected += [
                number(n)
                for n in (
                    client.requests,
                    client.completed,
                    client.failed,
                    client.retries,
                    client.prompt_tokens,
                    client.completion_tokens,
                )
            ]
            expected += [*run.files, *run.files.values(), time_text(run.started_at)]
    assert [words for words in expected if words not in page.text] == []


def test_every_key_of_the_system_is_there(real_runs, page):
    report = load(real_runs)
    values = {v for k, v in report.system.items() if v and not k.startswith("accelerator_") and v != "not-stated"}
    assert [value for value in values if value not in page.text] == []
    assert "None: the model is served by the processor." in page.text and "64 of 13,368 samples" in page.text
    assert "The client asked it at /inference/v1/generate" in page.text
    assert "its processes have 10 more niceness" in page.text
    assert "The machine that ran LoadGen" in page.text and "2: 1 x 2 cores x 1 threads" in page.text


def test_real_accelerators_are_shown_with_all_their_keys(published):
    report = load(published)
    text = Page(render(load(published))).text
    assert [v for v in report.system.values() if v and " ".join(v.split()) not in text] == []
    assert "NVIDIA GeForce RTX 4090" in text and "onpremise" in text


def test_a_published_result_gets_its_own_unit_and_variant(published):
    """The page made of these logs: 1954.36 Queries/s in the row of llama2-70b, Closed, accuracy targets blank."""
    text = Page(render(load(published))).text
    assert "1,954.36 tokens/s" in text and "6.89 samples/s" in text and "1,871.84 tokens/s" in text
    assert "neuralmagic_Llama-2-7b-chat-hf-FP8 , not the benchmark's own model" in text
    assert "open division" in text and "≥ 44.3867688" in text and "≤ 323.895" in text
    assert "misses 3 of 4 closed-division targets" in text
    assert "REHEARSAL" not in text.upper()


# --- summary.json and summary.csv: the figures of the page, each with its source, as programs read them


DOCS = Path(__file__).resolve().parents[2] / "docs" / "report.md"


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_page_json_and_csv_are_written_and_agree(out):
    report = load(out)
    write_summary(report)
    record = read_record(out / "summary.json", SummaryRecord)
    assert msgspec.json.encode(record) == msgspec.json.encode(summary_record(report))
    assert (out / "summary.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    for row, result in zip(rows((out / "summary.csv").read_text(encoding="utf-8")), record.results, strict=True):
        assert (
            float(row["result"]) == result["metric"]["value"] and row["unit"] == result["metric"]["unit"] == "tokens/s"
        )
        assert row["scenario"] == result["scenario"] and row["valid"] == str(result["valid"])
        assert row["notice"] == "REHEARSAL, NOT A RESULT"
        for latency in result["latencies"]:
            assert float(row[f"{latency['name'].lower()}_p99_ms"]) == latency["p99_ms"]


def test_scores_and_targets_keep_their_digits(real_runs):
    row = rows(summary_csv(load(real_runs)))[0]
    assert row["accuracy_target"].startswith("ROUGE1: 38.391408, ROUGE2: 15.748425, ")
    assert "GEN_LEN: 7350879.6" in row["accuracy_target"]


def test_each_figure_names_its_file_and_field(real_runs):
    for result in summary_record(load(real_runs)).results:
        assert len(result["figures"]) > 5
        for figure in result["figures"]:
            assert (real_runs / figure["file"]).is_file() and figure["field"].startswith("result_")


def test_every_field_and_column_is_described(real_runs):
    text = DOCS.read_text(encoding="utf-8")
    record = summary_record(load(real_runs))
    for described in (record, record.results[0], record.findings[0]):
        assert [name for name in msgspec.to_builtins(described) if f"`{name}`" not in text] == []
    assert [name for name in CSV_COLUMNS if f"`{name}`" not in text] == []


def test_what_was_not_measured_is_empty_and_not_zero(out):
    shutil.rmtree(next(out.glob("runs/*/*/Offline/performance")))
    row, result = rows(summary_csv(load(out)))[0], summary_record(load(out)).results[0]
    assert (row["result"], row["valid"], row["target_qps"], row["samples_per_second"]) == ("", "", "", "")
    assert result["metric"] is None and result["valid"] is None and result["figures"] == []


@pytest.mark.parametrize("begin", ["=", "+", "-", "@"])
def test_no_cell_is_a_formula(out, begin):
    path, text = out / "system" / "system.json", f"{begin}HYPERLINK(1)"
    write_json(path, {**json.loads(path.read_text()), "host_processor_model_name": text})
    assert {row["processor"] for row in rows(summary_csv(load(out)))} == {f"'{text}"}


# --- the picture of a search, drawn from a record that the search itself writes


def test_p99_is_drawn_over_the_rate_with_the_rate_that_was_found(searched):
    (picture,) = search_curves(searched, "Server")
    assert search_curves(searched, "Offline") == []
    assert picture.words == "4 probes found 8 queries/s; interval of the true rate: 7.9 to 8.6; near enough"
    assert picture.source == f"search/Server/{SEARCH_FILE}: probes"
    lines = [shape.attributes["points"] for shape in picture.shapes if shape.tag == "polyline"]
    assert [len(str(line).split()) for line in lines] == [3, 4]  # a probe without an answer has no TTFT
    assert [row[0] for row in picture.tables[0].rows] == ["4", "4", "8", "8", "16", "16", "32"]
    assert "4 probes found 8 queries/s" in render(load(searched))
    file = searched / "search" / "Server" / SEARCH_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "drift": "the server's speed changed"}))
    (picture,) = search_curves(searched, "Server")
    assert picture.words.endswith("near enough; the server's speed changed")
    file.write_text("{")  # one that is being written
    assert search_curves(searched, "Server") == []


# --- the table of the server settings that a search tried, from the record that the search writes


def test_the_table_has_what_was_tried_with_the_reason_of_what_was_dropped(tmp_path):
    assert tried_settings(tmp_path) is None
    path = tmp_path / SETTINGS_PATH
    path.parent.mkdir(parents=True)
    write_record(path, record())
    tried = tried_settings(tmp_path)
    assert tried.head == ("Options of vLLM", "Round", "Seconds each", "Start, s", "Offline", "")
    assert tried.rows[0] == ("--max-num-seqs=16", "2", "10.00", "60.00", "118.00 tokens/s", "chosen")
    assert tried.rows[-1][-1] == "dropped: the server of x did not start; CUDA out of memory"
    assert "3 of 3 candidates" in tried.words
    assert "1.168 times as much" in tried.words
    assert "compare with each other alone" in tried.words
    assert [row[-1] for row in tried.rows[1:3]] == ["no bound", "no bound"]
    assert "For 2 of 2 tried settings the records have no bound" in tried.words
    path.write_text("{}")  # no record
    assert tried_settings(tmp_path) is None


def test_a_rate_has_the_bracket_that_its_probes_measured(tmp_path):
    searched = record()
    best = next(
        evaluation
        for evaluation in searched.evaluations
        if evaluation.options == searched.chosen and evaluation.score is not None
    )
    paced = [msgspec.structs.replace(scenario, unit="queries/s", low=110.0, high=121.5) for scenario in best.scenarios]
    later = msgspec.structs.replace(best, round=best.round + 1, scenarios=paced)
    path = tmp_path / SETTINGS_PATH
    path.parent.mkdir(parents=True)
    write_record(path, msgspec.structs.replace(searched, evaluations=[*searched.evaluations, later]))
    value = tried_settings(tmp_path).rows[0][4]
    assert value.endswith(" queries/s (110.00 to 121.50)")
