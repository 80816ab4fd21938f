"""What the words of a server say of its processes and of shared memory."""

import pytest

from cm4vllm.serving.server_needs import api_processes, option_value, ring_buffer_bytes


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
    assert api_processes(["vllm", "serve", "m", *words]) == count


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
    assert ring_buffer_bytes(words) == needed


def test_the_last_value_of_an_option_counts():
    assert option_value(["--max-num-seqs=1", "--max-num-seqs", "2"], "--max-num-seqs") == "2"
    assert option_value(["--max-num-seqs"], "--max-num-seqs") == ""
