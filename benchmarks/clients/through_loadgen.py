"""The same work, driven by LoadGen: ours as the run recipe starts it, the others as a SUT beside it in one process.

All have the settings of a rehearsal of llama3.1-8b, and are judged by LoadGen's own log.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlperf_loadgen

from clients.task import PROMPTS, Client, Done, First, Result, Task, prompt
from cm4vllm.common.files import sha256_of
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.settings import run_settings
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.records.run import RunSettings
from cm4vllm.records.server import Api, ServerRecord
from cm4vllm.rules import ExecutionMode, Mode, Scenario, terms


def ours(task: Task) -> Result:
    """Make a run with the shipped client."""
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(task, Path(folder))
        record = run(settings, Path(folder) / "run")
        return _result(Path(folder) / "run", record.client.completion_tokens)


def peer(task: Task, make: Callable[[First, Done], Client]) -> Result:
    """Make a run with the client that `make` gives, in this process."""
    counts: list[int] = []  # the reference's way answers on many threads

    def first(key: int, token: int) -> None:
        if task.qps is not None:
            data = array("i", (token,))
            mlperf_loadgen.FirstTokenComplete([mlperf_loadgen.QuerySampleResponse(key, data.buffer_info()[0], 4)])

    def done(key: int, tokens: array[int]) -> None:
        address, count = tokens.buffer_info()
        counts.append(count)
        mlperf_loadgen.QuerySamplesComplete([mlperf_loadgen.QuerySampleResponse(key, address, 4 * count, count)])

    client = make(first, done)
    with tempfile.TemporaryDirectory() as name:
        settings, folder = settings_of(task, Path(name)), Path(name)
        (folder / "user.conf").write_text(settings.user_conf)
        test = mlperf_loadgen.TestSettings()
        test.FromConfig(str(folder / "user.conf"), settings.terms.loadgen_name, settings.terms.loadgen_scenario, 1)
        test.scenario = getattr(mlperf_loadgen.TestScenario, settings.terms.loadgen_scenario)
        test.mode = mlperf_loadgen.TestMode.PerformanceOnly
        log = mlperf_loadgen.LogSettings()
        log.log_output.outdir = name
        log.log_output.copy_summary_to_stdout = False
        log.enable_trace = False

        def issue(samples: Sequence[Any]) -> None:
            client.submit([(sample.id, sample.index) for sample in samples])

        sut = mlperf_loadgen.ConstructSUT(issue, lambda: None)
        library = mlperf_loadgen.ConstructQSL(PROMPTS, PROMPTS, lambda indices: None, lambda indices: None)
        mlperf_loadgen.StartTestWithLogSettings(sut, library, test, log, str(folder / "audit.config"))
        mlperf_loadgen.DestroyQSL(library)
        mlperf_loadgen.DestroySUT(sut)
        client.close()
        return _result(folder, sum(counts))


def settings_of(task: Task, folder: Path) -> RunSettings:
    """Return the settings of a run that does the task; its dataset is written to `folder`."""
    dataset = folder / "dataset.json"
    rows = [
        {"input": "", "tok_input": prompt(index, task.prompt_tokens, task.vocabulary), "output": ""}
        for index in range(PROMPTS)
    ]
    dataset.write_text(json.dumps(rows))
    scenario = Scenario.OFFLINE if task.qps is None else Scenario.SERVER
    qps = task.qps or 1000.0
    conf = user_conf(
        terms("v6.1", "llama3.1-8b", scenario, Mode.PERFORMANCE),
        ExecutionMode.TEST,
        target_qps=qps,
        test_query_count=task.queries,
        dataset_samples=len(rows),
    )
    return run_settings(
        conf,
        target_qps=qps,
        target_qps_source="the benchmark's",
        max_in_flight=task.in_flight,
        stream_interval=task.interval if task.streamed else 0,
        self_check=False,
        model=ModelRecord(name="mock", path="", source="none", sha256="", min_tokens=task.tokens),
        dataset=DatasetRecord(
            name="mock",
            path=str(dataset),
            source="made by the benchmark",
            sha256=sha256_of(dataset),
            samples=len(rows),
            max_input_tokens=task.prompt_tokens,
            sentences="none",
        ),
        server=ServerRecord(
            endpoint=task.endpoint or task.url,
            api=Api(task.api),
            replicas=[f"http://127.0.0.1:{port}" for port in task.more_ports],
            model_name="mock",
            max_model_len=131_072,
            version="0.32.0",
            owned=False,
        ),
    )


def _result(folder: Path, tokens: int) -> Result:
    made = read_performance(folder)
    names = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
    return Result(
        queries=made.samples,
        tokens=tokens,
        wall_s=made.samples / made.samples_per_second,
        **{name: float(made.figures[name]) for name in names if name in made.figures},
    )
