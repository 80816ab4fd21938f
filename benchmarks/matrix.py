"""Every benchmark, round and scenario that can be run, each as a rehearsal from the command line to the checked tree.

    python benchmarks/matrix.py [--only=ROUND/BENCHMARK/SCENARIO,…] [--inference_src=DIR] [--page=FILE] [--json=FILE]

The cells are found from the rules and from what this version can run. One server is started for each model and kept;
each cell is one run of the main job against it (--api_server), into a folder of its own. --only takes patterns as
`v6.1/*/Offline`. The outcome of each cell is kept in a file as soon as it is known; the same command again runs what is
missing or failed, all with --again. A cell is refused where a limit of the machine is too low for it (ulimit -n, say).
--page writes the table of all cells to a page. The model is the tiny one, whose answers are shorter than those of the
benchmark's own: the factor is measured, and shown where the rules publish the length. --true_lengths takes random
weights (_dummy) instead, with answers of the published length; their prompts are still the stand-in's, and only the
performance is measured, since nothing else can be of them.
"""

import argparse
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

from msgspec.structs import replace

from cm4vllm.assets import dummy
from cm4vllm.assets.tiny.stand_ins import STAND_INS
from cm4vllm.campaign.job_checks.capabilities import runnable_benchmarks
from cm4vllm.common.errors import LimitTooLow
from cm4vllm.common.files import write_text
from cm4vllm.common.programs.own_program import commit_of_this_repository
from cm4vllm.common.records import now, read_record
from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.memory import detect_memory
from cm4vllm.hardware.readiness import machine_limits
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.rules import Mode, benchmark_terms, catalogue, round_names, terms
from figures import CM, Figure, figure, report
from matrix_cells import Cell, Cells, Ran, page, reasons, table

#: Seconds that a server may take until it serves, with all that it installs, and that one cell may take.
START_S, CELL_S = 1800, 1800
#: Where the outcomes of the cells are kept.
KEPT = Path(__file__).with_name("matrix_cells.json")
#: Context that is left for the prompts of the stand-in's dataset.
_PROMPT = 2048


@dataclass(frozen=True)
class Model:
    """A model to serve: `tag` chooses it in the main job, `name` is its name on the server.

    `benchmark` is the benchmark whose stand-in it is, empty for random weights.
    """

    tag: str
    name: str
    benchmark: str = ""


def cells(only: Sequence[str] = ("*",)) -> list[Cell]:
    """Return the cells whose names fit one of the patterns, newest round first."""
    all_cells = [
        Cell(round=round_name, benchmark=benchmark, scenario=scenario)
        for round_name in reversed(round_names())
        for benchmark in runnable_benchmarks(round_name)
        for scenario in benchmark_terms(round_name, benchmark).scenarios
        if scenario not in benchmark_terms(round_name, benchmark).refused
    ]
    return [cell for cell in all_cells if any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in only)]


def model_of(cell: Cell, layers: int | None, *, true_lengths: bool) -> Model:
    """Return what serves a cell."""
    stand_in = catalogue().benchmark(cell.benchmark).stand_in
    if not true_lengths or stand_in != "tiny":
        of = cell.benchmark if stand_in != "tiny" else "llama3.1-8b"
        return Model("_tiny", STAND_INS[stand_in].name, of)
    known = dummy.known_model(cell.benchmark)
    return Model(f"_dummy.{known}", dummy.dummy_name(known, layers))


@contextmanager
def served(model: Model, asked: Sequence[str], folder: Path, longest: int) -> Iterator[str]:
    """Serve a model as run,vllm-server does, and give its URL. Raises RuntimeError where it does not start."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"--model={model.benchmark}"]
    if not model.benchmark:
        made = subprocess.run(
            [CM, "run", "script", f"--tags=get,ml-model,{model.tag}", "--quiet", "--out=json", *asked],
            capture_output=True,
            text=True,
            check=True,
            timeout=START_S,
        ).stdout
        record = json.loads(made[made.index("{") :])["new_env"]["CM_ML_MODEL_RECORD"]
        words = [f"--model_record={record}", f"--max_model_len={longest + _PROMPT}"]
    log = folder / "server.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            [CM, "run", "script", "--tags=run,vllm-server", "--quiet", *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _url(process, log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=120)


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        if match := re.search(r"--api_server=(http://\S+)", log.read_text(errors="replace")):
            return match[1]
        time.sleep(1)
    raise RuntimeError(f"the server did not start:\n{error_of(log.read_text(errors='replace'))}")


def longest(cell: Cell) -> int:
    """Return the length of a cell's longest answer, in tokens."""
    return max(terms(cell.round, cell.benchmark, cell.scenario, mode).generation.max_tokens for mode in Mode)


