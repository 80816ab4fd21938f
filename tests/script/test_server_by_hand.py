"""A vLLM that was started by hand, shared by the tests that need no more than a server that runs."""

import contextlib
import json
import os
import re
import signal
from types import SimpleNamespace

import pytest

from cm4vllm.common.records import read_record
from cm4vllm.loadgen.wire import AnswerLimits, Sampling, StreamReader, completion_body, whole_answer
from cm4vllm.serving.probe import Site
from cm4vllm.serving.records import Api, ServerRecord
from cm4vllm.serving.server import SERVER_FILE

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("vllm-1")]

#: Seconds that a first start may take: vLLM's installation and the model's training included.
FIRST_START_S = 900


@pytest.fixture(scope="module")
def by_hand(start_cm):
    """Give the server's process, its endpoint and its record; Ctrl-C ends it, and all its processes."""
    cm = start_cm()
    server = cm.start("run", "script", "--tags=run,vllm-server", "--quiet")
    server.wait_for("it runs until Ctrl-C", FIRST_START_S)
    endpoint = re.search(r"--api_server=(http://\S+)", server.output())[1]
    yield SimpleNamespace(process=server.process, endpoint=endpoint,
                          record=read_record(cm.cwd / "vllm-server" / SERVER_FILE, ServerRecord))
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.finish().code == 0, server.output()
    server.no_orphans()


def test_it_is_measured_and_left_running(cm, by_hand):
    done = cm.main_job(f"--api_server={by_hand.endpoint}", "--output_dir=results", timeout_s=300)
    assert done.code == 0, done.output
    record = json.loads((cm.cwd / "results/test/server/server.json").read_text())
    assert not record["owned"]
    assert record["endpoint"] == by_hand.endpoint
    assert not (cm.cwd / "results/test/server/server.log").exists()
    assert by_hand.process.poll() is None, "the run ended a server that it had not started"


PROMPTS = [[3 + (11 * number + 7 * place) % 120 for place in range(2 + number)] for number in range(12)]


def answers(record, api, interval) -> list[list[int]]:
    """The tokens of each prompt, asked for and read as a run does."""
    sampling = Sampling(record.model_name, 40, 2, interval, api)
    limits = AnswerLimits(min_tokens=2, max_tokens=40, max_model_len=record.max_model_len)
    site, got = Site(record.endpoint), []
    for prompt in PROMPTS:
        connection = site.connect(60)
        connection.request("POST", api.path, completion_body(sampling, prompt), {"Content-Type": "application/json"})
        with contextlib.closing(connection), connection.getresponse() as response:
            if interval:
                reader = StreamReader()
                reader.feed(response.read())
                got.append(reader.finish(len(prompt), limits).tokens.tolist())
            else:
                got.append(whole_answer(response.read(), len(prompt), limits).tokens.tolist())
    return got


def test_both_ways_of_asking_give_the_same_tokens_in_whole_answers_and_in_streams(by_hand):
    assert by_hand.record.api is Api.GENERATE
    expected = answers(by_hand.record, Api.COMPLETIONS, 0)
    assert len(set(map(tuple, expected))) > 1
    for interval in (0, 1, 3):
        assert answers(by_hand.record, Api.GENERATE, interval) == expected
