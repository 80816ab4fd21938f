"""The LoadGen client, measured beside other clients, and beside the smallest one that does the same work.

    python benchmarks/client.py [--quick] [--rounds=N] [--only=PART,…] [--json=FILE] [--cores=CLIENT,SERVER]
                                [--endpoints=PYTHON] [--vllm=PYTHON --model=DIR]

All ask one mock server, a C program that answers as vLLM 0.32 does, at a known pace; it has one core, the client
another. The groups, each with its cases in turn:

    offline  Offline runs of LoadGen, whole answers of 2 tokens, 64 in flight; endpoints without LoadGen
    alone    the same work without LoadGen, one token an answer, beside wrk and the floor client
    paced    CPU time per token: 500 streams, a token each 20 ms, spread over them
    latency  what a Server run of LoadGen at 51,200 tokens/s adds to the server's own TTFT and TPOT
    watching what status.json and the view on a terminal cost in such a run
    open     4,000 streams at a time, a token each 100 ms: time and memory
    vllm     the real vLLM: Offline through LoadGen beside its in-process generate (with --vllm and --model)
    ways     the real vLLM over TCP or a Unix socket, whole answers or streams, completions or tokens only
    executors the real vLLM with the processes of its default executor, and with one less
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from clients.programs import AT_ONCE, FLOOR, MOCK, Mock, Pace, compile_program, floor, mock, wrk
from clients.real_vllm_groups import Bench, executors, vllm, ways
from clients.task import Result, Task, perform
from cm4vllm.loadgen.settings import SERVER_STREAM_INTERVAL
from cm4vllm.records.logs.early_stopping import percentile
from figures import Figure, arguments, figure, interleaved, left_out, ratios, report

SECONDS_OF_LATENCY = 6
WITH_WORKER = "ours with its worker"
#: The pace of the Server runs.
SERVER_PACE = Pace(ttft_ms=20.0, interval_ms=20.0)
Results = dict[str, list[Result]]
Cases = dict[str, Callable[[], Result]]


def offline(bench: Bench) -> Iterator[Figure]:
    """Offline runs of LoadGen: the queries/s of each client."""

    def case(name: str, queries: int, way: str = "loadgen") -> Callable[[], Result]:
        task = Task(port=0, queries=bench.queries(queries), tokens=2, streamed=False, in_flight=64)
        return _case(bench, name, way, task)

    cases = {"ours": case("ours", 80_000), "reference": case("reference", 2_500)}
    if _has_aiohttp():
        cases["aiohttp"] = case("aiohttp", 15_000)
    if bench.endpoints:
        cases["endpoints"] = case("endpoints", 15_000, "alone")
    else:
        left_out("endpoints", "not installed (--endpoints=PYTHON of a Python >= 3.12 that has mlcommons/endpoints)")
    measured = _rates(interleaved(cases, bench.rounds))
    for name, rates in measured.items():
        yield figure(f"offline queries/s: {name}", rates, "queries/s")
    for name, limit in (("reference", 25), ("aiohttp", 5), ("endpoints", 4)):
        if name in measured:
            shares = ratios(measured["ours"], measured[name])
            yield figure(f"offline queries/s: ours / {name}", shares, "x", at_least=limit)


def alone(bench: Bench) -> Iterator[Figure]:
    """The highest rate of the client without LoadGen, beside two programs in C.

    "ours" is the client by itself, in one process as the others are: the limit is for this case. "With its worker" adds
    what a run has, here all on one core: a process of its own, the socket pair, and the thread that reads.
    """
    task = Task(port=0, queries=bench.queries(100_000), tokens=1, streamed=False, in_flight=64, warm=True)
    cases = {
        "ours": _case(bench, "engine", "alone", task),
        WITH_WORKER: _case(bench, "ours", "alone", task),
        "floor": _case(bench, "floor", "alone", task),
    }
    if shutil.which("wrk"):
        cases["wrk"] = _case(bench, "wrk", "alone", task)
    else:
        left_out("wrk", "not installed (apt install wrk)")
    measured = interleaved(cases, bench.rounds)
    rates = _rates(measured)
    for name, values in rates.items():
        yield figure(f"queries/s without LoadGen: {name}", values, "queries/s")
    for name, limit in (("ours", 0.7), (WITH_WORKER, None)):
        if "wrk" in rates:
            shares = ratios(rates[name], rates["wrk"])
            yield figure(f"queries/s without LoadGen: {name} / wrk", shares, "x", at_least=limit)
        yield figure(f"CPU per query, whole answers: {name} / C floor", _of_the_floor(measured, name), "x")


def paced(bench: Bench) -> Iterator[Figure]:
    """Processor time for each token of streams that come as a real server sends them; "ours" is as in `alone`.

    The server writes to the streams in turn, as the real vLLM does: of that an event loop on a core of its own found
    1.5 tokens at each wake-up.
    """
    queries = bench.queries(2_000)
    task = Task(port=0, queries=queries, tokens=64, streamed=True, in_flight=min(500, queries), warm=True)
    chunks = replace(task, interval=SERVER_STREAM_INTERVAL)
    case = partial(_case, bench, way="alone", pace=replace(SERVER_PACE, spread=True))
    cases = {
        "ours": case("engine", task=task),
        WITH_WORKER: case("ours", task=task),
        "floor": case("floor", task=task),
        f"{WITH_WORKER}, {SERVER_STREAM_INTERVAL} tokens a chunk": case("ours", task=chunks),
    }
    if _has_aiohttp():
        cases["aiohttp"] = case("aiohttp", task=task)
    measured = interleaved(cases, bench.rounds)
    for name, results in measured.items():
        yield figure(f"CPU per token, paced: {name}", [r.cpu_s / r.tokens * 1e6 for r in results], "µs")
    for name in ("ours", WITH_WORKER):
        yield figure(f"CPU per token, paced: {name} / C floor", _of_the_floor(measured, name), "x", at_most=1.25)


def latency(bench: Bench) -> Iterator[Figure]:
    """A Server run at 51,200 tokens/s: the latencies that LoadGen measured, less those that the server measured.

    A percentile of the added time is the difference of both sides' percentiles: LoadGen's log names no query.
    """
    queries = bench.queries(800 * SECONDS_OF_LATENCY)
    task = Task(port=0, queries=queries, tokens=64, streamed=True, in_flight=1, qps=800.0)
    names = ("ours", "aiohttp") if _has_aiohttp() else ("ours",)
    cases = {name: _case(bench, name, "loadgen", task, SERVER_PACE, added) for name in names}
    measured = interleaved(cases, bench.rounds)
    for name, results in measured.items():
        limit = 2 if name == "ours" else None
        yield from (
            figure(f"added TTFT p50 at 51k tokens/s: {name}", [result.ttft_p50 for result in results], "ms"),
            figure(f"added TTFT p99 at 51k tokens/s: {name}", [result.ttft_p99 for result in results], "ms"),
            figure(f"error of TPOT p50: {name}", [result.tpot_p50 for result in results], "%", at_most=limit),
        )
    if "aiohttp" in measured:
        both = list(zip(measured["aiohttp"], measured["ours"], strict=True))
        p50, p99 = [aio.ttft_p50 / ours.ttft_p50 for aio, ours in both], [a.ttft_p99 / b.ttft_p99 for a, b in both]
        yield figure("added TTFT p50: aiohttp / ours", p50, "x", at_least=50)
        yield figure("added TTFT p99: aiohttp / ours", p99, "x", at_least=10)


def watching(bench: Bench) -> Iterator[Figure]:
    """Yield the cost of watching a Server run at 51,200 tokens/s, beside the processor time of the client."""
    task = Task(port=0, queries=bench.queries(800 * 24), tokens=64, streamed=True, in_flight=1, qps=800.0)
    names = ("watched", "watched on a terminal")
    cases = {name: _case(bench, name, "loadgen", task, SERVER_PACE) for name in names}
    for name, results in interleaved(cases, bench.rounds).items():
        yield figure(f"{name}: of the client's CPU", [100 * r.watching_s / r.cpu_s for r in results], "%", at_most=1)


def open_streams(bench: Bench) -> Iterator[Figure]:
    """Thousands of streams at a time on one core."""
    streams, tokens, pace_ms = bench.queries(4_000), 32, 100.0
    task = Task(port=0, queries=streams, tokens=tokens, streamed=True, in_flight=streams)
    names = ("ours", "aiohttp") if _has_aiohttp() else ("ours",)
    cases = {name: _case(bench, name, "alone", task, Pace(ttft_ms=pace_ms, interval_ms=pace_ms)) for name in names}
    for name, results in interleaved(cases, bench.rounds).items():
        slowest, largest = (1.2, 16.0) if name == "ours" else (None, None)
        wall = [result.wall_s / (tokens * pace_ms / 1e3) for result in results]
        memory = [result.gained_kib / streams for result in results]
        yield figure(f"{streams:,} open streams, wall / ideal: {name}", wall, "x", at_most=slowest)
        yield figure(f"{streams:,} open streams, memory of each: {name}", memory, "KiB", at_most=largest)


GROUPS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "offline": offline,
    "alone": alone,
    "paced": paced,
    "latency": latency,
    "watching": watching,
    "open": open_streams,
    "vllm": vllm,
    "ways": ways,
    "executors": executors,
}


def added(result: Result, server: Mock) -> Result:
    """Return what a client adds to the server's TTFT, in ms, and the error of its TPOT, in %, in the fields of both."""
    return replace(
        result,
        ttft_p50=result.ttft_p50 - percentile(server.ttft, 0.5),
        ttft_p99=result.ttft_p99 - percentile(server.ttft, 0.99),
        tpot_p50=100 * abs(result.tpot_p50 / percentile(server.tpot, 0.5) - 1),
    )