def command(cell: Cell, model: Model, url: str, out: Path, more: Sequence[str]) -> list[str]:
    """Return the words of the main job for a cell, as a user types them."""
    tags = f"run-mlperf,inference,_vllm,{model.tag},_r{cell.round.removeprefix('v')}"
    return [
        str(CM),
        "run",
        "script",
        f"--tags={tags}",
        "--quiet",
        f"--model={cell.benchmark}",
        f"--scenario={cell.scenario}",
        f"--api_server={url}",
        f"--vllm_model_name={model.name}",
        f"--output_dir={out}",
        *more,
    ]


def run(cell: Cell, model: Model, url: str, folder: Path, more: Sequence[str]) -> Ran:
    """Rehearse one cell."""
    out, begin = folder / cell.name, time.monotonic()
    words = command(cell, model, url, out, more)
    commit = commit_of_this_repository()[:7] or "unknown"  # so many digits as git shows
    asked = Ran(cell=cell, took_s=0, date=now(), machine=machine(), command=shown(words), commit=commit)
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CELL_S)
    except subprocess.TimeoutExpired:
        return replace(asked, took_s=CELL_S, error=f"not done after {CELL_S} s")
    ran = replace(asked, took_s=round(time.monotonic() - begin, 1))
    if done.returncode:
        refused = done.returncode == LimitTooLow.exit_code
        error = error_of(done.stdout + done.stderr).replace(str(folder), "…")  # outcomes are published
        return replace(ran, error=error, refused=refused)
    return outcome(ran, out / "test")


def shown(words: Sequence[str]) -> str:
    """Return a command as a user types it, without what names servers and folders of this machine."""
    of_here = ("--api_server=", "--output_dir=", "--inference_src=")
    flags = [f"{word.partition('=')[0]}=…" if word.startswith(of_here) else word for word in words[1:]]
    return " ".join(["cm", *flags])


@cache
def machine() -> str:
    """Return processors, memory and open files of this machine in words."""
    cpu, memory, files = detect_cpu(), detect_memory(), machine_limits().open_files
    return (
        f"{cpu.logical_cpus} processors ({cpu.model_name}), {memory.usable_bytes / 2**30:.0f} GiB of memory, "
        f"{'no limit of open files' if files is None else f'{files:,} open files a process (ulimit -Hn)'}"
    )


def outcome(ran: Ran, out: Path) -> Ran:
    """Read what a cell left: the run's figures, and whether it ended in a tree, as all but random weights do."""
    records = sorted(out.glob(f"runs/*/*/{ran.cell.scenario}/performance/{RUN_FILE}"))
    if not records:
        return replace(ran, error=f"no {RUN_FILE} of a performance run")
    settings = read_record(records[0], RunRecord).settings
    if not settings.model.is_dummy and not (out / "submission").is_dir():
        return replace(ran, error="no submission tree")
    made = read_performance(records[0].parent)
    tokens, samples = float(made.figures.get("tokens_per_second", 0.0)), float(made.samples_per_second)
    published = next(
        (target.reference for target in settings.terms.targets if target.metric == "TOKENS_PER_SAMPLE"), None
    )
    return replace(
        ran,
        tokens_per_second=round(tokens, 1),
        samples_per_second=round(samples, 2),
        factor=f"{tokens / samples / published:.3f}" if published else "",
    )


def error_of(text: str) -> str:
    """Return the error that a command ended with, in one line."""
    _, separator, message = text.rpartition("CM error:")
    return " ".join((message if separator else text[-300:]).split()) or "it ended without a message"


