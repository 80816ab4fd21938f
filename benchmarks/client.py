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
    workers  two worker processes beside one, where there are cores for it
    vllm     the real vLLM: Offline through LoadGen beside its in-process generate (with --vllm and --model)
    ways     the real vLLM over TCP or a Unix socket, whole answers or streams, completions or tokens only
    executors the real vLLM with the processes of its default executor, and with one less
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from clients.bench import Bench, Case, Group
from clients.programs import AT_ONCE, FLOOR, MOCK, Pace, Stamps, compiled, floor, mock, wrk
from clients.real_vllm import bench_serve
from clients.real_vllm_groups import executors, vllm, ways
from clients.task import Result, Task, perform
from cm4vllm.loadgen.settings import SERVER_STREAM_INTERVAL
from cm4vllm.records.logs.early_stopping import percentile
from figures import Figure, arguments, figure, interleaved, left_out, ratios, report

SECONDS_OF_LATENCY = 6
WITH_WORKER = "ours with its worker"


def offline(bench: Bench) -> Iterator[Figure]:
    """Offline runs of LoadGen: the queries/s of each client."""
    task = Task(port=0, queries=0, tokens=2, streamed=False, in_flight=64)
    cases = {
        "ours": _case(bench, "ours", "loadgen", replace(task, queries=bench.queries(80_000))),
        "reference": _case(bench, "reference", "loadgen", replace(task, queries=bench.queries(2_500))),
    }
    if _has_aiohttp():
        cases["aiohttp"] = _case(bench, "aiohttp", "loadgen", replace(task, queries=bench.queries(15_000)))
    if bench.endpoints:
        cases["endpoints"] = _case(bench, "endpoints", "alone", replace(task, queries=bench.queries(15_000)))
    else:
        left_out("endpoints", "not installed (--endpoints=PYTHON of a Python >= 3.12 that has mlcommons/endpoints)")
    if bench.vllm and bench.model:
        cases["vllm bench serve"] = _bench_serve(bench, replace(task, queries=bench.queries(2_000)))
    else:
        left_out("vllm bench serve", "not installed (--vllm=PYTHON --model=DIR)")
    measured = {name: [result.qps for result in results] for name, results in interleaved(cases, bench.rounds).items()}
    for name, rates in measured.items():
        yield figure(f"offline queries/s: {name}", rates, "queries/s")
    for name, limit in (("reference", 25), ("aiohttp", 5), ("endpoints", 4), ("vllm bench serve", None)):
        if name in measured:
            yield figure(
                f"offline queries/s: ours / {name}", ratios(measured["ours"], measured[name]), "x", at_least=limit
            )


def alone(bench: Bench) -> Iterator[Figure]:
    """The highest rate of the client without LoadGen, beside two programs in C.

    "ours" is the client by itself, in one process as the others are: the limit is for this case. "With its worker" adds
    what a run has, here all on one core: a process of its own, the socket pair, and the thread that reads.
    """
    task = Task(port=0, queries=bench.queries(100_000), tokens=1, streamed=False, in_flight=64, warm=True)
    cases = {
        "ours": _case(bench, "engine", "alone", task),
        WITH_WORKER: _case(bench, "ours", "alone", task),
        "floor": _floor(bench, task),
    }
    if bench.endpoints:
        cases["endpoints"] = _case(bench, "endpoints", "alone", replace(task, queries=bench.queries(15_000)))
    if shutil.which("wrk"):
        cases["wrk"] = _wrk(bench, task)
    else:
        left_out("wrk", "not installed (apt install wrk)")
    measured = interleaved(cases, bench.rounds)
    rates = {name: [result.qps for result in results] for name, results in measured.items()}
    for name, values in rates.items():
        yield figure(f"queries/s without LoadGen: {name}", values, "queries/s")
    if "wrk" in rates:
        yield figure("queries/s without LoadGen: ours / wrk", ratios(rates["ours"], rates["wrk"]), "x", at_least=0.7)
        yield figure(f"queries/s without LoadGen: {WITH_WORKER} / wrk", ratios(rates[WITH_WORKER], rates["wrk"]), "x")
    for name in ("ours", WITH_WORKER):
        yield figure(
            f"CPU per query, whole answers: {name} / C floor", _cpu_ratios(measured[name], measured["floor"]), "x"
        )
    if "endpoints" in measured:
        yield figure(
            "CPU per query, whole answers: endpoints / ours", _cpu_ratios(measured["endpoints"], measured["ours"]), "x"
        )


