"""The share of the processor that vLLM's processes take: the same LoadGen runs against servers of different executors.

    python benchmarks/server_processes.py --vllm=VENV/bin/python --model=MODEL.json --dataset=DATASET.json [--rounds=3]

MODEL.json and DATASET.json are the records that get,ml-model and get,dataset leave in their cache entries. Each round
starts each server once and makes an Offline and a Server run against it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cm4vllm.assets.records import DatasetRecord, ModelRecord
from cm4vllm.common.records import read_record
from cm4vllm.loadgen.logs.run_logs import read_performance
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.settings import run_settings
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.rules import ExecutionMode, Mode, Scenario, terms
from cm4vllm.serving import server
from cm4vllm.serving.arguments import ServerSettings
from cm4vllm.serving.clusters.placement import in_few_processes, own_cores
from cm4vllm.serving.records import Api
from figures import arguments, figure, interleaved, ratios, report

ROUND, BENCHMARK = "v6.1", "llama3.1-8b"
#: Queries/s of the Server run: far below what the tiny model's server can do, so that TTFT is not that of a queue.
SERVER_QPS = 30.0
OFFLINE_QPS = 300.0
EXECUTORS = {"three processes (mp)": "mp", "two processes (uni)": "uni"}


def measured(executor: str, python: Path, model: ModelRecord, dataset: DatasetRecord) -> dict[str, float]:
    """Start a server with this executor, make an Offline and a Server run, and return their figures."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = ServerSettings(
            model=model.path,
            name=model.name,
            dtype="float32",
            max_model_len=2048,
            max_num_seqs=256,
            enforce_eager=True,
            api=Api.GENERATE,
            distributed_executor_backend=executor,
        )
        settings = in_few_processes(settings, 1, len(own_cores()))
        record = server.start(python, settings, Path(folder) / "server")
        try:
            for scenario, rate in ((Scenario.OFFLINE, OFFLINE_QPS), (Scenario.SERVER, SERVER_QPS)):
                wanted = terms(ROUND, BENCHMARK, scenario, Mode.PERFORMANCE)
                conf = user_conf(
                    wanted,
                    ExecutionMode.TEST,
                    target_qps=rate,
                    test_query_count=None,
                    max_test_duration_s=10,
                    dataset_samples=dataset.samples,
                )
                made = run_settings(conf, model=model, dataset=dataset, server=record)
                run(made, Path(folder) / scenario)
                result = read_performance(Path(folder) / scenario)
                figures[f"{scenario} tokens/s"] = float(result.tokens_per_second or 0.0)
                for name in ("ttft_mean", "ttft_p99", "tpot_mean", "tpot_p99"):
                    if (value := getattr(result, name)) is not None:
                        figures[f"{scenario} {name}"] = float(value)
            figures["start s"] = record.ready_after_s or 0.0
        finally:
            server.stop(record)
    return figures


def main() -> int:
    """Measure the servers in turn, and print their figures and the ratios within each round."""
    parser = arguments("vLLM's processes on few cores, by executor", rounds=3)
    parser.add_argument("--vllm", type=Path, required=True, help="the Python of a vLLM environment")
    parser.add_argument("--model", type=Path, required=True, help="model.json")
    parser.add_argument("--dataset", type=Path, required=True, help="dataset.json")
    options = parser.parse_args()
    model, dataset = read_record(options.model, ModelRecord), read_record(options.dataset, DatasetRecord)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in EXECUTORS}

    def timed_start(name: str) -> float:
        rounds[name].append(measured(EXECUTORS[name], options.vllm, model, dataset))
        return 0.0

    cases: dict[str, Callable[[], float]] = {name: partial(timed_start, name) for name in EXECUTORS}
    interleaved(cases, options.rounds)
    default, other = rounds.values()
    figures = []
    for measure in default[0]:
        for name, results in rounds.items():
            figures.append(
                figure(
                    f"{measure}, {name}",
                    [result[measure] for result in results],
                    "s" if measure == "start s" else "tokens/s" if "tokens" in measure else "ms",
                )
            )
        figures.append(
            figure(
                f"{measure}, two processes / three",
                ratios([result[measure] for result in other], [result[measure] for result in default]),
                "x",
            )
        )
    return report(figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
