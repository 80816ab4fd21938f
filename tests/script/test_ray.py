"""A real Ray cluster of two nodes on one machine: joined, asked where a server's workers fit, and left."""

import os
import re
import signal

import pytest

from cm4vllm.common.errors import Interrupted

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.xdist_group("vllm-2")]

#: Seconds that Ray's installation and a node's start may take on a busy machine.
FIRST_START_S = 600


def ray(*words):
    return ("run", "script", "--quiet", *words)


def test_machines_join_are_asked_and_leave(cm):
    head = cm.start(
        *ray("--tags=run,ray-cluster,_head", "--node_ip=127.0.0.1", "--port=26379", "--num_gpus=1", "--output_dir=head")
    )
    head.wait_for("_worker --address=", FIRST_START_S)
    worker = cm.start(
        *ray(
            "--tags=run,ray-cluster,_worker",
            "--address=127.0.0.1:26379",
            "--node_ip=127.0.0.2",
            "--num_gpus=1",
            "--output_dir=worker",
        )
    )
    worker.wait_for("runs until Ctrl-C", 180)
    status = ("--tags=run,ray-cluster,_status", "--address=127.0.0.1:26379")
    fits = cm(*ray(*status, "--tp_size=2"))
    assert fits.code == 0, fits.output
    placed = re.search(r"workers would run at (\S+), (\S+)", fits.output)
    assert placed and len({placed[1], placed[2]}) == 2, fits.output
    cm(*ray(*status, "--tp_size=3")).refused_with(20, "do not fit", "tensor parallel 3")
    for node in (worker, head):
        os.killpg(node.process.pid, signal.SIGINT)
        assert node.finish().code in (0, Interrupted.exit_code), node.output()
        node.no_orphans()
