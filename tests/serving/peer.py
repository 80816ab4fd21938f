"""A small server that speaks vLLM's completions protocol, well or with one fault: `python peer.py PORT [FAULT]`."""

import json
import os
import socket
import ssl
import sys
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = os.environ.get("PEER_MODEL", "some-model")
#: The words of the model, by their ids.
VOCABULARY = ["none", "buoy", "crane", "dock", "ebb", "ferry", "gale", "hull"]
#: A server with the fault `late` serves its first completion after this many seconds.
LATE_S = 1.0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fault = ""
    started = 0.0

    def log_message(self, *_):
        pass

    def wants_a_key(self):
        """As vLLM does: below /v1 with the key of VLLM_API_KEY alone, where that is set."""
        key = os.environ.get("VLLM_API_KEY") if self.fault == "own-key" else ""
        if key and self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {key}":
            self.answer({"error": "Unauthorized"}, status=401)
            return True
        return False

    def answer(self, value, *, status=200, content_type="application/json"):
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        # A client may have gone. The traceback of a thread is made with ast.parse(), which in Python 3.11 fails, or
        # makes another thread's fail, where both run at once.
        with suppress(ConnectionError):
            self.wfile.write(data)

    def do_GET(self):
        if self.wants_a_key():
            return
        if self.fault == "silent":
            time.sleep(60)
        if self.fault == "web-page":
            self.answer("<html>hello</html>", content_type="text/html")
        elif self.fault == "key":
            self.answer({"error": "Unauthorized"}, status=401)
        elif self.path == "/health":
            self.answer("")
        elif self.path == "/version" and self.fault != "not-vllm":
            self.answer({"version": "0.32.0"})
        elif self.path == "/v1/models":
            length = {"no-length": None, "longer": 4096}.get(self.fault, 2048)
            models = [{"id": MODEL, "max_model_len": length}]
            if root := os.environ.get("PEER_ROOT"):
                models[0]["root"] = root
            if self.fault == "two-models":
                models.append({"id": "another-model", "max_model_len": 1024})
            if self.fault == "adapter":
                models.append({"id": "adapter", "max_model_len": 2048, "parent": MODEL})
            self.answer({"data": models})
        elif self.path == "/server_info?config_format=json" and self.fault == "reports-options":
            self.answer(
                {
                    "vllm_config": {
                        "scheduler_config": {"max_num_seqs": 64, "policy": "fcfs", "max_num_queued_reqs": None},
                        "parallel_config": {"tensor_parallel_size": 2, "world_size": 2},
                        "instance_id": "a1",
                    },
                    "vllm_env": {"VLLM_SEED": 1},
                }
            )
        elif self.path == "/metrics" and self.fault != "no-metrics":
            caching = self.fault == "prefix-caching"
            self.answer(
                f'# HELP vllm:cache_config_info\nvllm:cache_config_info{{block_size="16",'
                f'enable_prefix_caching="{caching}",gpu_memory_utilization="0.9"}} 1.0\n',
                content_type="text/plain",
            )
        else:
            self.answer({"detail": "Not Found"}, status=404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.wants_a_key():
            return
        if self.fault == "late" and time.monotonic() - self.started < LATE_S:
            self.answer({"error": {"message": "loading"}}, status=503)
            return
        if self.fault == "engine-dead":
            self.answer({"error": {"message": "EngineCore encountered an issue"}}, status=500)
            return
        if self.path == "/inference/v1/generate":
            if self.fault != "scale-out":
                self.answer({"error": {"message": "not enabled"}}, status=403)
                return
            body |= {"prompt": body["token_ids"], **body["sampling_params"]}
        if body["model"] != MODEL:
            self.answer({"error": {"message": "no such model"}}, status=404)
            return
        if self.path == "/detokenize":
            words = VOCABULARY if self.fault != "other-vocabulary" else VOCABULARY[::-1]
            self.answer({"prompt": " ".join(words[token] for token in body["tokens"])})
            return
        ids = None if self.fault == "no-ids" else list(range(body["max_tokens"]))
        said = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        if self.fault == "token-short":
            ids.pop()
        if self.fault == "prompt-changed":
            said["prompt_tokens"] += 1
        if not body.get("stream"):
            self.answer({"choices": [{"text": "x", "token_ids": ids, "finish_reason": "length"}], "usage": said})
            return
        parts = [{"choices": [{"text": "x", "token_ids": [token]}], "usage": None} for token in ids or [None]]
        if ids is None:
            parts[0]["choices"][0]["token_ids"] = None
        parts[-1]["choices"][0]["finish_reason"] = "length"
        events = [json.dumps(part) for part in [*parts, {"choices": [], "usage": said}]]
        if self.fault != "cut-stream":
            events.append("[DONE]")
        self.answer("".join(f"data: {event}\n\n" for event in events), content_type="text/event-stream")


class UnixServer(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self):
        self.socket.bind(self.server_address)

    def get_request(self):
        return self.socket.accept()[0], ("", 0)


@contextmanager
def running(fault="", *, unix=None, tls=None):
    """Run a peer in a thread, on a Unix socket or with a certificate where they are given; give its base URL."""
    handler = type("Peer", (Handler,), {"fault": fault, "started": time.monotonic()})
    with UnixServer(str(unix), handler) if unix else ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            server.handle_error = lambda *_: None  # a client that does not trust it goes away
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"unix://{unix}" if unix else f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    Handler.fault = sys.argv[2] if len(sys.argv) > 2 else ""
    Handler.started = time.monotonic()
    # As vLLM on one of several nodes, which listens at that node's address.
    host = os.environ.get("VLLM_HOST_IP", "127.0.0.1")
    ThreadingHTTPServer((host, int(sys.argv[1])), Handler).serve_forever()