def paced(bench: Bench) -> Iterator[Figure]:
    """Processor time for each token of streams that come as a real server sends them; "ours" is as in `alone`.

    The server writes to the streams in turn, as the real vLLM does: of that an event loop on a core of its own found
    1.5 tokens at each wake-up. "Together": the streams send as close to each other as the client sent its requests, so
    that a wake-up finds ten tokens; no limit is set for these.
    """
    queries = bench.queries(2_000)
    task = Task(port=0, queries=queries, tokens=64, streamed=True, in_flight=min(500, queries), warm=True)
    pace = Pace(ttft_ms=20.0, interval_ms=20.0, spread=True)
    chunks = replace(task, interval=SERVER_STREAM_INTERVAL)
    cases = {
        "ours": _case(bench, "engine", "alone", task, pace),
        WITH_WORKER: _case(bench, "ours", "alone", task, pace),
        "floor": _floor(bench, task, pace),
        f"{WITH_WORKER}, {SERVER_STREAM_INTERVAL} tokens a chunk": _case(bench, "ours", "alone", chunks, pace),
        "ours, together": _case(bench, "engine", "alone", task, replace(pace, spread=False)),
        "floor, together": _floor(bench, task, replace(pace, spread=False)),
    }
    if _has_aiohttp():
        cases["aiohttp"] = _case(bench, "aiohttp", "alone", task, pace)
    measured = interleaved(cases, bench.rounds)
    for name, results in measured.items():
        yield figure(f"CPU per token, paced: {name}", [r.cpu_s / r.tokens * 1e6 for r in results], "µs")
    for name, under, limit in (
        ("ours", "floor", 1.25),
        (WITH_WORKER, "floor", 1.25),
        ("ours, together", "floor, together", None),
    ):
        yield figure(
            f"CPU per token, paced: {name} / C floor", _cpu_ratios(measured[name], measured[under]), "x", at_most=limit
        )


@dataclass(frozen=True)
class Added:
    """The time that a client adds to the server's TTFT, in ms at two percentiles, and the error of its TPOT, in %."""

    p50: float
    p99: float
    tpot: float


def latency(bench: Bench) -> Iterator[Figure]:
    """A Server run at 51,200 tokens/s: the latencies that LoadGen measured, less those that the server measured.

    A percentile of the added time is the difference of both sides' percentiles: LoadGen's log names no query.
    """
    queries = bench.queries(800 * SECONDS_OF_LATENCY)
    task = Task(port=0, queries=queries, tokens=64, streamed=True, in_flight=1, qps=800.0)
    names = ("ours", "aiohttp") if _has_aiohttp() else ("ours",)
    measured = interleaved({name: _latency(bench, name, task) for name in names}, bench.rounds)
    for name in names:
        yield figure(f"added TTFT p50 at 51k tokens/s: {name}", [added.p50 for added in measured[name]], "ms")
        yield figure(f"added TTFT p99 at 51k tokens/s: {name}", [added.p99 for added in measured[name]], "ms")
    if "aiohttp" in measured:
        both = list(zip(measured["aiohttp"], measured["ours"], strict=True))
        yield figure("added TTFT p50: aiohttp / ours", [aio.p50 / ours.p50 for aio, ours in both], "x", at_least=50)
        yield figure("added TTFT p99: aiohttp / ours", [aio.p99 / ours.p99 for aio, ours in both], "x", at_least=10)
        yield figure("error of TPOT p50: aiohttp", [added.tpot for added in measured["aiohttp"]], "%")
    yield figure("error of TPOT p50: ours", [added.tpot for added in measured["ours"]], "%", at_most=2)


def watching(bench: Bench) -> Iterator[Figure]:
    """Yield the cost of watching a Server run at 51,200 tokens/s, beside the processor time of the client."""
    task = Task(port=0, queries=bench.queries(800 * 24), tokens=64, streamed=True, in_flight=1, qps=800.0)
    cases = {
        name: _case(bench, name, "loadgen", task, Pace(ttft_ms=20.0, interval_ms=20.0))
        for name in ("watched", "watched on a terminal")
    }
    for name, results in interleaved(cases, bench.rounds).items():
        yield figure(f"{name}: of the client's CPU", [100 * r.watching_s / r.cpu_s for r in results], "%", at_most=1)


def open_streams(bench: Bench) -> Iterator[Figure]:
    """Thousands of streams at a time on one core."""
    streams, tokens, pace_ms = bench.queries(4_000), 32, 100.0
    task = Task(port=0, queries=streams, tokens=tokens, streamed=True, in_flight=streams)
    ideal = tokens * pace_ms / 1e3
    names = ("ours", "aiohttp") if _has_aiohttp() else ("ours",)
    cases = {name: _case(bench, name, "alone", task, Pace(ttft_ms=pace_ms, interval_ms=pace_ms)) for name in names}
    measured = interleaved(cases, bench.rounds)
    for name, results in measured.items():
        slowest, largest = (1.2, 16.0) if name == "ours" else (None, None)
        yield figure(
            f"{streams:,} open streams, wall / ideal: {name}", [r.wall_s / ideal for r in results], "x", at_most=slowest
        )
        yield figure(
            f"{streams:,} open streams, memory of each: {name}",
            [r.gained_kib / streams for r in results],
            "KiB",
            at_most=largest,
        )


