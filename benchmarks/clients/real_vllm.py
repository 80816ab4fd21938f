"""The real vLLM: what it generates in process, and what comes through its server and LoadGen."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, cast

from clients.generate import TOKENS
from clients.task import HERE, PROMPTS, TOO_LONG_S, Task, cpu_seconds, perform, prompt, tree
from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.loadgen.settings import IN_FLIGHT_PER_SEQUENCE
from cm4vllm.records.server import Api
from cm4vllm.serving.clusters.placement import in_few_processes, own_cores, placed_servers
from cm4vllm.serving.installation.vllm_choice import gpus_for
from cm4vllm.serving.options.arguments import ServerSettings, server_argv, server_env
from cm4vllm.serving.ports import free_port
from cm4vllm.serving.probing.server_requests import Site

#: Seconds that vLLM may take to load a model, or to answer all prompts.
START_S = 600
#: Prompts are drawn from the first ids, which every model knows.
VOCABULARY = 700


@dataclass(frozen=True)
class Made:
    """Tokens/s, and who used the processors meanwhile, in s: the server's HTTP process, its engine, client and LoadGen.

    The client's time is that of its start, too. Latencies in ms are those of paced queries.
    """

    rate: float
    api: float = 0.0
    engine: float = 0.0
    client: float = 0.0
    ttft_p99: float = 0.0
    tpot_p99: float = 0.0


@dataclass(frozen=True)
class Served:
    """A running server: its base URL and process id."""

    endpoint: str
    pid: int

    def cpu_s(self) -> tuple[float, float]:
        """Return the CPU time of its HTTP process, and that of the processes below."""
        api = cpu_seconds([self.pid])
        return api, cpu_seconds(tree(self.pid)) - api


@dataclass(frozen=True, kw_only=True)
class RealVllm:
    """`python` has vLLM; `model` is a folder. `samples` prompts of 128 tokens are answered with 128 tokens each.

    `load_format` dummy fills the weights with random numbers, `quantization` has vLLM quantise them; one server spreads
    over `gpus` GPUs. `eager` says that nothing is compiled. A server has the endpoint of `api`.
    """

    python: str
    model: Path
    samples: int
    sequences: int = 256
    device: str = "cpu"
    load_format: str = ""
    quantization: str = ""
    gpus: int = 1
    eager: bool = False
    api: Api = Api.GENERATE

    @property
    def task(self) -> Task:
        """The Offline run of all samples, whole answers."""
        return Task(
            port=0,
            queries=self.samples,
            tokens=TOKENS,
            streamed=False,
            in_flight=IN_FLIGHT_PER_SEQUENCE * self.sequences,
            vocabulary=VOCABULARY,
        )

    def settings(self, executor: str = "") -> ServerSettings:
        """The settings of a server as a run starts it on this machine, or with another executor."""
        settings = ServerSettings(
            model=str(self.model),
            name="mock",
            max_num_seqs=self.sequences,
            max_model_len=1024,
            api=self.api,
            distributed_executor_backend=executor,
            device=self.device,
            load_format=self.load_format,
            quantization=self.quantization,
            enforce_eager=self.eager or None,
            tp_size=self.gpus if self.gpus > 1 else None,
        )
        return in_few_processes(settings, 1, len(own_cores()))

    @contextmanager
    def in_process(
        self, settings: ServerSettings | None = None, qps: float | None = None
    ) -> Iterator[Callable[[], Made]]:
        """Load the model without a server; give what has vLLM's own generate answer all samples.

        It is as vLLM sets it up by itself, or with the executor and the environment of a server's `settings`. With
        `qps` the samples come at that rate.
        """
        env, executor = ({}, "") if settings is None else (server_env(settings), settings.distributed_executor_backend)
        options = {
            "max_num_seqs": self.sequences,
            "distributed_executor_backend": executor,
            "load_format": self.load_format,
            "quantization": self.quantization,
            "tensor_parallel_size": self.gpus,
            "enforce_eager": self.eager,
        }
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump([prompt(index % PROMPTS, 128, VOCABULARY) for index in range(self.samples)], file)
            file.flush()
            given = json.dumps({key: value for key, value in options.items() if value})
            process = subprocess.Popen(
                [self.python, str(HERE / "generate.py"), str(self.model), file.name, given],
                env=_environment(**env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                preexec_fn=die_with_parent,
            )
            told, said = cast(IO[str], process.stdin), cast(IO[str], process.stdout)

            def generate() -> Made:
                told.write(f"{qps or ''}\n")
                told.flush()
                lines = []
                for line in said:
                    lines.append(line)
                    if line.startswith(("RATE ", "PACED ")):
                        rate, *latencies = map(float, line.split()[1:])
                        return Made(rate, **dict(zip(("ttft_p99", "tpot_p99"), latencies, strict=False)))
                raise RuntimeError(f"vLLM's own generate failed:\n{''.join(lines[-10:])}")

            try:
                yield generate
            finally:
                process.communicate(timeout=TOO_LONG_S)

    @contextmanager
    def replicas(self, count: int) -> Iterator[list[Served]]:
        """Serve the model `count` times, each on GPUs or cores of its own."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(self.served(placed_settings))
                for placed_settings in placed_servers(
                    self.settings(), count, gpus_for(self.settings().device), os.environ
                )
            ]

    @contextmanager
    def served(self, settings: ServerSettings, unix: Path | None = None) -> Iterator[Served]:
        """Serve the model on a free port, or on the Unix socket `unix`."""
        port = free_port("127.0.0.1", 0)
        endpoint = f"unix://{unix}" if unix else f"http://127.0.0.1:{port}"
        with tempfile.TemporaryFile("w+") as log:
            server = subprocess.Popen(
                [*server_argv(Path(self.python), settings, port), *(["--uds", str(unix)] if unix else [])],
                env=_environment(**server_env(settings)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )
            try:
                await_health(server, endpoint)
                yield Served(endpoint, server.pid)
            except RuntimeError as error:
                log.seek(0)
                raise RuntimeError(f"{error}:\n{''.join(log.readlines()[-10:])}") from None
            finally:
                server.terminate()
                server.wait(timeout=TOO_LONG_S)

    def through_loadgen(self, server: Served, task: Task, others: Sequence[Served] = ()) -> Made:
        """Make a run against `server`, and `others` like it."""
        more = [int(other.endpoint.rpartition(":")[2]) for other in others]
        task = replace(task, endpoint=server.endpoint, more_ports=more)
        (api, engine), times = server.cpu_s(), os.times()
        result = perform("ours", "loadgen", task, sorted(os.sched_getaffinity(0)))
        (api_then, engine_then), then = server.cpu_s(), os.times()
        client = sum(then[2:4]) - sum(times[2:4])
        rate = result.tokens / result.wall_s
        return Made(rate, api_then - api, engine_then - engine, client, result.ttft_p99, result.tpot_p99)


def _environment(**more: str) -> dict[str, str]:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", **more}
    env.pop("PYTHONPATH", None)
    return env


def await_health(server: subprocess.Popen[bytes], endpoint: str) -> None:
    """Wait until the server at a base URL, or at a Unix socket (unix://PATH), is healthy. Raises RuntimeError."""
    deadline, site = time.monotonic() + START_S, Site(endpoint)
    with site.client() as client:
        while server.poll() is None and time.monotonic() < deadline:
            with suppress(OSError, ValueError):
                if client.answer("GET", site.url("/health"), headers={}, total_s=5).status == 200:
                    return
            time.sleep(0.5)
    raise RuntimeError("the vLLM server did not come up")
