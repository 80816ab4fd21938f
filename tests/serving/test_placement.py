"""Cores and GPUs are shared out among servers and their workers, or refused."""

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.serving.placement import core_bindings, gpu_groups, own_cores, visible_gpus


@pytest.mark.parametrize(("cores", "servers", "workers", "bindings"), [
    ([0, 1], 1, 2, ["0|1"]),
    ([0, 1], 2, 1, ["0", "1"]),
    (list(range(8)), 2, 2, ["0-1|2-3", "4-5|6-7"]),
    ([0, 2, 4, 6], 1, 2, ["0,2|4,6"]),
    ([3, 5, 7], 1, 2, ["3|5"]),
    (list(range(7)), 1, 1, ["0-6"]),
])  # fmt: skip
def test_cores_are_shared_evenly(cores, servers, workers, bindings):
    assert core_bindings(cores, servers, workers) == bindings


def test_no_core_is_given_twice():
    cores = list(range(64))
    for servers in range(1, 5):
        for workers in range(1, 5):
            used = []
            for binding in core_bindings(cores, servers, workers):
                for group in binding.split("|"):
                    first, _, last = group.partition("-")
                    used += range(int(first), int(last or first) + 1)
            assert len(used) == len(set(used)) == 64 // (servers * workers) * servers * workers


def test_too_few_cores_are_told():
    with pytest.raises(UsageError, match="2 servers of 2 workers need 4 cores"):
        core_bindings([0, 1], 2, 2)


def test_gpus_are_given_by_what_is_visible():
    assert gpu_groups(visible_gpus({}, 4), 2, 2) == ["0,1", "2,3"]
    assert gpu_groups(visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}, 8), 3, 1) == ["GPU-a", "GPU-b", "GPU-c"]


def test_too_few_gpus_are_told():
    with pytest.raises(UsageError, match="need 4 GPUs"):
        gpu_groups(visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, 8), 2, 2)


def test_the_cores_of_this_process_are_those_it_may_use():
    assert own_cores()