def _case(
    bench: Bench,
    name: str,
    way: str,
    task: Task,
    pace: Pace = AT_ONCE,
    judged: Callable[[Result, Mock], Result] = lambda result, server: result,
) -> Callable[[], Result]:
    """Return what has a client do `task` once with a mock server, and judges its result when the server has ended."""
    python = bench.endpoints if name == "endpoints" and bench.endpoints else sys.executable

    def measure() -> Result:
        with mock(core=bench.server, tokens=task.tokens, pace=pace) as server:
            here = replace(task, port=server.port)
            if name in ("floor", "wrk"):
                result = (floor if name == "floor" else wrk)(here, bench.client)
            else:
                result = perform(name, way, here, [bench.client], python=python)
        return judged(result, server)

    return measure


def _rates(measured: Results) -> dict[str, list[float]]:
    return {name: [result.qps for result in results] for name, results in measured.items()}


def _of_the_floor(measured: Results, name: str) -> list[float]:
    """Return the processor time of a token as a multiple of the floor client's, by round."""
    own, least = ([result.cpu_s / result.tokens for result in measured[client]] for client in (name, "floor"))
    return ratios(own, least)


def _has_aiohttp() -> bool:
    installed = importlib.util.find_spec("aiohttp") is not None
    if not installed:
        left_out("aiohttp", "not installed (pip install -r benchmarks/requirements.txt)")
    return installed


