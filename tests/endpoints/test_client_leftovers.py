"""Folders that clients have left in shared memory: old ones that no process uses are removed, no others."""

import os
import socket
import time

from cm4vllm.endpoints.client import remove_leftovers


def test_old_folders_that_no_process_uses_are_removed_and_no_others(tmp_path):
    old, new, other, opened, listening = (
        tmp_path / name for name in ("benchmark_old", "zmq_new", "notes", "benchmark_open", "zmq_open")
    )
    for folder in (old, new, other, opened, listening):
        folder.mkdir()
    with (opened / "events").open("w"), socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening / "s"))
        long_ago = time.time() - 3600
        for folder in (old, other, opened, listening):
            os.utime(folder, (long_ago, long_ago))
        assert remove_leftovers(tmp_path) == [old]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["benchmark_open", "notes", "zmq_new", "zmq_open"]
