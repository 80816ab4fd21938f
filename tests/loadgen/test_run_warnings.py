"""Warnings after a run, each with its cause."""

import pytest
from msgspec.structs import replace
from test_doubts import LOAD, record  # noqa: F401 - a fixture

from cm4vllm.records.client import FinishReasons
from cm4vllm.records.doubts import client_doubts, run_warnings
from cm4vllm.records.metrics import ServerMetrics, Speed
from cm4vllm.rules import Mode, Scenario, terms

METRICS = ServerMetrics(
    samples=9,
    interval_s=2.0,
    missed=0,
    running_max=9,
    running_mean=5.0,
    waiting_max=3,
    waiting_mean=1.0,
    kv_cache_usage_max=0.97,
    preemptions=0,
    prefix_cache_hits=0,
    cached_prompt_tokens=0,
    prompt_tokens=99,
    generation_tokens=99,
)


def test_a_run_that_is_as_it_should_be_has_none(record):  # noqa: F811
    assert run_warnings(replace(record(), server_metrics=METRICS, machine_load=LOAD)) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"server_metrics": replace(METRICS, preemptions=12)}, ["preempted 12 requests", "97% full", "--max_num_seqs"]),
        ({"server_metrics": replace(METRICS, prefix_cache_hits=512)}, ["512 prompt tokens from a cache"]),
        (
            {"machine_load": replace(LOAD, throttled={"GPU 0: its temperature": 12.3})},
            ["GPU 0 was slowed down by its temperature for 12.3 s", "cooling"],
        ),
        (
            {"machine_load": replace(LOAD, throttled={"a processor: its temperature (times)": 7.0})},
            ["a processor was slowed down by its temperature 7 times"],
        ),
        (
            {"machine_load": replace(LOAD, throttled={"GPU 1: its power limit": 99.0})},
            ["GPU 1 was slowed down by its power limit for 99.0 s", "nvidia-smi"],
        ),
        (
            {
                "server_metrics": replace(
                    METRICS,
                    speed=Speed(
                        base_ms=4.0,
                        per_request_ms=0.1,
                        low=90.0,
                        high=110.0,
                        parts=12,
                        slowest=0.69,
                        slowest_from_s=330.0,
                        slowest_to_s=347.0,
                        scatter=0.02,
                    ),
                )
            },
            ["from 330 to 347 s", "31 % fewer tokens/s", "the host of a virtual machine"],
        ),
        ({"machine_load": replace(LOAD, own_s=100)}, ["other processes used 25%"]),
    ],
)
def test_what_was_seen_during_the_run_is_said_with_its_cause(record, fields, words):  # noqa: F811
    (warning,) = run_warnings(replace(full_length(record()), **fields))
    for word in words:
        assert word in warning


def full_length(run):
    return replace(run, settings=replace(run.settings, rehearsal=False))


@pytest.mark.parametrize(
    ("fields", "is_said"),
    [
        ({"machine_load": replace(LOAD, own_s=100)}, False),
        ({"machine_load": replace(LOAD, stolen_s=30)}, False),
        ({"machine_load": replace(LOAD, throttled={"GPU 1: its power limit": 99.0})}, False),
        ({"server_metrics": replace(METRICS, preemptions=12)}, True),
        ({"server_metrics": replace(METRICS, prefix_cache_hits=512)}, True),
    ],
)
def test_a_rehearsal_warns_of_defects_and_not_of_inexact_figures(record, fields, is_said):  # noqa: F811
    run = replace(record(), **fields)
    assert run.settings.rehearsal
    assert bool(run_warnings(run)) is is_said
    assert run_warnings(full_length(run))


def test_a_doubt_without_a_remedy_stands_on_the_page_alone(record):  # noqa: F811
    run = full_length(record(self_check=None))
    assert client_doubts(run) == ["the client was not checked before the run"]
    assert run_warnings(run) == []


def test_more_answers_at_their_greatest_length_than_the_mean_allows_are_told(record):  # noqa: F811
    """llama2-70b-99 has 294 tokens per sample of 1024 at most: at most 32 % of the answers can have them all."""
    run = record()
    longer = replace(
        run.settings, max_tokens=1024, terms=terms("v6.0", "llama2-70b-99", Scenario.SERVER, Mode.PERFORMANCE)
    )
    run = replace(run, settings=longer)
    assert not any("finish_reason" in text for text in run_warnings(ended(run, stop=69, length=31)))
    (warning,) = [text for text in run_warnings(ended(run, stop=60, length=40)) if "finish_reason" in text]
    assert "40 of 100 answers ended at their greatest length of 1,024 tokens" in warning


def ended(run, *, stop, length):
    return replace(run, client=replace(run.client, finish_reasons=FinishReasons(stop=stop, length=length)))
