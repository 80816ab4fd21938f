"""The run that a search predicts is the one that LoadGen makes."""

import pytest

from cm4vllm.campaign.search.full_length import FullLength


def test_a_rehearsal_of_a_slow_server_lasts_until_its_least_queries_are_issued():
    run = FullLength(10.0, 1, whole=256, least=662)
    assert run.queries(5.0) == 768
    assert run.duration(5.0) == pytest.approx(768 / 5)
    assert run.most_late(5.0) == 1
    assert run.queries(500.0) > 4_000
