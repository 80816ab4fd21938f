"""One real LoadGen run of a system under test that answers out of thin air: a program, to be run in its own process.

    python loadgen_sut.py OUT SCENARIO MODE SAMPLES SPREAD_S [NAME]

OUT holds user.conf, perhaps audit.config, and gets LoadGen's logs. SPREAD_S is the time over which an Offline query is
answered, in seconds. NAME is the benchmark's in mlperf.conf.
LoadGen reads its embedded mlperf.conf once a process, so each run needs its own.
"""

import sys
import threading
import time
from pathlib import Path

import mlperf_loadgen as lg
import numpy as np

ANSWER = np.arange(8, dtype=np.int32)


def main() -> None:
    out, scenario, mode, samples, spread_s, name = [*sys.argv[1:], "llama3_1-8b"][:6]
    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, scenario)
    settings.mode = {"performance": lg.TestMode.PerformanceOnly, "accuracy": lg.TestMode.AccuracyOnly}[mode]
    settings.FromConfig(str(Path(out) / "user.conf"), name, scenario, 1)
    logs = lg.LogSettings()
    logs.log_output.outdir = out
    logs.enable_trace = False

    def complete(queries: list) -> None:
        lg.QuerySamplesComplete([lg.QuerySampleResponse(q.id, ANSWER.ctypes.data, ANSWER.nbytes, 8) for q in queries])

    def answer_slowly(queries: list) -> None:
        begin, chunk = time.monotonic(), max(1, len(queries) // 500)
        for first in range(0, len(queries), chunk):
            due = begin + float(spread_s) * (first + chunk) / len(queries)
            time.sleep(max(0.0, due - time.monotonic()))
            complete(queries[first : first + chunk])

    def issue(queries: list) -> None:
        if scenario == "Offline":
            threading.Thread(target=answer_slowly, args=(queries,)).start()
            return
        lg.FirstTokenComplete([lg.QuerySampleResponse(q.id, ANSWER.ctypes.data, 4) for q in queries])
        complete(queries)

    sut = lg.ConstructSUT(issue, lambda: None)
    qsl = lg.ConstructQSL(int(samples), int(samples), lambda _: None, lambda _: None)
    lg.StartTestWithLogSettings(sut, qsl, settings, logs, f"{out}/audit.config")
    lg.DestroyQSL(qsl)
    lg.DestroySUT(sut)


main()