def workers(bench: Bench) -> Iterator[Figure]:
    """Two workers beside one, streams that come as fast as they can: each worker and each of two servers has a core."""
    cores = sorted(os.sched_getaffinity(0))
    enough = len(cores) >= 5
    if not enough:
        print(
            "workers: five cores are needed to see two workers scale (LoadGen's side, two workers, two servers), "
            f"this machine has {len(cores)}: they share them, and no limit is held",
            file=sys.stderr,
        )
    task = Task(port=0, queries=bench.queries(30_000), tokens=64, streamed=True, in_flight=64)
    places = {1: cores[:2], 2: cores[:3]} if enough else {1: cores[:1], 2: cores[:2]}

    def case(count: int) -> Case:
        def measure() -> Result:
            with mock(core=cores[-1], tokens=64) as first, mock(core=cores[-2 if enough else -1], tokens=64) as second:
                told = replace(task, port=first.port, more_ports=[second.port], workers=count)
                return perform("ours", "alone", told, places[count])

        return measure

    measured = interleaved({str(count): case(count) for count in places}, bench.rounds)
    single, two = ([result.qps * 64 for result in measured[count]] for count in ("1", "2"))
    yield figure("one worker", single, "tokens/s")
    yield figure("two workers", two, "tokens/s")
    yield figure(
        "two workers / one" + ("" if enough else ", cores shared"),
        ratios(two, single),
        "x",
        at_least=1.7 if enough else None,
    )


GROUPS: dict[str, Group] = {
    "offline": offline,
    "alone": alone,
    "paced": paced,
    "latency": latency,
    "watching": watching,
    "open": open_streams,
    "workers": workers,
    "vllm": vllm,
    "ways": ways,
    "executors": executors,
}


def _case(bench: Bench, name: str, way: str, task: Task, pace: Pace = AT_ONCE) -> Case:
    python = bench.endpoints if name == "endpoints" and bench.endpoints else sys.executable

    def measure() -> Result:
        with mock(core=bench.server, tokens=task.tokens, pace=pace) as server:
            return perform(name, way, replace(task, port=server.port), [bench.client], python=python)

    return measure


def _floor(bench: Bench, task: Task, pace: Pace = AT_ONCE) -> Case:
    def measure() -> Result:
        with mock(core=bench.server, tokens=task.tokens, pace=pace) as server:
            return floor(replace(task, port=server.port), bench.client)

    return measure


def _wrk(bench: Bench, task: Task) -> Case:
    def measure() -> Result:
        with mock(core=bench.server, tokens=task.tokens) as server:
            return wrk(replace(task, port=server.port), bench.client, seconds=2 if bench.share == 1 else 1)

    return measure


def _bench_serve(bench: Bench, task: Task) -> Case:
    def measure() -> Result:
        with mock(core=bench.server, tokens=task.tokens) as server:
            return bench_serve(str(bench.vllm), Path(str(bench.model)), replace(task, port=server.port), [bench.client])

    return measure


def _latency(bench: Bench, name: str, task: Task) -> Callable[[], Added]:
    def measure() -> Added:
        with mock(core=bench.server, tokens=task.tokens, pace=Pace(ttft_ms=20.0, interval_ms=20.0)) as server:
            result = perform(name, "loadgen", replace(task, port=server.port), [bench.client])
        return _added(result, server.stamps)

    return measure


def _added(result: Result, stamps: Stamps) -> Added:
    return Added(
        result.ttft_p50 - percentile(stamps.ttft, 0.5),
        result.ttft_p99 - percentile(stamps.ttft, 0.99),
        100 * abs(result.tpot_p50 / percentile(stamps.tpot, 0.5) - 1),
    )


def _cpu_ratios(over: list[Result], under: list[Result]) -> list[float]:
    def per_token(results: list[Result]) -> list[float]:
        return [result.cpu_s / result.tokens for result in results]

    return ratios(per_token(over), per_token(under))


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
    bench = Bench(
        client,
        server,
        1 if told.quick else told.rounds,
        1 / 30 if told.quick else 1.0,
        told.endpoints,
        told.vllm,
        told.model,
    )
    for source in (MOCK, FLOOR):
        compiled(source)
    return report([result for name in told.only for result in GROUPS[name](bench)], told.json)


if __name__ == "__main__":
    raise SystemExit(main())
