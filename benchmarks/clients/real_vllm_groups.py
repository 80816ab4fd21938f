"""The groups of the client's benchmark that ask the real vLLM: beside its own generate, and in several ways."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

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


@dataclass(frozen=True)
class Bench:
    """The settings of a measurement: the cores of each side, the rounds, and the `share` of the work that is done."""

    client: int
    server: int
    rounds: int
    share: float = 1.0
    endpoints: str | None = None
    vllm: str | None = None
    model: Path | None = None

    def queries(self, whole: int) -> int:
        return max(64, int(whole * self.share))


def vllm(bench: Bench) -> Iterator[Figure]:
    """The real vLLM, on all cores: what its server, LoadGen and our client leave of its own rate.

    "Through LoadGen" is as a run makes it: a server started as a run starts it, asked for tokens alone. Its limit is
    beside vLLM's own generate as vLLM sets it up, and with the server's executor and environment.
    """
    for real in _real(bench):
        ours, tokens_only = real.settings(), replace(real.task, api="generate")
        with ExitStack() as stack:
            generate, alike = (stack.enter_context(real.in_process(settings)) for settings in (None, ours))
            server, other = (stack.enter_context(real.served(settings)) for settings in (ours, real.settings("mp")))
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
        rates = {name: _rates(all_made) for name, all_made in measured.items()}
        for name, all_made in measured.items():
            yield figure(f"real vLLM, Offline: {name}", rates[name], "tokens/s")
            if name in (IN_PROCESS, LIKE_THE_SERVER):
                continue
            wanted = 0.95 if name == "through LoadGen" else None
            for within in (IN_PROCESS, LIKE_THE_SERVER):
                share = ratios(rates[name], rates[within])
                yield figure(f"real vLLM, Offline: {name} / {within}", share, "x", at_least=wanted)
            for who in ("engine", "api", "client"):
                yield figure(f"processor time, {name}: {who}", [getattr(made, who) for made in all_made], "s")


def ways(bench: Bench) -> Iterator[Figure]:
    """The real vLLM, Offline, asked in several ways: rate beside the first one's, time of the server's HTTP process."""
    for real in _real(bench):
        with (
            tempfile.TemporaryDirectory() as folder,
            real.served(real.settings()) as tcp,
            real.served(real.settings(), Path(folder) / "socket") as unix,
        ):
            tokens_only, streamed = replace(real.task, api="generate"), replace(real.task, streamed=True)
            cases = {
                "TCP, whole answers": partial(real.through_loadgen, tcp, real.task),
                "Unix socket": partial(real.through_loadgen, unix, real.task),
                "/inference/v1/generate": partial(real.through_loadgen, tcp, tokens_only),
                "both": partial(real.through_loadgen, unix, tokens_only),
                "stream_interval 16": partial(real.through_loadgen, tcp, replace(streamed, interval=16)),
                "stream_interval 1": partial(real.through_loadgen, tcp, streamed),
            }
            for server in (tcp, unix):
                real.through_loadgen(server, real.task)  # warms up
            measured = interleaved(cases, bench.rounds)
        first = _rates(next(iter(measured.values())))
        for name, all_made in measured.items():
            yield from (
                figure(f"real vLLM, Offline, {name}", _rates(all_made), "tokens/s"),
                figure(f"real vLLM, Offline, {name} / the first", ratios(_rates(all_made), first), "x"),
                figure(f"real vLLM, Offline, {name}: HTTP process", [made.api for made in all_made], "s"),
            )


def executors(bench: Bench) -> Iterator[Figure]:
    """The real vLLM with the processes of its default executor (mp) and with one less (uni); each round starts both."""
    for real in _real(bench):
        cases = {name: partial(_by_executor, replace(real, eager=True), name) for name in ("mp", "uni")}
        measured = interleaved(cases, bench.rounds)
        for name, unit in _OF_EXECUTORS.items():
            mp, uni = ([made[name] for made in measured[executor]] for executor in ("mp", "uni"))
            yield from (
                figure(f"real vLLM, mp: {name}", mp, unit),
                figure(f"real vLLM, uni: {name}", uni, unit),
                figure(f"real vLLM, uni / mp: {name}", ratios(uni, mp), "x"),
            )


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


def _rates(all_made: Sequence[Made]) -> list[float]:
    return [made.rate for made in all_made]


def _real(bench: Bench) -> Iterator[RealVllm]:
    """Yield the vLLM that the command line names, if any."""
    if bench.vllm and bench.model:
        yield RealVllm(python=bench.vllm, model=bench.model, samples=bench.queries(2_048))
    else:
        left_out("the real vLLM", "not installed (--vllm=PYTHON --model=DIR)")
