"""A server that is slower or faster than in the probes before."""

from cm4vllm.campaign.search.explanations import drift_words
from cm4vllm.records.metrics import Speed
from cm4vllm.records.searches.rate_search import ProbeRecord, Verdict


def speed(base_ms=4.0, per_request_ms=0.1, low=80.0, high=120.0):
    return Speed(
        base_ms=base_ms,
        per_request_ms=per_request_ms,
        low=low,
        high=high,
        parts=10,
        slowest=1.0,
        slowest_from_s=330.0,
        slowest_to_s=347.0,
        scatter=0.02,
    )


def probes(*speeds):
    return [
        ProbeRecord(
            number=number,
            rate=10.0,
            planned_s=30.0,
            took_s=20.0,
            warm_up_s=5.0,
            queries=100,
            limits=[],
            verdict=Verdict.PASSES,
            ended_early=False,
            speed=measured,
        )
        for number, measured in enumerate(speeds, 1)
    ]


def test_a_server_that_was_slower_in_another_probe_is_told():
    assert drift_words(probes(speed(), None, speed(8.0, 0.1, 60.0, 140.0), speed(4.4, 0.1, 70.0))) == (
        "the server's speed changed during the search: with 100 requests a step took 14.0 ms in probe 1 and 18.0 ms in "
        "probe 3"
    )
    assert drift_words(probes(speed(8.0), speed())).endswith("took 14.0 ms in probe 2 and 18.0 ms in probe 1")


def test_noise_is_no_change_of_speed_and_other_loads_are_not_compared():
    assert drift_words(probes(speed(), speed(4.5, 0.105))) == ""
    assert drift_words(probes(speed(low=10.0, high=20.0), speed(9.0))) == ""
    assert drift_words(probes(None, speed())) == ""
