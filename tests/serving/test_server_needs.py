"""The processes and the shared memory that a server with given options needs."""

import pytest

from cm4vllm.records.vllm.given_options import given_options
from cm4vllm.records.vllm.server_needs import api_processes, ring_buffer_bytes, worker_count


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([], 1),
        (["--api-server-count", "4"], 4),
        (["--api_server_count=4"], 4),
        (["--data-parallel-size", "2"], 2),
        (["--data-parallel-size=2", "--api-server-count=1"], 1),
        (["--api-server-count"], 1),
    ],
)
def test_connections_are_taken_by_as_many_processes_as_vllm_starts(words, count):
    assert api_processes(given_options(["vllm", "serve", "m", *words])) == count


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ([], 0),
        (["--tensor-parallel-size", "2"], 240 * 2**20),
        (["--pipeline-parallel-size=2"], 240 * 2**20),
        (["--tensor-parallel-size=2", "--distributed-executor-backend=ray"], 0),
        (["--data-parallel-size=2"], 0),
    ],
)
def test_workers_of_their_own_need_shared_memory(words, needed):
    assert ring_buffer_bytes(given_options(words)) == needed


def test_every_parallel_size_multiplies_the_workers():
    assert worker_count({}) == 1
    assert worker_count(given_options(["-tp", "2", "--pipeline_parallel_size=3", "-dp=2"])) == 12
