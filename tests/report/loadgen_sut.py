"""One real LoadGen run of a server in process, of which every latency and token count is known: a program.

    python loadgen_sut.py FOLDER SCENARIO MODE SAMPLES

FOLDER holds user.conf and gets LoadGen's logs and client.json, what the client counted.
Sample i is answered with 20 + i % 17 tokens, the first after 4 ms, each other one 0.5 ms later.
"""

import asyncio
import json
import sys
import threading
from pathlib import Path

import mlperf_loadgen as lg
import numpy as np

TTFT_S = 0.004
TPOT_S = 0.0005


def tokens_of(index):
    return np.arange(1, 21 + index % 17, dtype=np.int32)


def main():
    folder, scenario, mode, samples = sys.argv[1:5]
    answers = [tokens_of(index) for index in range(int(samples))]
    counts = {"requests": 0, "completion_tokens": 0}
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def complete(query, answer):
        counts["requests"] += 1
        counts["completion_tokens"] += len(answer)
        lg.QuerySamplesComplete([lg.QuerySampleResponse(query.id, answer.ctypes.data, answer.nbytes, len(answer))])

    def start(queries):
        for query in queries:
            answer = answers[query.index]
            if scenario != "Offline":
                loop.call_later(TTFT_S, first, query, answer)
            loop.call_later(TTFT_S + TPOT_S * (len(answer) - 1), complete, query, answer)

    def first(query, answer):
        lg.FirstTokenComplete([lg.QuerySampleResponse(query.id, answer.ctypes.data, 4)])

    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, scenario)
    settings.mode = {"performance": lg.TestMode.PerformanceOnly, "accuracy": lg.TestMode.AccuracyOnly}[mode]
    settings.FromConfig(f"{folder}/user.conf", "llama3_1-8b", scenario, 1)
    logs = lg.LogSettings()
    logs.log_output.outdir = folder
    logs.enable_trace = False
    sut = lg.ConstructSUT(lambda queries: loop.call_soon_threadsafe(start, queries), lambda: None)
    qsl = lg.ConstructQSL(int(samples), int(samples), lambda _: None, lambda _: None)
    lg.StartTestWithLogSettings(sut, qsl, settings, logs, "audit.config")
    lg.DestroyQSL(qsl)
    lg.DestroySUT(sut)
    (Path(folder) / "client.json").write_text(json.dumps(counts))


main()
