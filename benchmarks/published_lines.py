"""The command lines published with results of round v4.1, run to their end on the tiny model.

    pip install -r benchmarks/requirements.txt
    python benchmarks/published_lines.py [--line=NAME] [--valid --server_target_qps=30] [-- FLAG...]

As their READMEs say, a vLLM is started by hand on port 8000, here with the tiny model under the published name. Then
the line runs as published, but for --execution_mode=test (with --valid: but for --server_target_qps, because the rate
of a GPU is none for a processor) and for the dataset, a stand-in of 24,576 samples in the published format. FLAG... is
added to the line: --inference_src and --nltk_data where there is no network. Ends with 1 where the exit code of a
command is another than 0.
"""

import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cmind
import numpy
import pandas

from clients.real_vllm import await_health
from cm4vllm.common.bounded_documents import json_of
from cm4vllm.common.programs.processes import die_with_parent
from figures import CM, arguments, figure, report

LINES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
ROUND, BENCHMARK = "v4.1", "llama2-70b-99"
PORT = 8000
#: The name of the published file, which holds a table of these columns.
DATASET = "open_orca_gpt4_tokenized_llama.sampled_24576.pkl.gz"
#: As few as let the Offline run of the tiny model last for the ten minutes of the rules on two cores.
VALID_SEQUENCES, SEQUENCES = 16, 256


def main() -> int:
    """Run the lines and print how long each took, and its exit code."""
    parser = arguments(__doc__ or "", rounds=1)
    parser.add_argument("--line", choices=[line["name"] for line in LINES], help="this one alone")
    parser.add_argument("--valid", action="store_true", help="by the rules, as published")
    parser.add_argument("--server_target_qps", type=float, help="queries/s of the Server runs, with --valid")
    parser.add_argument("--output_dir", type=Path, default=Path("mlperf-results/published-lines"))
    parser.add_argument("flags", nargs="*", metavar="FLAG", help="added to the line, after --")
    asked = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / DATASET
        model = exported_environment("get,ml-model,_tiny")["CM_ML_MODEL_PATH"]
        write_published(
            Path(
                exported_environment("get,dataset,_tiny", CM_MLPERF_ROUND=ROUND, CM_MLPERF_MODEL=BENCHMARK)[
                    "CM_DATASET_PATH"
                ]
            ),
            dataset,
        )
        for line in LINES:
            if asked.line in (None, line["name"]):
                words = [
                    *words_without_gpus(line["words"], asked.valid, asked.server_target_qps),
                    f"--dataset_path={dataset}",
                    f"--output_dir={asked.output_dir.absolute() / line['name']}",
                    *asked.flags,
                ]
                name = next(word.partition("=")[2] for word in words if word.startswith("--vllm_model_name="))
                with server(model, name, VALID_SEQUENCES if asked.valid else SEQUENCES):
                    begin = time.monotonic()
                    code = subprocess.run([CM, "run", "script", *words], check=False).returncode
                figures += [
                    figure(f"{line['name']}: time", [(time.monotonic() - begin) / 60], "min"),
                    figure(f"{line['name']}: exit code", [code], "", at_most=0),
                ]
    return report(figures, asked.json)


def exported_environment(tags: str, **env: str) -> dict[str, Any]:
    """Run a recipe and return the environment that it exports."""
    done = cmind.access(
        {"action": "run", "automation": "script", "tags": tags, "env": env, "quiet": True, "out": "con"}
    )
    if done["return"]:
        raise SystemExit(done["error"])
    return dict(done["new_env"])


def words_without_gpus(words: Sequence[str], valid: bool, server_target_qps: float | None) -> list[str]:
    """Return the published words with the one that a machine without GPUs needs otherwise."""
    if not valid:
        return [word.replace("--execution_mode=valid", "--execution_mode=test") for word in words]
    rate = f"--server_target_qps={server_target_qps}"
    return [rate if server_target_qps and word.startswith("--server_target_qps=") else word for word in words]


def write_published(ours: Path, path: Path) -> None:
    """Write rows of ours as the pickled table that MLCommons publishes: its columns, its text as Python objects."""
    rows = json_of(ours.read_bytes())
    texts = {
        "system_prompt": [""] * len(rows),
        "question": [row["input"] for row in rows],
        "input": [row["input"] for row in rows],
        "output": [row["output"] for row in rows],
        "origin": ["harbour-log"] * len(rows),
    }
    table = pandas.DataFrame(
        {
            **{name: pandas.Series(column, dtype=object) for name, column in texts.items()},
            "tok_input": [row["tok_input"] for row in rows],
            "tok_input_length": numpy.array([len(row["tok_input"]) for row in rows]),
        }
    )
    table.columns = pandas.Index(list(table.columns), dtype=object)
    # Without the time of day: a result is known by its dataset's digest, and kept when the line is repeated.
    with path.open("wb") as packed, gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as file:
        pickle.dump(table, file, protocol=4)


@contextmanager
def server(model: str, name: str, sequences: int) -> Iterator[None]:
    """Start a vLLM by hand, as the published READMEs do, and end it.

    On a machine's own processors it must leave some to the client, as the main job's own servers do: the engine
    computes in one process, with one thread less than there are processors, and has more niceness than the client. It
    is of the same session, because Linux may count niceness only among the processes of one (sched(7), autogroup).
    """
    python = exported_environment("get,vllm")["CM_VLLM_PYTHON_BIN_WITH_PATH"]
    options = (
        f"--served-model-name {name} --port {PORT} --max-num-seqs {sequences} --no-enable-prefix-caching "
        "--generation-config vllm --dtype float32 --enforce-eager --distributed-executor-backend uni"
    )
    words = ["nice", "-n", "10", python, "-m", "vllm.entrypoints.cli.main", "serve", model, *options.split()]
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) - 1)),
    }
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            words,
            stdout=log,
            stderr=log,
            env={**os.environ, **env},
            preexec_fn=partial(die_with_parent, signal.SIGTERM),
        ) as process,
    ):
        try:
            await_health(process, f"http://localhost:{PORT}")
            yield
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
