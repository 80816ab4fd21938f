"""Real LoadGen Server runs of which it is known how many queries are over each limit: a program.

    python early_stopping_sut.py FOLDER QUERIES:OVER_TTFT:OVER_TPOT ...

Each run leaves its detail log in FOLDER/QUERIES-OVER_TTFT-OVER_TPOT. The limits are 500 ms to the first token and 200
ms for each token after it. The first token of a query comes at once, or after 700 ms in the first OVER_TTFT queries;
the second and last one follows at once, or 500 ms later in the last OVER_TPOT queries. A run that took much longer than
that is made again: the machine was too busy to answer the other queries in time.
"""

import asyncio
import shutil
import sys
import threading
import time
from pathlib import Path

import mlperf_loadgen as lg
import numpy as np

TTFT_LIMIT_MS, TPOT_LIMIT_MS = 500, 200
LATE_TTFT_S, LATE_TPOT_S = 0.7, 0.5
RATE = 2000
TOKENS = np.arange(2, dtype=np.int32)


def run(loop: asyncio.AbstractEventLoop, folder: Path, queries: int, over_ttft: int, over_tpot: int) -> None:
    folder.mkdir(parents=True)
    seen = 0

    def first(key: int) -> None:
        lg.FirstTokenComplete([lg.QuerySampleResponse(key, TOKENS.ctypes.data, 4)])

    def complete(key: int) -> None:
        lg.QuerySamplesComplete([lg.QuerySampleResponse(key, TOKENS.ctypes.data, TOKENS.nbytes, len(TOKENS))])

    def start(keys: list[int]) -> None:
        nonlocal seen
        for key in keys:
            begin = LATE_TTFT_S if seen < over_ttft else 0.0
            rest = LATE_TPOT_S if seen >= queries - over_tpot else 0.0
            seen += 1
            loop.call_later(begin, first, key)
            loop.call_later(begin + rest + 0.001, complete, key)

    def issue(samples: list[lg.QuerySample]) -> None:
        loop.call_soon_threadsafe(start, [sample.id for sample in samples])

    settings = lg.TestSettings()
    settings.scenario, settings.mode = lg.TestScenario.Server, lg.TestMode.PerformanceOnly
    settings.server_target_qps, settings.min_duration_ms = RATE, 0
    settings.min_query_count = settings.max_query_count = queries
    settings.use_token_latencies = True
    settings.ttft_latency, settings.tpot_latency = TTFT_LIMIT_MS * 1_000_000, TPOT_LIMIT_MS * 1_000_000
    logs = lg.LogSettings()
    logs.log_output.outdir = str(folder)
    logs.enable_trace = False
    sut, qsl = lg.ConstructSUT(issue, lambda: None), lg.ConstructQSL(64, 64, lambda _: None, lambda _: None)
    lg.StartTestWithLogSettings(sut, qsl, settings, logs, str(folder / "audit.config"))
    lg.DestroyQSL(qsl)
    lg.DestroySUT(sut)


def main() -> None:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    for case in sys.argv[2:]:
        queries, over_ttft, over_tpot = map(int, case.split(":"))
        folder = Path(sys.argv[1]) / case.replace(":", "-")
        longest = 1.2 * queries / RATE + max(LATE_TTFT_S * bool(over_ttft), LATE_TPOT_S * bool(over_tpot)) + 0.1
        for _ in range(20):
            begin = time.monotonic()
            run(loop, folder, queries, over_ttft, over_tpot)
            if time.monotonic() - begin < longest:
                break
            shutil.rmtree(folder)


main()
