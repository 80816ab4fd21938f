"""A result whose queries follow one another: its figure is a latency, and so is the target that LoadGen was given."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed
from simulated_server import SimulatedServer

from cm4vllm.report.final_table import final_table
from cm4vllm.report.summary import write_summary
from cm4vllm.report.tree_texts import measurement_readmes
from cm4vllm.results.campaign_results import Report, load
from cm4vllm.results.judgement.bottlenecks import Cause, why
from cm4vllm.results.judgement.campaign_verdict import missing_scenarios, sentence
from cm4vllm.rules import Scenario


@pytest.fixture
def report(single_stream: Path) -> Report:
    return load(single_stream)


def test_its_figure_is_the_90th_percentile_of_the_latency(report: Report) -> None:
    part = report.results[0].performance
    assert part.valid and part.metric.name == "latency_p90"
    assert part.metric.source.field == "result_90.00_percentile_latency_ns"
    assert {latency.name: latency.limit for latency in part.latencies} == {"TTFT": None, "TPOT": None}
    assert re.search(r"SingleStream  [\d.]+ ms \(latency p90\)", final_table(report))
    assert "ms (latency p90) in the SingleStream scenario" in sentence(report)
    assert missing_scenarios(report) == [Scenario.OFFLINE]


def test_its_pages_name_the_expected_latency_and_no_target_rate(report: Report) -> None:
    write_summary(report)
    words = "1.33 x the mean latency of SingleStream latency, 18.75 ms"
    for page in (report.page.read_text(), measurement_readmes(report)[Scenario.SINGLE_STREAM]):
        assert "Expected latency" in page and f"25.0 ms, {words}" in page
        assert "Target QPS" not in page
        assert "no limit" in page


@pytest.mark.parametrize(("prompt_tokens", "answer", "cause"), [(100, 60, Cause.DECODE), (9000, 4, Cause.PREFILL)])
def test_what_bound_it_is_the_phase_that_takes_most_of_a_request(
    report: Report, prompt_tokens: int, answer: int, cause: Cause
) -> None:
    metrics = SimulatedServer().run(qps=0.05, prompt=prompt_tokens, answer=answer)
    part = report.results[0].performance
    explanation = why(replace(part, run=changed(part.run, server_metrics=metrics)))
    assert explanation.cause is cause
    assert "target_qps" not in explanation.option and "max_num_seqs" not in explanation.option
