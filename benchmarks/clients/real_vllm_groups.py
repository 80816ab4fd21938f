"""The groups of the client's benchmark that ask the real vLLM: beside its own generate, and in several ways."""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from clients.bench import Bench
from clients.real_vllm import Made, RealVllm
from cm4vllm.loadgen.settings import SERVER_STREAM_INTERVAL
from figures import Figure, figure, interleaved, left_out, ratios

#: Queries/s of the Server run of `executors`, far below what a small model's server can do, so that TTFT is not that of
#: a queue; and their number.
_SERVER_QPS, _SERVER_QUERIES = 30.0, 300
#: The figures of `executors` and their units.
_OF_EXECUTORS = {
    "start": "s",
    "Offline": "tokens/s",
    "Server": "tokens/s",
    "Server TTFT p99": "ms",
    "Server TPOT p99": "ms",
}
IN_PROCESS, LIKE_THE_SERVER = "in process", "in process, as the server"


def vllm(bench: Bench) -> Iterator[Figure]:
    """The real vLLM, on all cores: what its server, LoadGen and our client leave of its own rate.

    "Through LoadGen" is as a run makes it: a server started as a run starts it, asked for tokens alone. Its limit is
    beside vLLM's own generate as vLLM sets it up, and with the server's executor and environment.
    """
    real = _real(bench)
    if real is None:
        return
    ours, default = real.settings(), real.settings("mp")
    tokens_only = replace(real.task, api="generate")
    with (
        real.in_process() as generate,
        real.in_process(ours) as alike,
        real.served(ours) as server,
        real.served(default) as other,
    ):
        cases: dict[str, Callable[[], Made]] = {
            IN_PROCESS: generate,
            LIKE_THE_SERVER: alike,
            "through LoadGen": partial(real.through_loadgen, server, tokens_only),
            "through LoadGen, with text": partial(real.through_loadgen, server, real.task),
            "through LoadGen, vLLM's default executor": partial(real.through_loadgen, other, tokens_only),
        }
        for case in cases.values():
            case()  # warms up
        measured = interleaved(cases, bench.rounds)
    for name, all_made in measured.items():
        rates = [made.rate for made in all_made]
        yield figure(f"real vLLM, Offline: {name}", rates, "tokens/s")
        if name in (IN_PROCESS, LIKE_THE_SERVER):
            continue
        for within in (IN_PROCESS, LIKE_THE_SERVER):
            yield figure(
                f"real vLLM, Offline: {name} / {within}",
                ratios(rates, [made.rate for made in measured[within]]),
                "x",
                at_least=0.95 if name == "through LoadGen" else None,
            )
        for who in ("engine", "api", "client"):
            yield figure(f"processor time, {name}: {who}", [getattr(made, who) for made in all_made], "s")


def ways(bench: Bench) -> Iterator[Figure]:
    """The real vLLM, Offline, asked in several ways: rate beside the first one's, time of the server's HTTP process."""
    real = _real(bench)
    if real is None:
        return
    settings = real.settings()
    with (
        tempfile.TemporaryDirectory() as folder,
        real.served(settings) as tcp,
        real.served(settings, Path(folder) / "socket") as unix,
    ):
        streamed = replace(real.task, streamed=True)
        asked = {
            "TCP, whole answers": (tcp, real.task),
            "Unix socket": (unix, real.task),
            "/inference/v1/generate": (tcp, replace(real.task, api="generate")),
            "both": (unix, replace(real.task, api="generate")),
            "stream_interval 16": (tcp, replace(streamed, interval=16)),
            "stream_interval 1": (tcp, streamed),
        }
        cases = {name: partial(real.through_loadgen, server, task) for name, (server, task) in asked.items()}
        for server in (tcp, unix):
            real.through_loadgen(server, real.task)  # warms up
        measured = interleaved(cases, bench.rounds)
    first = [made.rate for made in next(iter(measured.values()))]
    for name, all_made in measured.items():
        yield figure(f"real vLLM, Offline, {name}", [made.rate for made in all_made], "tokens/s")
        yield figure(f"real vLLM, Offline, {name} / the first", ratios([made.rate for made in all_made], first), "x")
        yield figure(f"real vLLM, Offline, {name}: HTTP process", [made.api for made in all_made], "s")


def executors(bench: Bench) -> Iterator[Figure]:
    """The real vLLM with the processes of its default executor (mp) and with one less (uni); each round starts both."""
    real = _real(bench)
    if real is None:
        return
    cases = {name: partial(_by_executor, replace(real, eager=True), name) for name in ("mp", "uni")}
    measured = interleaved(cases, bench.rounds)
    for name, unit in _OF_EXECUTORS.items():
        values = {executor: [made[name] for made in all_made] for executor, all_made in measured.items()}
        for executor, made in values.items():
            yield figure(f"real vLLM, {executor}: {name}", made, unit)
        yield figure(f"real vLLM, uni / mp: {name}", ratios(values["uni"], values["mp"]), "x")


def _by_executor(real: RealVllm, executor: str) -> dict[str, float]:
    """Start a server with this executor, make an Offline and a Server run, and return their figures by name."""
    begin = time.monotonic()
    with real.served(real.settings(executor)) as server:
        start_s = time.monotonic() - begin
        task = replace(real.task, api="generate")
        offline = real.through_loadgen(server, task)
        paced = replace(task, streamed=True, interval=SERVER_STREAM_INTERVAL, qps=_SERVER_QPS, queries=_SERVER_QUERIES)
        made = real.through_loadgen(server, paced)
    values = (start_s, offline.rate, made.rate, made.ttft_p99, made.tpot_p99)
    return dict(zip(_OF_EXECUTORS, values, strict=True))


def _real(bench: Bench) -> RealVllm | None:
    if not (bench.vllm and bench.model):
        left_out("the real vLLM", "not installed (--vllm=PYTHON --model=DIR)")
        return None
    return RealVllm(python=bench.vllm, model=bench.model, samples=bench.queries(2_048))
