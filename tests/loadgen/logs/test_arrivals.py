"""The times at which LoadGen issues queries, held against what LoadGen itself generates and does."""

import re

import numpy as np
import pytest
from fake_vllm import FakeVllm
from msgspec.structs import replace

from cm4vllm.campaign.search.full_length import FullLength
from cm4vllm.loadgen.process.runner import run
from cm4vllm.records.logs.arrivals import arrivals
from cm4vllm.records.logs.detail_log import DETAIL_LOG


@pytest.mark.parametrize(("rate", "duration_ms"), [(250.0, 900), (97.3, 1)])
def test_they_are_those_of_loadgen_to_the_nanosecond(tmp_path, make_settings, rate, duration_ms):
    """LoadGen logs how many queries it generated, and when the one after the last would be issued."""
    with FakeVllm() as server:
        settings = make_settings(server.endpoint, "Server", "performance", target_qps=rate)
        conf = re.sub(r"min_duration = \d+", f"min_duration = {duration_ms}", settings.user_conf)
        run(
            replace(settings, user_conf=re.sub(r"min_query_count = \d+", "min_query_count = 2", conf)), tmp_path / "run"
        )
    log = (tmp_path / "run" / DETAIL_LOG).read_text()
    count, end_ns = (
        int(re.search(rf'"{key}", "value": (\d+)', log)[1])
        for key in ("generated_query_count", "generated_query_duration")
    )
    seed = settings.terms.seeds.schedule
    assert FullLength(duration_ms / 1000, seed, whole=settings.samples).queries(rate) == count
    assert round(arrivals(rate, seed, count + 1)[-1] * 1e9) == end_ns


def test_a_schedule_is_stretched_by_the_rate_and_the_longer_one_begins_with_the_shorter_one():
    assert arrivals(20.0, 7, 1000) == pytest.approx(arrivals(40.0, 7, 1000) * 2, abs=1e-5)
    assert np.array_equal(arrivals(20.0, 7, 1000)[:10], arrivals(20.0, 7, 10))
    assert arrivals(20.0, 7, 1).tolist() == [0.0]
    assert 1000 / arrivals(20.0, 7, 1000)[-1] == pytest.approx(20, rel=0.1)


def test_a_run_ends_with_the_first_query_at_or_after_its_time():
    times = arrivals(20.0, 7, 3000)
    count = FullLength(60.0, 7).queries(20.0)
    assert times[count - 2] < 60 <= times[count - 1]
    assert FullLength(60.0, 7, whole=1000).queries(20.0) == 2000
