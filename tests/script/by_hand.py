"""A benchmark's server, started by hand from the command line."""

import os
import signal
from contextlib import contextmanager

from cm4vllm.common.records import read_record
from cm4vllm.serving.records import ServerRecord
from cm4vllm.serving.server import SERVER_FILE


@contextmanager
def server_by_hand(cm, benchmark, timeout_s):
    """Give the record of the server that run,vllm-server starts for a benchmark; Ctrl-C ends it at last."""
    server = cm.start("run", "script", "--tags=run,vllm-server", f"--model={benchmark}", "--quiet")
    server.wait_for("it runs until Ctrl-C", timeout_s)
    assert f"--model={benchmark}" in server.output()
    yield read_record(cm.cwd / "vllm-server" / SERVER_FILE, ServerRecord)
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.finish().code == 0, server.output()
    server.no_orphans()
