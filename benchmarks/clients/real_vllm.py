"""The real vLLM: what it generates in process, what comes through its server and LoadGen, and what else asks it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clients.generate import TOKENS
from clients.task import HERE, PROMPTS, TOO_LONG_S, Result, Task, cpu_seconds, perform, prompt, tree

__all__ = ["RealVllm", "Shares", "bench_serve"]

#: Seconds that vLLM may take to load a model.
START_S = 300
#: Prompts are drawn from the first ids, which every model knows.
VOCABULARY = 700


@dataclass(frozen=True)
class Shares:
    """Processor time of a run by process, in s: the server's HTTP side, its engine, and the client with LoadGen."""

    api: float
    engine: float
    client: float


@dataclass(frozen=True, kw_only=True)
class RealVllm:
    """`python` has vLLM; `model` is a folder. `samples` prompts of 128 tokens are answered with 128 tokens each."""

    python: str
    model: Path
    samples: int
    sequences: int = 256

    def generate(self, rounds: int) -> list[float]:
        """Return the tokens/s of vLLM's own generate, one a round, without a server."""
        with tempfile.TemporaryDirectory() as folder:
            prompts = [prompt(index % PROMPTS, 128, VOCABULARY) for index in range(self.samples)]
            (Path(folder) / "prompts.json").write_text(json.dumps(prompts))
            _run([self.python, str(HERE / "generate.py"), str(self.model), folder, str(self.sequences), str(rounds)])
            return [float(rate) for rate in json.loads((Path(folder) / "rates.json").read_text())]

    @contextmanager
    def served(self) -> Iterator[tuple[int, int]]:
        """Serve the model; give the port and the server's process id."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        argv = [self.python, "-m", "vllm.entrypoints.cli.main", "serve", str(self.model), "--port", str(port),
                "--served-model-name", "mock", "--max-num-seqs", str(self.sequences), "--max-model-len", "1024",
                "--no-enable-prefix-caching", "--disable-uvicorn-access-log", "--disable-log-stats"]
        with tempfile.TemporaryFile("w+") as log:
            server = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                      start_new_session=True)
            try:
                _await(server, port)
                yield port, server.pid
            finally:
                server.terminate()
                server.wait(timeout=TOO_LONG_S)

    def through_loadgen(self, port: int, server: int, rounds: int) -> Iterator[tuple[Result, Shares]]:
        """Make Offline runs against the server; give each one's result, and who used the processors meanwhile."""
        task = Task(port=port, queries=self.samples, tokens=TOKENS, streamed=False, in_flight=2 * self.sequences,
                    vocabulary=VOCABULARY)
        cores = sorted(os.sched_getaffinity(0))
        for turn in range(rounds + 1):
            before = cpu_seconds([server]), cpu_seconds(tree(server)), os.times()
            result = perform("ours", "loadgen", task, cores)
            after = cpu_seconds([server]), cpu_seconds(tree(server)), os.times()
            api, whole = after[0] - before[0], after[1] - before[1]
            client = sum(after[2][2:4]) - sum(before[2][2:4])
            if turn:  # the first one warms up
                yield result, Shares(api, whole - api, client)


def bench_serve(python: str, model: Path, task: Task, cores: Sequence[int]) -> Result:
    """Have `vllm bench serve` send the queries of `task`; it always streams."""
    with tempfile.TemporaryDirectory() as folder:
        _run([python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai",
              "--port", str(task.port), "--endpoint", "/v1/completions", "--model", "mock",
              "--tokenizer", str(model), "--dataset-name", "random",
              "--random-input-len", str(task.prompt_tokens), "--random-output-len", str(task.tokens),
              "--num-prompts", str(task.queries), "--max-concurrency", str(task.in_flight), "--ignore-eos",
              "--disable-tqdm", "--save-result", "--result-dir", folder, "--result-filename", "result.json"], cores)
        said = json.loads((Path(folder) / "result.json").read_text())
    return Result(queries=said["completed"], tokens=said["total_output_tokens"], wall_s=said["duration"])


def _run(argv: list[str], cores: Sequence[int] | None = None) -> None:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    env.pop("PYTHONPATH", None)
    argv = ["taskset", "-c", ",".join(map(str, cores)), *argv] if cores else argv
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_S)
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        telling = [line for line in lines if "Error: " in line][:5]  # vLLM's first errors are the cause of its last
        raise RuntimeError("\n".join([f"{' '.join(argv[:5])} … failed:", *telling, "…", *lines[-5:]]))


def _await(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError("the vLLM server did not come up")
