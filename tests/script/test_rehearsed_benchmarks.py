"""The main job of a benchmark with two datasets, drawn tokens and a metric that cannot be scored, on a fast server."""

import json
import sys
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from cm4vllm.common.errors import InvalidResult, UsageError
from text_server import save_model, tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
from peer import Handler

MODEL = "harbour"
LENGTH = 65536
ANSWER = [3 + number for number in range(40)]


class Server(Handler):
    """A server with room for the longest answers, which answers with `ANSWER`; it keeps what it was asked."""

    bodies: list[dict] = []
    reader = tokenizer()

    def answer(self, value, *, status=200, content_type="application/json"):
        if isinstance(value, dict) and "data" in value:
            value["data"][0] |= {"id": MODEL, "max_model_len": LENGTH}
        super().answer(value, status=status, content_type=content_type)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/detokenize":
            self.answer({"prompt": self.reader.decode(body["tokens"], skip_special_tokens=False)})
            return
        self.bodies.append(body)
        whole = body.get("ignore_eos") or body["max_tokens"] < len(ANSWER)
        ids = (ANSWER * body["max_tokens"])[: body["max_tokens"]] if whole else ANSWER
        reason = "length" if whole else "stop"
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        if not body.get("stream"):
            self.answer({"choices": [{"text": "x", "token_ids": ids, "finish_reason": reason}], "usage": usage})
            return
        parts = [
            {"choices": [{"text": "x", "token_ids": some, "finish_reason": None}], "usage": None}
            for some in (ids[:1], ids[1:])
            if some
        ]
        parts[-1]["choices"][0]["finish_reason"] = reason
        events = [*map(json.dumps, parts), json.dumps({"choices": [], "usage": usage}), "[DONE]"]
        self.answer("".join(f"data: {event}\n\n" for event in events), content_type="text/event-stream")


@contextmanager
def server():
    handler = type("Fast", (Server,), {"bodies": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}", handler.bodies
        finally:
            listening.shutdown()


def job(cm, tmp_path, endpoint, *flags, tags=""):
    model = save_model(tmp_path / MODEL)
    return cm.main_job(
        f"--api_server={endpoint}",
        f"--vllm_model_name={MODEL}",
        "--dataset=tiny",
        "--max_in_flight=32",
        "--output_dir=results",
        "--test_query_count=24",
        "--max_test_duration=3",
        "--run_checker=no",
        *flags,
        tags=f",_vllm,_path.{model}{tags}",
        timeout_s=400,
    )


def test_each_mode_of_gpt_oss_has_its_dataset_its_lengths_and_drawn_tokens(cm, tmp_path):
    with server() as (endpoint, bodies):
        flags = ("--scenario=Offline", "--offline_target_qps=100", "--compliance=TEST07")
        done = job(cm, tmp_path, endpoint, "--model=gpt-oss-120b", *flags)
    assert done.code == InvalidResult.exit_code, done.output  # this server's answers choose no letter
    runs = {
        path.parent.name: json.loads(path.read_text())["settings"]
        for path in cm.cwd.glob("results/test/runs/*/*/Offline/*/run.json")
    }
    assert runs["accuracy"]["max_tokens"] == 32768 and runs["performance"]["max_tokens"] == 10240
    names = ("accuracy", "performance", "TEST07")
    assert [runs[name]["dataset"]["samples"] for name in names] == [4395, 6396, 990]
    verdict = next(cm.cwd.glob("results/test/runs/*/*/Offline/TEST07/verify_accuracy.txt")).read_text().splitlines()
    assert verdict[0] == "'exact_match': 0.0" and verdict[-1] == "TEST FAIL"
    assert "All samples logged: True" in verdict
    asked = [body for body in bodies if body["max_tokens"] in (10240, 32768)]
    assert {body["max_tokens"] for body in asked} == {10240, 32768}
    assert {(body["temperature"], body["top_k"], "seed" in body) for body in asked} == {(1, -1, False)}
    assert "exact_match: LiveCodeBench's tests are not given" in done.output
    assert done.output.index("not scored: ") < done.output.index("Offline accuracy")
    record = json.loads(next(cm.cwd.glob("results/test/runs/*/*/Offline/accuracy/accuracy.json")).read_text())
    assert list(record["unscored"]) == ["exact_match"]
    assert {"gpqa", "aime"} <= set(record["values"])


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_valid_run_that_cannot_be_scored_is_refused_before_it_begins(cm, tmp_path, command):
    flags = ["--model=deepseek-r1", "--execution_mode=valid", *(["--plan"] if command == "plan" else [])]
    done = job(cm, tmp_path, "http://127.0.0.1:9", *flags)
    done.refused_with(UsageError.exit_code, "cannot be scored as a whole", "LiveCodeBench", "_performance-only")
