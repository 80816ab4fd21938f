"""A benchmark's server, started by hand from the command line, and the same without a setting of the rules."""

import os
import signal
import subprocess
import threading
import urllib.request
from contextlib import contextmanager

import pytest

from cm4vllm.common.records import read_record
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.server import SERVER_FILE


def real_vllm(test):
    """Mark a test that takes minutes on the real vLLM, of which one at a time is run."""
    return pytest.mark.e2e(pytest.mark.long(pytest.mark.xdist_group("vllm-2")(test)))


@contextmanager
def server_by_hand(cm, benchmark, timeout_s):
    """Yield the record of the server that run,vllm-server starts for a benchmark; Ctrl-C ends it at last."""
    server = cm.start("run", "script", "--tags=run,vllm-server", f"--model={benchmark}", "--quiet")
    server.wait_for("it runs until Ctrl-C", timeout_s)
    assert f"--model={benchmark}" in server.output()
    yield read_record(cm.cwd / "vllm-server" / SERVER_FILE, ServerRecord)
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.finish().code == 0, server.output()
    server.no_orphans()


@contextmanager
def caching_server(record, log, timeout_s):
    """Yield the endpoint of the same server without the setting by which it keeps no media between queries."""
    words = [str(word) for word in record.argv]
    at = words.index("--mm-processor-cache-gb")
    del words[at : at + 2]
    port = int(record.endpoint.rpartition(":")[2]) + 1
    words[words.index("--port") + 1] = str(port)
    with log.open("w") as file:
        server = subprocess.Popen(
            words, env={**os.environ, **record.env}, stdout=file, stderr=file, start_new_session=True
        )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait_until_healthy(server, endpoint, log, timeout_s)
        yield endpoint
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def _wait_until_healthy(server, endpoint, log, seconds):
    ended = threading.Event()
    for _ in range(seconds):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{endpoint}/health", timeout=5):
                return
        except OSError:
            ended.wait(1)
    pytest.fail(f"not ready after {seconds} s:\n{log.read_text()[-3000:]}")
