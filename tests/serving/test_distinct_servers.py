"""Several addresses: one server given twice, servers of other models, and an address with several servers behind it."""

import itertools
import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cm4vllm.common.errors import ServerUnsuitable, UsageError
from cm4vllm.rules import Division
from cm4vllm.serving.probing.server_probe import probe
from cm4vllm.serving.probing.server_requests import base_urls
from cm4vllm.serving.probing.text_servers import require_division

METRICS = """\
vllm:num_requests_running 0.0
vllm:num_requests_waiting 0.0
vllm:kv_cache_usage_perc 0.0
vllm:generation_tokens_total {tokens}
process_start_time_seconds {start}
vllm:cache_config_info{{cache_dtype="{cache}",engine="{engine}",enable_prefix_caching="False",num_gpu_blocks="{blocks}",\
kv_cache_size_tokens="{blocks}"}} 1.0
"""
blocks = itertools.count(100)


class Served:
    """One process of vLLM: what it reports of itself, and the tokens that it has made."""

    def __init__(self, *, name="large", start=1764340000.5, cache="auto", engine=0, version="0.32.0", **entry):
        self.entry = {"id": name, "max_model_len": 2048, "owned_by": "vllm", **entry}
        self.start, self.cache, self.engine, self.version, self.tokens = start, cache, engine, version, 0
        self.others = ()
        self.blocks = next(blocks)

    def page(self, path):
        if path == "/metrics":
            return METRICS.format(**vars(self))
        pages = {"/version": {"version": self.version}, "/v1/models": {"data": [self.entry, *self.others]}}
        return json.dumps(pages[path]) if path in pages else None

    def completion(self, body):
        number = body["max_tokens"]
        if body["model"] not in {entry["id"] for entry in (self.entry, *self.others)}:
            return None
        self.tokens += number
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": number, "total_tokens": 9}
        choice = {"index": 0, "text": "x", "token_ids": list(range(number)), "finish_reason": "length"}
        answer = {"model": body["model"], "choices": [choice]}
        if not body.get("stream"):
            return json.dumps(answer | {"usage": usage})
        last = {"model": body["model"], "choices": [], "usage": usage}
        return "".join(f"data: {json.dumps(part)}\n\n" for part in (answer, last)) + "data: [DONE]\n\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behind: list
    turn: "itertools.count[int]"

    def log_message(self, *_):
        pass

    def reply(self, text):
        data = (text or "{}").encode()
        self.send_response(200 if text else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def served(self):
        return self.behind[next(self.turn) % len(self.behind)]

    def do_GET(self):
        self.reply(self.served().page(self.path))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply(self.served().completion(body) if self.path == "/v1/completions" else None)


@contextmanager
def address(*behind, host="127.0.0.1"):
    """Yield the port of an address at which the processes answer in turn."""
    handler = type("Behind", (Handler,), {"behind": list(behind), "turn": itertools.count()})
    with ThreadingHTTPServer((host, 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def refused(kind, words, given, **more):
    with pytest.raises(kind) as caught:
        probe(given, **more)
    assert words in f"{caught.value.what}\n{caught.value.cause}", caught.value
    return caught.value


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ({"root": "org/a-70b"}, {"root": "org/b-70b-int4"}, "model.root: org/a-70b at"),
        ({"root": "m", "digest": "sha256:aa"}, {"root": "m", "digest": "sha256:bb"}, "model.digest: sha256:aa at"),
        ({"cache": "auto"}, {"cache": "fp8"}, "cache.cache_dtype: auto at"),
        ({"version": "0.32.0"}, {"version": "0.31.0"}, "version: 0.32.0 at"),
        ({"max_model_len": 2048}, {"max_model_len": 4096}, "max_model_len: 2048 at"),
        ({"root": "m"}, {}, "model.root: m at"),
        ({"meta": {"size": 1}}, {"meta": {"size": 2}}, "model.meta.size: 1 at"),
    ],
)
def test_servers_of_one_name_that_report_other_facts_are_refused_with_the_facts(ours, theirs, words):
    with address(Served(**ours)) as first, address(Served(**theirs, start=1764340002.5)) as second:
        error = refused(ServerUnsuitable, words, f"127.0.0.1:{first},127.0.0.1:{second}")
    assert error.what == "the servers differ"


@pytest.mark.parametrize("other", [{"engine": 1, "start": 1764340002.5}, {}])
def test_servers_that_differ_in_memory_and_number_or_in_nothing_are_two_of_one_system(other):
    with address(Served()) as first, address(Served(**other)) as second:
        assert len(probe(f"127.0.0.1:{first},127.0.0.1:{second}").endpoints) == 2


@pytest.mark.parametrize(
    "given",
    (
        "localhost:8000,127.0.0.1:8000 http://localhost:8000,http://LOCALHOST:8000/v1 "
        "127.0.0.1:8000,[::ffff:127.0.0.1]:8000 0.0.0.0:8000,127.0.0.1:8000 "
        "http://localhost,http://127.0.0.1:80 http://localhost:1,localhost:1"
    ).split(),
)
def test_two_spellings_of_one_address_are_refused_before_anything_is_asked(given):
    with pytest.raises(UsageError, match="given twice"):
        base_urls(given)


def test_ports_paths_and_loopback_addresses_of_their_own_are_servers_of_their_own(tmp_path):
    for given in ("localhost:1,localhost:2", "http://h:1/a,http://h:1/b", "127.0.0.1:1,127.0.0.2:1", "a:1,b:1"):
        assert len(base_urls(given)) == 2
    (tmp_path / "link.sock").symlink_to(tmp_path / "vllm.sock")
    with pytest.raises(UsageError, match="given twice"):
        base_urls(f"unix://{tmp_path}/vllm.sock,unix://{tmp_path}/link.sock")


def test_two_addresses_of_a_server_that_listens_everywhere_are_one_server():
    with address(Served(start=None), host="0.0.0.0") as port:
        refused(UsageError, "are one server", f"127.0.0.1:{port},127.0.0.2:{port}")
        named = socket.gethostbyname(socket.gethostname())
        if named != "127.0.0.1":
            refused(UsageError, "are one server", f"{socket.gethostname()}:{port},localhost:{port}")


def test_two_ports_that_lead_to_one_process_are_one_server():
    process = Served()
    with address(process) as first, address(process) as second:
        error = refused(UsageError, "are one server", f"127.0.0.1:{first},127.0.0.1:{second}")
    assert "same start of their process" in error.cause


#: The counts of tokens of vLLM and llama.cpp, by their names on a page.
COUNTS = ['vllm:generation_tokens_total{{engine="0"}} {tokens}', "llamacpp:tokens_predicted_total {tokens}"]


class Countless(Served):
    """A process that does not report its start, with a page of metrics of its own."""

    def __init__(self, page, **more):
        super().__init__(start=None, owned_by="sglang", **more)
        self.metrics = page

    def page(self, path):
        return self.metrics.format(tokens=self.tokens) if path == "/metrics" else super().page(path)


@pytest.mark.parametrize("page", COUNTS)
def test_two_ports_of_a_process_that_reports_no_start_are_one_server_where_it_counts_tokens(page):
    process = Countless(page)
    with address(process) as first, address(process) as second:
        error = refused(UsageError, "are one server", f"127.0.0.1:{first},127.0.0.1:{second}")
    assert "are counted at" in error.cause and "start" not in error.cause
    with address(Countless(page)) as first, address(Countless(page)) as second:
        record = probe(f"127.0.0.1:{first},127.0.0.1:{second}")
    assert not any("are two servers" in note for note in record.unchecked)


@pytest.mark.parametrize("page", ["", "python_info 1.0\n", "sglang:generation_tokens_total 5.0\n"])
def test_what_cannot_be_known_of_two_ports_is_said(page):
    process = Countless(page)
    with address(process) as first, address(process) as second:
        record = probe(f"127.0.0.1:{first},127.0.0.1:{second}")
    endpoints = [f"http://127.0.0.1:{port}" for port in (first, second)]
    (note,) = [note for note in record.unchecked if "are two servers" in note]
    assert note.startswith(f"whether {endpoints[0]} and {endpoints[1]} are two servers: neither ")


@pytest.mark.parametrize(
    ("behind", "words"),
    [
        ((Served(name="a"), Served(name="b")), "model.a.served: "),
        ((Served(root="org/a"), Served(root="org/b-int4")), "model.large.root: org/"),
        ((Served(), Served(version="0.31.0")), "version.version: 0.3"),
    ],
)
@pytest.mark.parametrize("name", ["", "a"])
def test_an_address_before_servers_of_two_models_is_named_as_that(behind, words, name):
    with address(*behind) as port:
        error = refused(ServerUnsuitable, words, f"127.0.0.1:{port}", model_name=name, text=True)
    assert "several servers answer in turn" in error.what


def test_an_address_before_two_servers_alike_is_measured():
    with address(Served(), Served(start=1764340002.5)) as port:
        assert probe(f"127.0.0.1:{port}").model_name == "large"


def test_an_adapter_is_named_as_one_with_what_is_not_known_of_it():
    process = Served(name="base", root="org/base")
    legal = {"id": "legal", "max_model_len": 2048, "parent": "base"}
    process.others = [{**legal, "root": "/adapters/legal"}, {**legal, "id": "bare"}]
    with address(process) as port:
        base, adapter, bare = (probe(f"127.0.0.1:{port}", name) for name in ("base", "legal", "bare"))
    assert (base.adapter_of, adapter.adapter_of, bare.adapter_of) == ("", "base", "base")
    assert not any("adapter" in note for note in base.unchecked)
    assert any("its root is not reported" in note for note in bare.unchecked)
    (note,) = [note for note in adapter.unchecked if "adapter" in note]
    assert "/adapters/legal" in note
    assert "digest" in note
    require_division(adapter, Division.OPEN)
    require_division(base, Division.CLOSED)
    with pytest.raises(ServerUnsuitable, match="the closed division is not possible") as caught:
        require_division(adapter, Division.CLOSED)
    assert "legal is an adapter, which changes the weights of base" in caught.value.cause