def figures(ran: Sequence[Ran]) -> Iterator[Figure]:
    """Yield the figures of the cells that ran, and the share of those that ran or were refused."""
    for done in ran:
        if not done.error:
            yield figure(f"{done.cell.name}, time", [done.took_s], "s")
            rate, unit = done.rate
            if rate:
                yield figure(f"{done.cell.name}, {unit}", [rate], unit)
    yield figure("cells that did not fail", [sum(not done.failed for done in ran) / len(ran)], "share", at_least=1)


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--only", default="*", metavar="PATTERN,…", help="as v6.1/*/Offline (all)")
    parser.add_argument("--list", action="store_true", help="print the cells and run nothing")
    parser.add_argument("--output_dir", type=Path, default=Path("matrix-results"), help="%(default)s")
    parser.add_argument("--test_query_count", type=int, default=32, help="samples of a run (%(default)s)")
    parser.add_argument(
        "--inference_src",
        metavar="DIR",
        help="mlcommons/inference, for the official checkers; without it they are left out",
    )
    parser.add_argument("--true_lengths", action="store_true", help="random weights, answers of the published length")
    parser.add_argument("--dummy_layers", type=int, help="with --true_lengths: layers of each model; all otherwise")
    parser.add_argument("--again", action="store_true", help="run also the cells that are kept")
    parser.add_argument("--cells", type=Path, default=KEPT, metavar="FILE", help="what ran, and is kept (%(default)s)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table of all cells to FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    asked = parser.parse_args()
    asked.cells_asked = cells(asked.only.split(","))
    if not asked.cells_asked:
        parser.error(f"no cell fits {asked.only}; --list shows them")
    return asked


def main() -> int:
    """Run the cells that are asked for and print the table; return 1 where one failed."""
    asked = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ran = run_cells(asked) if not asked.list else Cells.kept(asked.cells)
    if asked.list:
        print("\n".join(cell.name for cell in asked.cells_asked))
    else:
        print(table(asked.cells_asked, ran.ran))
        print("\n".join(reasons([ran.ran[cell.name] for cell in asked.cells_asked if cell.name in ran.ran])))
    if asked.page:
        write_text(asked.page, page(cells(), ran.ran))
    here = [ran.ran[cell.name] for cell in asked.cells_asked if cell.name in ran.ran]
    return 0 if asked.list else report(figures(here), asked.json)


def run_cells(asked: argparse.Namespace) -> Cells:
    """Run the cells that are missing or failed, model by model, and return all that are kept."""
    layers = [f"--dummy_layers={asked.dummy_layers}"] if asked.true_lengths and asked.dummy_layers else []
    checkers = f"--inference_src={Path(asked.inference_src).absolute()}" if asked.inference_src else "--run_checker=no"
    more = [f"--test_query_count={asked.test_query_count}", checkers, *layers]
    kept, folder = Cells.kept(asked.cells), asked.output_dir.absolute()

    def model(cell: Cell) -> Model:
        return model_of(cell, asked.dummy_layers, true_lengths=asked.true_lengths)

    def is_kept(cell: Cell) -> bool:
        earlier = kept.ran.get(cell.name)
        return bool(
            earlier and not earlier.error and earlier.command == shown(command(cell, model(cell), "", folder, more))
        )

    todo = [cell for cell in asked.cells_asked if asked.again or not is_kept(cell)]
    for served_model, group in groupby(sorted(todo, key=lambda cell: model(cell).name), model):
        together = list(group)
        with served(served_model, layers, folder / served_model.name, max(map(longest, together))) as url:
            for cell in together:
                done = run(cell, served_model, url, folder, more)
                kept = kept.with_one(done, asked.cells)
                rate, unit = done.rate
                ended = f"{'refused: ' if done.refused else ''}{done.error}"
                print(f"{cell.name}: {ended or f'{done.took_s:.0f} s, {rate:,.0f} {unit}'}", flush=True)
    return kept


if __name__ == "__main__":
    sys.exit(main())
