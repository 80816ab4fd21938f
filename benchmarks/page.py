"""The page of a long run: `python benchmarks/page.py [--queries=N] [--rounds=N] [--json=FILE]`.

A short Server run is made through LoadGen against the mock server of benchmarks/client.py. What grows with the length
of a run is then written for N queries, 400,000 by default: client_samples.npy with a row for each, and
server_metrics.jsonl with a line every 2 s. Each round makes the page in a process of its own; the time is that of the
page alone, without the start of Python: the run is read and checked, pictures and tables are made.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from clients.programs import Pace, mock
from clients.task import Task
from clients.through_loadgen import settings_of
from cm4vllm.common.files import sha256_of
from cm4vllm.common.records import write_record
from cm4vllm.loadgen.process.runner import run
from cm4vllm.records.metrics import METRICS_FILE, MetricsSample, ServerMetrics, Timing
from cm4vllm.records.run import RUN_FILE
from cm4vllm.records.sample_times import FIELDS, SAMPLES_FILE
from cm4vllm.report.summary import MAX_BYTES
from cm4vllm.serving.probing.server_metrics import INTERVAL_S
from figures import arguments, figure, report

QUERIES, RATE, TOKENS = 400_000, 60.0, 40
LIMIT_S = 5.0
PAGE = """
import sys, time
from pathlib import Path
from cm4vllm.results.campaign_results import load
from cm4vllm.report.summary import render
wall, cpu = time.monotonic(), time.process_time()
page = render(load(Path(sys.argv[1])))
print(time.monotonic() - wall, time.process_time() - cpu, len(page.encode()))
"""


def make_run(out: Path, queries: int) -> None:
    """Make a short run below `out`, and give it the records of a run of so many queries."""
    folder = out / "runs" / "mock" / "mock" / "Server" / "performance"
    with mock(core=min(os.sched_getaffinity(0)), tokens=TOKENS, pace=Pace(ttft_ms=5.0, interval_ms=1.0)) as server:
        task = Task(port=server.port, queries=240, tokens=TOKENS, streamed=True, in_flight=1, qps=120.0)
        record = run(settings_of(task, out), folder)
    write_samples(folder / SAMPLES_FILE, queries)
    files = {**record.files, SAMPLES_FILE: sha256_of(folder / SAMPLES_FILE)}
    metrics = write_metrics(folder / METRICS_FILE, queries)
    write_record(folder / RUN_FILE, replace(record, files=files, server_metrics=metrics))


def write_samples(path: Path, queries: int) -> None:
    """Write the times of so many queries that came at a steady rate, with TTFTs of about 100 ms."""
    draw, rows = np.random.default_rng(1), np.zeros(queries, FIELDS)
    rows["issued_ns"] = np.sort(draw.uniform(0, queries / RATE * 1e9, queries).astype(np.int64))
    rows["first_ns"] = rows["issued_ns"] + draw.lognormal(np.log(100e6), 0.3, queries).astype(np.int64)
    rows["tokens"], rows["prompt_tokens"] = draw.integers(2, 128, queries), draw.integers(100, 2000, queries)
    rows["last_ns"] = rows["first_ns"] + rows["tokens"] * draw.integers(8_000_000, 12_000_000, queries)
    rows["index"] = np.arange(queries) % 13_368
    np.save(path, rows)


def write_metrics(path: Path, queries: int) -> ServerMetrics:
    """Write a line for each look at the server's metrics in such a run, and return what they say together."""
    looks = max(3, int(queries / RATE / INTERVAL_S))
    samples = [
        MetricsSample(
            at_s=INTERVAL_S * look,
            running=60 + look % 7,
            waiting=look % 3,
            kv_cache_usage=0.3 + 0.01 * (look % 10),
            prompt_tokens=1000 * queries * look // looks,
            generation_tokens=TOKENS * queries * look // looks,
            preemptions=0,
            prefix_cache_hits=0,
            cached_prompt_tokens=0,
        )
        for look in range(looks)
    ]
    path.write_bytes(msgspec.json.Encoder().encode_lines(samples))
    phase = Timing(requests=queries, mean_ms=30.0, p99_at_most_ms=300.0)
    return ServerMetrics(
        samples=looks,
        interval_s=INTERVAL_S,
        missed=0,
        running_max=66,
        running_mean=63.0,
        waiting_max=2,
        waiting_mean=1.0,
        kv_cache_usage_max=0.39,
        prompt_tokens=samples[-1].prompt_tokens,
        generation_tokens=samples[-1].generation_tokens,
        queue=phase,
        prefill=phase,
        decode=phase,
        preemptions=0,
        prefix_cache_hits=0,
        cached_prompt_tokens=0,
    )


def make_page(out: Path) -> tuple[float, float, float]:
    """Make the page in a process of its own; return its wall and processor time in s, and its size in kB."""
    done = subprocess.run([sys.executable, "-c", PAGE, str(out)], check=True, capture_output=True, text=True)
    wall, processor, size = map(float, done.stdout.split()[-3:])
    return wall, processor, size / 1000


def main() -> int:
    """Make the run and its page, print the figures; return 1 when a limit does not hold."""
    parser = arguments("the page of a long run: time and size", rounds=5)
    parser.add_argument("--queries", type=int, default=QUERIES, help="queries of the run (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_run(Path(folder), options.queries)
        walls, processor, sizes = zip(*(make_page(Path(folder)) for _ in range(options.rounds)), strict=True)
    name = f"page of {options.queries:,} queries"
    figures = [
        figure(f"{name}: time", walls, "s"),
        figure(f"{name}: processor time", processor, "s", at_most=LIMIT_S),
        figure(f"{name}: size", sizes, "kB", at_most=MAX_BYTES / 1000),
    ]
    return report(figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
