"""Runs made again: their capsules agree with the first ones, and do not where a sampling parameter was another."""

import msgspec
import pytest
from fake_vllm import Behaviour, FakeVllm

from campaign_records import campaign_record
from cm4vllm.common.errors import ResultsDiffer
from cm4vllm.common.records import write_record
from cm4vllm.loadgen.process.runner import run
from cm4vllm.results.comparing.comparison import compare
from cm4vllm.results.comparing.verification import refuse_differences, verify
from cm4vllm.submission.capsule.capsules_at_path import capsule_of_results
from cm4vllm.submission.capsule.rerun_file import read_capsule, write_capsule


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("repeated")


def measured(out, make_settings, **changed):
    """Measure Offline in both modes on a server of its own; return the capsule, as it is read from its file."""
    # The answers of a performance run end one after the other: an interval needs samples in each part of the run.
    for mode, server in (("accuracy", FakeVllm()), ("performance", FakeVllm(Behaviour(token_delay_s=0.002)))):
        with server:
            settings = make_settings(server.endpoint, "Offline", mode, test_query_count=128, max_in_flight=16)
            run(msgspec.structs.replace(settings, **changed), out / "runs" / "system" / "tiny" / "Offline" / mode)
    write_record(out / "campaign.json", campaign_record())
    write_capsule(out / "rerun.yaml", capsule_of_results(out))
    return read_capsule(out / "rerun.yaml")


def test_a_run_made_again_is_verified_and_one_with_another_sampling_parameter_is_not(folder, make_settings):
    first = measured(folder / "first", make_settings)
    again = measured(folder / "again", make_settings)
    refuse_differences(verify(compare([("first", first), ("again", again)])))
    rate = first.results[0].performance.figures["tokens_per_second"]
    assert rate.interval is not None and rate.interval.low < rate.value < rate.interval.high
    other = measured(folder / "other", make_settings, max_tokens=64)
    with pytest.raises(ResultsDiffer) as differs:
        refuse_differences(verify(compare([("first", first), ("other", other)])))
    assert "sampling: max_tokens: 128 and 64" in differs.value.cause
    assert "Offline: answers: 64 answers and " in differs.value.cause