def main() -> int:
    """Measure the groups that are asked for, and print the table."""
    parser = arguments(__doc__.split("\n")[0], rounds=5, parts=GROUPS)
    parser.add_argument("--quick", action="store_true", help="a thirtieth of the work, once: it runs, no more")
    parser.add_argument("--cores", default="0,1", metavar="CLIENT,SERVER", help="core of each side (%(default)s)")
    parser.add_argument("--endpoints", metavar="PYTHON", help="a Python that has mlcommons/endpoints")
    parser.add_argument("--vllm", metavar="PYTHON", help="a Python that has vllm")
    parser.add_argument("--model", type=Path, metavar="DIR", help="a model folder for --vllm")
    told = parser.parse_args()
    client, server = map(int, told.cores.split(","))
    if not {client, server} <= os.sched_getaffinity(0) or client == server:
        parser.error(f"--cores={told.cores}: two different cores of {sorted(os.sched_getaffinity(0))} are needed")
    rounds, share = (1, 1 / 30) if told.quick else (told.rounds, 1.0)
    bench = Bench(client, server, rounds, share, told.endpoints, told.vllm, told.model)
    for source in (MOCK, FLOOR):
        compile_program(source)
    return report([result for name in told.only for result in GROUPS[name](bench)], told.json)


if __name__ == "__main__":
    raise SystemExit(main())
