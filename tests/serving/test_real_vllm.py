"""A real vLLM server, killed in the ways that used to leave its engine behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from cm4vllm.common.records import read_record
from cm4vllm.serving.metrics import sampled
from cm4vllm.serving.probe import Site
from cm4vllm.serving.records import ServerRecord
from cm4vllm.serving.server import SERVER_FILE, death_reason
from cm4vllm.serving.verification import CONFIG

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif("CM_REPOS" not in os.environ, reason="CM_REPOS names no CM home: run by `make test`"),
]

OWNER = """
import sys, time
from pathlib import Path
from cm4vllm.serving.arguments import ServerSettings
from cm4vllm.serving.server import start
start(Path(sys.argv[1]), ServerSettings(model=sys.argv[2], name="m", enforce_eager=True,
      max_num_seqs=4, max_model_len=64, extra="--load-format dummy"), Path(sys.argv[3]))
print("READY", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def python():
    done = subprocess.run(
        [Path(sys.executable).with_name("cm"), "run", "script", "--tags=get,vllm,_cpu", "--quiet", "--out=json"],
        check=True, stdout=subprocess.PIPE, text=True,
    )
    return json.loads(done.stdout[done.stdout.index("{"):])["new_env"]["CM_VLLM_PYTHON_BIN_WITH_PATH"]


@pytest.fixture
def model(tmp_path):
    """A model of random weights, with the least that vLLM asks for."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    Tokenizer(WordLevel({f"w{i}": i for i in range(128)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def gone(processes) -> bool:
    """Whether all of them end; who adopted them may be slow to reap them."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        states = []
        for one in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                states.append(one.status())
        if not set(states) - {psutil.STATUS_ZOMBIE}:
            return True
        time.sleep(0.05)
    return False


def stuck(record, folder) -> str:
    """Return what the looks at a server say of it."""
    begin = time.monotonic()
    with sampled([Site(record.endpoint)], folder / "metrics", 0.2, record.supervisors) as watch:
        while not watch.heartbeat.reason and time.monotonic() < begin + 10:
            time.sleep(0.05)
    return watch.heartbeat.reason


@pytest.mark.parametrize("killed", [("owner", "supervisor"), ("engine",)], ids="+".join)
def test_nothing_of_a_killed_server_is_left(python, model, tmp_path, killed):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, python, str(model), str(tmp_path / "server")],
                             stdout=subprocess.PIPE, text=True)
    try:
        for line in owner.stdout:
            if line.strip() == "READY":
                break
        record = read_record(tmp_path / "server" / SERVER_FILE, ServerRecord)
        supervisor = psutil.Process(record.supervisor_pid)
        processes = supervisor.children(recursive=True)
        engine = next(one for one in processes if "EngineCore" in one.cmdline()[0])
        assert any("Worker" in one.cmdline()[0] for one in processes)
        known = {"owner": psutil.Process(owner.pid), "supervisor": supervisor, "engine": engine}
        for signum in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: all die at the same moment
            for who in killed:
                known[who].send_signal(signum)
            if signum == signal.SIGSTOP and "engine" in killed:
                assert f"VLLM::EngineCore ({engine.pid}) is stopped" in stuck(record, tmp_path)
        assert gone(processes)
        if killed == ("engine",):
            deadline = time.monotonic() + 10
            while (reason := death_reason(record)) is None and time.monotonic() < deadline:
                time.sleep(0.05)
            assert f"VLLM::EngineCore ({engine.pid}) ended" in reason
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
