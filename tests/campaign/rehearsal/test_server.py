"""The simulated server is measured as vLLM is, and has by the wall clock the times that it has on a simulated one."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cm4vllm.campaign.rehearsal import launch
from cm4vllm.campaign.rehearsal.batching import Batch, step_factors
from cm4vllm.campaign.rehearsal.profile import FAULT_FILE, Profile
from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.serving.ports import free_port, listens
from cm4vllm.serving.probing.server_metrics import look
from cm4vllm.serving.probing.server_probe import probe
from cm4vllm.serving.probing.server_requests import Site
from simulated.systems import simulate

PROFILE = """
title: a test's
source: assumed
derivation: [none]
benchmark: llama3.1-8b
vllm: 0.32.0
system: {}
server: {step_s: 0.01, each_s: 0.0005, token_s: 0.0, noise: 0.0, max_num_seqs: 8, max_num_batched_tokens: 512,
  max_model_len: 512, kv_tokens: 180}
prompts: {shares: [0, 1], tokens: [20, 20]}
answers: {shares: [0, 1], tokens: [30, 30]}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield the address of a server, and the file whose words are its faults."""
    folder = tmp_path_factory.mktemp("simulated")
    profile, faults = folder / "test.yaml", folder / "faults"
    profile.write_text(PROFILE)
    endpoint = f"http://127.0.0.1:{(port := free_port('127.0.0.1', 0))}"
    start = Path(launch.__file__).with_name("start.py")
    process = subprocess.Popen(
        [sys.executable, start, f"--profile={profile}", "--served-model-name=small", f"--port={port}"],
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
        env={**os.environ, FAULT_FILE: str(faults)},
    )
    while not listens(endpoint):
        assert process.poll() is None
        time.sleep(0.02)
    yield endpoint, faults
    process.kill()
    process.wait()


def seconds_of(endpoint: str, number: int) -> float:
    """Return how long a completion takes."""
    body = {"model": "small", "prompt": [number, 3, 4], "max_tokens": 64, "min_tokens": 2, "return_token_ids": True}
    request = urllib.request.Request(f"{endpoint}/v1/completions", json.dumps(body).encode())
    begin = time.monotonic()
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["usage"] == {"prompt_tokens": 3, "completion_tokens": 30}
    return time.monotonic() - begin


def test_it_is_taken_for_a_server_that_can_be_measured(server):
    record = probe(server[0])
    assert (record.model_name, record.version, record.software) == ("small", "0.32.0+simulated", "vLLM")
    assert record.dialect is None and record.unchecked == []
    assert record.simulated is not None and record.simulated.title == "a test's"


@pytest.mark.timing
def test_its_times_by_the_wall_clock_are_those_on_a_simulated_one_with_preemptions(server):
    endpoint, count = server[0], 12
    batch = Batch(msgspec.yaml.decode(PROFILE, type=Profile).server, step_factors(np.random.default_rng(0), 0.0))
    sizes = np.full(count, 20), np.full(count, 30)
    expected = simulate(batch, np.zeros(count), *sizes).done
    assert batch.preemptions > 0
    before = look(Site(endpoint))
    with ThreadPoolExecutor(count) as threads:
        took = sorted(threads.map(lambda number: seconds_of(endpoint, number), range(count)))
    after = look(Site(endpoint))
    assert took[-1] == pytest.approx(max(expected), rel=0.3, abs=0.2)
    assert after.preemptions > before.preemptions
    assert after.generation_tokens - before.generation_tokens == 30 * count
    assert (after.running, after.waiting, after.kv_cache_usage) == (0, 0, 0)


def test_it_gives_up_what_clients_no_longer_wait_for(server):
    """A probe of a search that is ended leaves requests without answers: the next one begins with an idle server."""
    site = Site(server[0])
    host, port = server[0].removeprefix("http://").split(":")
    body = json.dumps({"model": "small", "prompt": [1, 2], "max_tokens": 400, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    clients = [socket.create_connection((host, int(port))) for _ in range(10)]
    for client in clients:
        client.sendall(head + body)
    deadline = time.monotonic() + 20
    while (now := look(site)).running + now.waiting < len(clients):
        assert time.monotonic() < deadline
    for client in clients:
        client.close()
    while (now := look(site)).running + now.waiting:
        assert time.monotonic() < deadline
    assert now.kv_cache_usage == 0


def test_it_answers_rubbish_when_it_is_asked_to(server):
    endpoint, faults = server
    faults.write_text("rubbish")
    with pytest.raises(ServerUnsuitable):
        probe(endpoint)
    faults.unlink()
    assert probe(endpoint).model_name == "small"
