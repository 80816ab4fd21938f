"""The first estimate of a server's rate: what it asks for, and what it makes of the times."""

import pytest
from fake_vllm import Behaviour, FakeVllm, Fault

from cm4vllm.loadgen.process.first_rate import first_rate, whole_s


@pytest.mark.parametrize(("scenario", "count", "at_a_time"), [("Offline", 8, 8), ("Server", 8, 4), ("Offline", 2, 1)])
def test_it_asks_for_short_answers_to_the_first_samples(make_settings, scenario, count, at_a_time):
    with FakeVllm(Behaviour(token_delay_s=0.002)) as server:
        rate = first_rate(
            make_settings(server.endpoint, scenario, "performance"), count, at_a_time=at_a_time, longest_s=60
        )
    assert [body["max_tokens"] for body in server.bodies] == [1] * count + [16] * count
    assert server.most_in_flight <= at_a_time
    assert rate > 0


def test_requests_that_take_too_long_count_as_if_they_were_answered_then(make_settings):
    with FakeVllm(Behaviour(held=lambda number, events: True)) as server:
        rate = first_rate(make_settings(server.endpoint, "Offline", "accuracy"), 8, at_a_time=8, longest_s=1.0)
    assert 0 < rate <= 8 / 0.5


def test_a_server_that_refuses_them_all_gives_no_estimate(make_settings):
    with FakeVllm(Behaviour(fault=lambda number: Fault.STATUS_400)) as server:
        settings = make_settings(server.endpoint, "Offline", "accuracy")
        assert first_rate(settings, 8, at_a_time=8, longest_s=60) is None


@pytest.mark.parametrize(
    ("few_s", "more_s", "more", "tokens", "seconds"),
    [
        (1.0, 2.5, 16, 128, 2.5 + 112 * 0.1),
        (26.0, 27.0, 16, 128, 27.0 + 112 * 0.25 * 27 / 16),  # long prompts, or a machine that was busy at first
        (30.0, 20.0, 16, 16, 20.0),
        (2.0, 2.0, 1, 1, 2.0),
    ],
)
def test_the_time_of_a_whole_answer_follows_from_two_lengths(few_s, more_s, more, tokens, seconds):
    assert whole_s(few_s, more_s, more, tokens) == pytest.approx(seconds)
