"""The checks on a tree as large as a whole published round: `python benchmarks/published_round.py [--json=FILE]`.

The tree is generated: as many submissions, results and files as round v4.1 has, in its layout, with detail logs of the
sizes that are usual there, 1.0 GB in all; it was just written, and lies in the memory of the system: no disk is
measured. Each command is that of the recipe, in a process of its own: without anything kept, then again with what the
first one kept. The last figure is the memory of a process that reads one log of a gigabyte.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cm4vllm.records.described_system import KEYS
from cm4vllm.rules import round_terms
from figures import Figure, arguments, figure, report

ROUND = "v4.1"
#: The size of round v4.1: submissions, results of each (937 in all), files, bytes of a detail log by their share.
SUBMISSIONS, RESULTS, FILES = 26, 36, 31_500
LOG_BYTES = (25_000, 31_000, 45_000, 60_000, 86_000, 120_000, 162_000, 400_000, 700_000, 1_400_000)
PROGRAM_BYTES = 19_000
LIMIT_S, LIMIT_MB = 20.0, 300.0
BENCHMARKS = ("llama2-70b-99", "llama2-70b-99.9", "mixtral-8x7b", "resnet50", "bert-99", "dlrm-v2-99")
METADATA = {"is_error": False, "is_warning": False, "file": "results.cc", "line_no": 1, "pid": 7, "tid": 7}
CHECK = """
import sys
from pathlib import Path
from cm4vllm.results.check_command.tree_check import check_tree
if __name__ == "__main__":
    found = check_tree(Path(sys.argv[1]), keep=Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    print(sum(one.results for one in found.submissions), len(found.findings))
"""
READ = """
import resource, sys
from pathlib import Path
from cm4vllm.records.logs.detail_log import read_detail_log
assert read_detail_log(Path(sys.argv[1])).values["result_validity"] == "VALID"
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def entries(draw: random.Random) -> dict[str, object]:
    """Return the entries of a Server log of a benchmark with token latencies."""
    seeds, rate = round_terms(ROUND).seeds, draw.uniform(1, 100)
    percentiles = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")
    first = {
        f"result_first_token_{part}_percentile_latency_ns": int(2e8 * (1 + number / 5))
        for number, part in enumerate(percentiles)
    }
    each = {
        f"result_time_per_output_token_{part}_percentile_ns": int(9e7 * (1 + number / 20))
        for number, part in enumerate(percentiles)
    }
    return {
        "loadgen_version": "4.1 @ 0123456789",
        "test_datetime": "2024-07-23T21:15:26Z",
        "qsl_reported_total_count": 24576,
        "requested_scenario": "Server",
        "requested_min_duration_ms": 600000,
        "effective_scenario": "Server",
        "effective_test_mode": "PerformanceOnly",
        "effective_samples_per_query": 1,
        "effective_target_qps": round(rate, 3),
        "effective_min_duration_ms": 600000,
        "effective_performance_sample_count": 24576,
        "effective_qsl_rng_seed": seeds.qsl,
        "effective_sample_index_rng_seed": seeds.sample_index,
        "effective_schedule_rng_seed": seeds.schedule,
        "generated_query_count": 24576,
        "generated_samples_per_query": 1,
        "power_begin": "07-23-2024 21:15:26.525",
        "power_end": "07-23-2024 22:58:09.089",
        "result_validity": "VALID",
        "result_perf_constraints_met": True,
        "result_min_duration_met": True,
        "result_min_queries_met": True,
        "early_stopping_met": True,
        "early_stopping_ttft_result": " * Run successful.",
        "result_query_count": 24576,
        "result_scheduled_samples_per_sec": rate,
        "result_completed_samples_per_sec": rate * draw.uniform(0.98, 1),
        "result_completed_tokens_per_second": rate * 292,
        "result_first_token_min_latency_ns": 55_653_282,
        "result_max_latency_ns": 136_048_199_739,
        **first,
        **each,
    }


def log(draw: random.Random, size: int) -> str:
    """Return a detail log of about `size` bytes, most of them in the list of the samples that were loaded."""
    values = entries(draw) | {f"requested_setting_{number}": number for number in range(20)}
    values["loaded_qsl_set"] = [draw.randrange(24576) for _ in range(max(0, size - 18_000) // 6)]
    return "".join(line(key, value, at) for at, (key, value) in enumerate(values.items()))


def line(key: str, value: object, at: float) -> str:
    """Return an entry of a log, at a time in ms."""
    entry = {
        "key": key,
        "value": value,
        "time_ms": at,
        "namespace": "mlperf::logging",
        "event_type": "POINT_IN_TIME",
        "metadata": METADATA,
    }
    return f":::MLLOG {json.dumps(entry)}\n"


def result(draw: random.Random, home: Path, system: str, model: str, scenario: str) -> Iterator[tuple[Path, str]]:
    """Yield the files of one result with their texts: the result's, its measurements' and its compliance tests'."""
    below = Path(system) / model / scenario
    run, accuracy = home / "results" / below / "performance" / "run_1", home / "results" / below / "accuracy"
    yield run / "mlperf_log_detail.txt", log(draw, draw.choice(LOG_BYTES))
    yield run / "mlperf_log_summary.txt", "Result is : VALID\n" * 60
    yield accuracy / "mlperf_log_detail.txt", log(draw, draw.choice(LOG_BYTES))
    yield accuracy / "mlperf_log_summary.txt", "No errors encountered during test.\n" * 20
    yield accuracy / "mlperf_log_accuracy.json", '[{"seq_id": 1, "qsl_idx": 2, "data": "' + "4a060000" * 1200
    yield accuracy / "accuracy.txt", f"{{'rouge1': 44.5, 'rouge2': 22.2}}\nhash={draw.getrandbits(256):x}\n"
    measured = home / "measurements" / below
    yield measured / "user.conf", f"*.{scenario}.target_qps = 1\n"
    yield measured / "README.md", f"# {model}, {scenario}\n\n" + "Run the program in code/ as its README says.\n" * 60
    yield measured / "mlperf.conf", "*.*.min_duration = 600000\n" * 40
    yield measured / "calibration_process.adoc", "Calibrated with the benchmark's calibration dataset.\n" * 40
    yield (
        measured / f"{system}.json",
        json.dumps(
            {
                "input_data_types": "int32",
                "retraining": "N",
                "weight_data_types": "fp8",
                "starting_weights_filename": model,
                "weight_transformations": "quantization",
            }
        ),
    )
    for test in ("TEST01", "TEST06"):
        place = home / "compliance" / below / test
        yield place / "verify_accuracy.txt", "TEST PASS\n"
        yield place / "performance" / "run_1" / "mlperf_log_detail.txt", log(draw, draw.choice(LOG_BYTES[:7]))
        yield place / "performance" / "run_1" / "mlperf_log_summary.txt", "Result is : VALID\n" * 60
        yield place / "accuracy" / "accuracy.txt", "{'rouge1': 44.5}\n"


def generate(root: Path) -> tuple[int, int]:
    """Write the tree; return its files and bytes."""
    draw = random.Random(41)  # noqa: S311 - figures, not secrets
    files = size = 0

    def put(path: Path, text: str) -> None:
        nonlocal files, size
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        files, size = files + 1, size + len(text)

    homes = [root / ("open" if number % 5 == 0 else "closed") / f"Submitter{number}" for number in range(SUBMISSIONS)]
    for home in homes:
        for number in range(RESULTS):
            system, model = f"{4 + number // 12}xAccelerator", BENCHMARKS[number // 2 % len(BENCHMARKS)]
            for path, text in result(draw, home, system, model, ("Server", "Offline")[number % 2]):
                put(path, text)
            stated = dict.fromkeys(KEYS, "as stated") | {"division": home.parent.name, "submitter": home.name}
            put(home / "systems" / f"{system}.json", json.dumps(stated))
    for number in range(FILES - files):
        program = homes[number % len(homes)] / "code" / f"part{number % 40}" / f"program{number}.py"
        put(program, "a = 1\n" * (PROGRAM_BYTES // 6))
    return files, size


def timed(*argv: str) -> tuple[float, str]:
    """Run a program of Python; return its seconds and what it printed."""
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", *argv], check=True, capture_output=True, text=True)
    return time.monotonic() - begin, done.stdout.strip()


def write_large_log(path: Path, size: int) -> None:
    """Write a detail log of `size` bytes, most of them messages."""
    draw = random.Random(4)  # noqa: S311
    with path.open("w", encoding="utf-8") as file:
        head = [line(key, value, 0) for key, value in entries(draw).items()]
        file.writelines(head)
        entry = line("generic_message", "x" * 200, 1)
        for _ in range(size // len(entry)):
            file.write(entry)


def main() -> int:
    """Generate the tree, check it, print the figures; return 1 when a limit does not hold."""
    parser = arguments(__doc__ or "", rounds=3)
    parser.add_argument(
        "--folder", type=Path, help="where the tree is written, 2 GB with the log; a temporary folder by default"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        root, kept, large = Path(folder, "round"), Path(folder, "kept"), Path(folder, "large.txt")
        files, size = generate(root)
        fresh, again, cpu = [], [], []
        for _ in range(options.rounds):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds, said = timed(CHECK, str(root))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            fresh.append(seconds)
            cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            timed(CHECK, str(root), str(kept))
            again.append(timed(CHECK, str(root), str(kept))[0])
        write_large_log(large, 2**30)
        memory = [float(timed(READ, str(large))[1])]
    print(f"{files:,} files, {size / 1e9:.2f} GB; results and findings: {said}")
    figures: list[Figure] = [
        figure("whole round, nothing kept: time", fresh, "s", at_most=LIMIT_S),
        figure("whole round, nothing kept: processor time", cpu, "s"),
        figure("the same again, with what was kept: time", again, "s"),
        figure("a detail log of 1 GiB: memory", memory, "MB", at_most=LIMIT_MB),
    ]
    return report(figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
