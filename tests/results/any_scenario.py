"""One real LoadGen run of any scenario, with token latencies or without: a program.

    python any_scenario.py FOLDER SCENARIO NAME [MODE]

FOLDER gets LoadGen's logs; NAME is a benchmark's in LoadGen's mlperf.conf, which says whether tokens are counted. MODE
is PerformanceOnly; in AccuracyOnly the samples are loaded in four parts.
"""

import sys
import threading
import time
from pathlib import Path

import mlperf_loadgen as lg
import numpy as np

CONF = """\
*.*.min_duration = 200
*.*.min_query_count = 64
*.*.performance_sample_count_override = {samples}
*.Server.target_qps = 200
*.Offline.target_qps = 100
*.SingleStream.target_latency = 1
*.MultiStream.target_latency = 5
*.MultiStream.samples_per_query = 8
"""
ANSWER = np.arange(1, 12, dtype=np.int32)


def main():
    folder, scenario, name, mode = [*sys.argv[1:], "PerformanceOnly"][:4]
    samples = 64 if mode == "PerformanceOnly" else 16
    Path(folder, "user.conf").write_text(CONF.format(samples=samples))
    settings = lg.TestSettings()
    settings.FromConfig(f"{folder}/user.conf", name, scenario, 1)
    settings.scenario = getattr(lg.TestScenario, scenario)
    settings.mode = getattr(lg.TestMode, mode)

    def answer(queries):
        time.sleep(0.001)
        if scenario != "Offline" and settings.use_token_latencies:
            lg.FirstTokenComplete([lg.QuerySampleResponse(q.id, ANSWER.ctypes.data, 4) for q in queries])
        time.sleep(0.001)
        lg.QuerySamplesComplete(
            [lg.QuerySampleResponse(q.id, ANSWER.ctypes.data, ANSWER.nbytes, len(ANSWER)) for q in queries]
        )

    logs = lg.LogSettings()
    logs.log_output.outdir = folder
    logs.enable_trace = False
    sut = lg.ConstructSUT(lambda queries: threading.Thread(target=answer, args=(queries,)).start(), lambda: None)
    qsl = lg.ConstructQSL(64, samples, lambda _: None, lambda _: None)
    lg.StartTestWithLogSettings(sut, qsl, settings, logs, "audit.config")
    lg.DestroyQSL(qsl)
    lg.DestroySUT(sut)


main()
