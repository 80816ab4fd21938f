"""A vLLM that was started by hand, shared by the tests that need no more than a server that runs."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

from cm4vllm.common.records import read_record
from cm4vllm.loadgen.client.client import Client
from cm4vllm.loadgen.client.connection import resolve
from cm4vllm.loadgen.client.wire import Sampling, completion_body
from cm4vllm.records.server import Api, ServerRecord
from cm4vllm.serving.answers.id_answers import StreamReader, whole_answer
from cm4vllm.serving.answers.stated import AnswerLimits
from cm4vllm.serving.probing import server_requests
from cm4vllm.serving.probing.server_probe import Site
from cm4vllm.serving.server import SERVER_FILE

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("vllm-2")]

#: Seconds that a first start may take: vLLM's installation included.
FIRST_START_S = 900
#: To fill the memory that a context of 65,536 tokens could use takes as long as the rest of the start.
SMALL = "--kv_cache_space=1"


@pytest.fixture(scope="module")
def by_hand(start_cm):
    """Yield the server's process, its endpoint and its record; Ctrl-C ends it, and all its processes."""
    cm = start_cm()
    server = cm.start("run", "script", "--tags=run,vllm-server", SMALL, "--quiet")
    server.wait_for("it runs until Ctrl-C", FIRST_START_S)
    endpoint = re.search(r"--api_server=(http://\S+)", server.output())[1]
    yield SimpleNamespace(
        process=server.process,
        endpoint=endpoint,
        record=read_record(cm.cwd / "vllm-server" / SERVER_FILE, ServerRecord),
    )
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.finish().code == 0, server.output()
    server.no_orphans()


def test_it_is_measured_and_left_running(cm, by_hand):
    flags = (f"--api_server={by_hand.endpoint}", "--output_dir=results", "--scenario=Offline", "--max_test_duration=3")
    done = cm.main_job(*flags, timeout_s=300)
    assert done.code == 0, done.output
    record = json.loads((cm.cwd / "results/test/server/server.json").read_text())
    assert not record["owned"]
    assert record["endpoint"] == by_hand.endpoint
    assert not (cm.cwd / "results/test/server/server.log").exists()
    assert by_hand.process.poll() is None, "the run ended a server that it had not started"


def test_a_run_alone_measures_it_where_no_division_is_given(cm, by_hand):
    flags = (f"--api_server={by_hand.endpoint}", "--mode=performance", "--target_qps=50", "--test_query_count=50")
    done = cm("run", "script", "--tags=app,mlperf,inference,vllm", *flags, "--quiet", timeout_s=300)
    assert done.code == 0, done.output
    record = json.loads((cm.cwd / "mlperf-run/Offline/performance/run.json").read_text())
    assert record["settings"]["server"]["endpoint"] == by_hand.endpoint


PROMPTS = [[3 + (11 * number + 7 * place) % 120 for place in range(2 + number)] for number in range(12)]


def answers(record, api, interval, stop=()) -> list[list[int]]:
    """The tokens of each prompt, asked for and read as a run does."""
    sampling = Sampling(record.model_name, 40, 2, interval, api, stop=stop)
    limits = AnswerLimits(min_tokens=2, max_tokens=40, max_model_len=record.max_model_len)
    site, got = Site(record.endpoint), []
    for prompt in PROMPTS:
        answer = server_requests.request(site, "POST", api.path, completion_body(sampling, prompt), 60)
        if interval:
            reader = StreamReader()
            reader.feed(answer)
            got.append(reader.finish(len(prompt), limits).tokens.tolist())
        else:
            got.append(whole_answer(answer, len(prompt), limits).tokens.tolist())
    return got


def test_both_ways_of_asking_give_the_same_tokens_in_whole_answers_and_in_streams(by_hand):
    assert by_hand.record.api is Api.GENERATE
    expected = answers(by_hand.record, Api.COMPLETIONS, 0)
    assert len(set(map(tuple, expected))) > 1
    for interval in (0, 1, 3):
        assert answers(by_hand.record, Api.GENERATE, interval) == expected


@pytest.mark.parametrize(("api", "interval"), [(Api.COMPLETIONS, 0), (Api.GENERATE, 3)])
def test_an_answer_ends_at_a_text_that_is_asked_for_and_keeps_its_tokens(by_hand, api, interval):
    files = [Path(word) / "tokenizer.json" for word in by_hand.record.argv]
    reader = Tokenizer.from_file(str(next(file for file in files if file.is_file())))
    whole = answers(by_hand.record, api, interval)
    stop = reader.decode(max(whole, key=len)[5:7])

    def ended(tokens):
        """Return the tokens up to the first of such texts that is not a part of the first two tokens, the least."""
        begin = max(0, len(reader.decode(tokens[:2])) - len(stop) + 1)
        return next((tokens[:n] for n in range(3, len(tokens)) if stop in reader.decode(tokens[:n])[begin:]), tokens)

    expected = list(map(ended, whole))
    assert expected != whole
    assert answers(by_hand.record, api, interval, (stop,)) == expected


class Outcome:
    """The sink of one request."""

    def __init__(self):
        self.begun = asyncio.Event()
        self.cause = ""
        self.tokens = []

    def first_token(self, key, token):
        self.begun.set()

    def completed(self, completions):
        self.tokens = completions[0][1].tolist()

    def failed(self, key, cause, *, first_token_seen):
        self.cause = cause


def abort(record, request):
    server_requests.request(
        Site(record.endpoint), "POST", "/inference/v1/abort_requests", {"request_ids": [request]}, 10
    )


async def of_an_aborted_request(record, api, interval):
    """Ask for many tokens, abort the request at the server, and return what the client makes of the answer."""
    tokens, name = record.max_model_len - 100, f"{api}-{interval}"
    limits = AnswerLimits(min_tokens=tokens, max_tokens=tokens, max_model_len=record.max_model_len)
    outcome = Outcome()
    client = Client([await resolve(record.endpoint)], outcome, limits=limits, stream_interval=interval, api=api)
    body = json.loads(completion_body(Sampling(record.model_name, tokens, tokens, interval, api), PROMPTS[0]))
    client.submit([(1, json.dumps({**body, "request_id": name}).encode(), len(PROMPTS[0]), 0)])
    async with asyncio.timeout(60):
        await (outcome.begun.wait() if interval else asyncio.sleep(0.2))
        while not outcome.cause and not outcome.tokens:
            # vLLM's own name of the request
            await asyncio.to_thread(
                abort, record, f"cmpl-{name}-0" if api is Api.COMPLETIONS else f"generate-tokens-{name}"
            )
            await asyncio.sleep(0.1)
    client.close()
    await asyncio.sleep(0.02)
    return outcome


@pytest.mark.parametrize("api", [Api.COMPLETIONS, Api.GENERATE])
@pytest.mark.parametrize("interval", [0, 1, 16])
def test_an_answer_that_was_aborted_at_the_server_does_not_count(by_hand, api, interval):
    outcome = asyncio.run(of_an_aborted_request(by_hand.record, api, interval))
    assert outcome.tokens == []
    assert outcome.cause == "the answer was cut: its finish_reason is 'abort'"
