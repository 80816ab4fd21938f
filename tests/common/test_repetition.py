"""Calls at intervals: they go on through the block, end with it, and one that hangs does not keep it."""

import threading
import time

import pytest

from cm4vllm.common.repetition import repeated


def test_a_function_is_called_until_the_block_ends():
    calls = []
    with repeated(lambda: calls.append(threading.current_thread().name), 0.02, "samples"):
        deadline = time.monotonic() + 30
        while len(calls) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
    count = len(calls)
    assert count >= 3 and set(calls) == {"samples"}
    time.sleep(0.1)
    assert len(calls) == count


def test_the_first_call_comes_after_the_interval():
    calls = []
    with repeated(lambda: calls.append(1), 60, "samples"):
        pass
    assert calls == []


def test_the_calls_end_with_a_block_that_fails():
    calls = []
    with pytest.raises(ValueError), repeated(lambda: calls.append(1), 0.01, "samples"):
        raise ValueError
    count = len(calls)
    time.sleep(0.1)
    assert len(calls) == count


def test_a_call_that_hangs_is_not_waited_for_longer_than_allowed():
    hangs = threading.Event()
    begin = time.monotonic()
    with repeated(lambda: hangs.wait(30), 0.01, "samples", end_s=0.1):
        time.sleep(0.1)
    assert time.monotonic() - begin < 10
    hangs.set()
