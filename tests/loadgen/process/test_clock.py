"""A clock that is set during a run is noticed, in both directions; one that is read late is not."""

import time

import pytest

from cm4vllm.loadgen.process.clock import ClockWatch


@pytest.fixture
def clock(monkeypatch):
    """Return a list whose first value is by how many ns the time of day is set forward."""
    shift, now_ns = [0], time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + shift[0])
    return shift


@pytest.mark.parametrize(("seconds", "words"), [(3600, "forward by 3,600.00 s"), (-0.05, "back by 0.05 s")])
def test_a_clock_that_is_set_makes_a_run_invalid(clock, seconds, words):
    watch = ClockWatch()
    assert watch.fault("Offline performance") is None
    clock[0] = int(seconds * 1e9)
    fault = watch.fault("Offline performance")
    assert fault is not None
    assert fault.what == f"the clock was set {words}: the Offline performance run is INVALID"


def test_an_interrupted_reading_is_no_jump(monkeypatch):
    watch, now_ns, late = ClockWatch(), time.time_ns, iter([0.2])
    monkeypatch.setattr(time, "time_ns", lambda: time.sleep(next(late, 0)) or now_ns())
    assert watch.fault("Offline performance") is None
