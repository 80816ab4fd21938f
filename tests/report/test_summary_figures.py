"""The figures of the page are those of LoadGen's logs and of the system description."""

import dataclasses
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.report.parsed_page import Page, traced

from cm4vllm.common.number_texts import ms, number, rate, when
from cm4vllm.report.summary import render
from cm4vllm.results.campaign_results import load
from cm4vllm.results.judgement.published_rank import places_of
from cm4vllm.results.result_index import Index, read_index, row_of


def test_each_figure_of_a_page_is_that_of_loadgens_log(real_runs: Path, page: Page, published: Path) -> None:
    assert traced(page, real_runs) >= 20
    assert traced(Page(render(load(published))), published) >= 20


def test_each_place_is_computed_from_the_logs_of_published_results(
    published: Path, neural_magic: Path, tmp_path: Path
) -> None:
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


def test_a_figure_that_was_changed_is_found(real_runs: Path) -> None:
    html = render(load(real_runs))
    value = re.search(r'<data value="([\d.]+)" data-unit="tokens/s"', html)
    assert value
    with pytest.raises(AssertionError):
        traced(Page(html.replace(value[1], f"{float(value[1]) + 0.01}")), real_runs)


def test_every_number_of_the_model_is_there(real_runs: Path, page: Page) -> None:
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
            expected += [*run.files, *run.files.values(), when(run.started_at)]
    assert [words for words in expected if words not in page.text] == []


def test_every_key_of_the_system_is_there(real_runs: Path, page: Page) -> None:
    report = load(real_runs)
    values = {v for k, v in report.system.items() if v and not k.startswith("accelerator_") and v != "not-stated"}
    assert [value for value in values if value not in page.text] == []
    assert "None: the model is served by the processor." in page.text
    assert "The machine that ran LoadGen" in page.text and "2: 1 x 2 cores x 1 threads" in page.text


def test_real_accelerators_are_shown_with_all_their_keys(published: Path) -> None:
    report = load(published)
    text = Page(render(load(published))).text
    assert [v for v in report.system.values() if v and " ".join(v.split()) not in text] == []
    assert "NVIDIA GeForce RTX 4090" in text and "onpremise" in text


def test_a_published_result_gets_its_own_unit_and_variant(published: Path) -> None:
    """The page made of these logs: 1954.36 Queries/s in the row of llama2-70b, Closed, accuracy targets blank."""
    text = Page(render(load(published))).text
    assert "1,954.36 tokens/s" in text and "6.89 samples/s" in text and "1,871.84 tokens/s" in text
    assert "neuralmagic_Llama-2-7b-chat-hf-FP8 , not the benchmark's own model" in text
    assert "open division" in text and "≥ 44.3867688" in text and "≤ 323.895" in text
    assert "misses 3 of 4 closed-division targets" in text
    assert "REHEARSAL" not in text.upper()
