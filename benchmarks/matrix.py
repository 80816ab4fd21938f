"""Every benchmark, round and scenario that can be run, each as a rehearsal from the command line to the checked tree.

    python benchmarks/matrix.py [--only=ROUND/BENCHMARK/SCENARIO,…] [--inference_src=DIR] [--page=FILE] [--json=FILE]

The cells are found from the rules and from what this version can run. One server is started for each model and kept;
each cell is one run of the main job against it (--api_server), into a folder of its own. --only takes patterns as
`v6.1/*/Offline`. The outcome of each cell is kept in a file as soon as it is known; the same command again runs what is
missing or failed, all with --again. A cell is refused where a limit of the machine is too low for it (ulimit -n, say).
--page writes the table of all cells to a page. The model is the tiny one, whose answers are shorter than those of the
benchmark's own: the factor is measured, and shown where the rules publish the length.
"""

import argparse
import fnmatch
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path

from msgspec.structs import replace

from cm4vllm.assets.tiny.stand_ins import STAND_INS
from cm4vllm.campaign.job_checks.capabilities import runnable_benchmarks
from cm4vllm.common.clock import now
from cm4vllm.common.errors import LimitTooLow
from cm4vllm.common.files import write_text
from cm4vllm.common.programs.own_program import commit_of_this_repository
from cm4vllm.common.records import read_record
from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.memory import detect_memory
from cm4vllm.hardware.readiness import machine_limits
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.rules import benchmark_terms, catalogue, round_names
from figures import CM, Figure, figure, report
from matrix_cells import Cell, Cells, Ran, page, reasons, table

#: Seconds that a server may take until it serves, with all that it installs, and that one cell may take.
START_S, CELL_S = 1800, 1800
#: Where the outcomes of the cells are kept.
KEPT = Path(__file__).with_name("matrix_cells.json")


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


def model_of(cell: Cell) -> tuple[str, str]:
    """Return the name of the stand-in that serves a cell, and the benchmark whose stand-in it is."""
    stand_in = catalogue().benchmark(cell.benchmark).stand_in
    return STAND_INS[stand_in].name, cell.benchmark if stand_in != "tiny" else "llama3.1-8b"


@contextmanager
def served(benchmark: str, folder: Path) -> Iterator[str]:
    """Serve a benchmark's stand-in as run,vllm-server does, and yield its URL. Raises RuntimeError if it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            [CM, "run", "script", "--tags=run,vllm-server", "--quiet", f"--model={benchmark}"],
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


def command(cell: Cell, url: str, out: Path, more: Sequence[str]) -> list[str]:
    """Return the words of the main job for a cell, as a user types them."""
    tags = f"run-mlperf,inference,_vllm,_tiny,_r{cell.round.removeprefix('v')}"
    return [
        *(str(CM), "run", "script", f"--tags={tags}", "--quiet"),
        f"--model={cell.benchmark}",
        f"--scenario={cell.scenario}",
        f"--api_server={url}",
        f"--vllm_model_name={model_of(cell)[0]}",
        f"--output_dir={out}",
        *more,
    ]


def run(cell: Cell, url: str, folder: Path, more: Sequence[str]) -> Ran:
    """Rehearse one cell."""
    out, begin = folder / cell.name, time.monotonic()
    words = command(cell, url, out, more)
    commit = commit_of_this_repository()[:7] or "unknown"  # so many digits as git shows
    ran = Ran(cell=cell, took_s=CELL_S, date=now(), machine=machine(), command=shown(words), commit=commit)
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CELL_S)
    except subprocess.TimeoutExpired:
        return replace(ran, error=f"not done after {CELL_S} s")
    ran = replace(ran, took_s=round(time.monotonic() - begin, 1))
    if done.returncode:
        error = error_of(done.stdout + done.stderr).replace(str(folder), "…")  # outcomes are published
        return replace(ran, error=error, refused=done.returncode == LimitTooLow.exit_code)
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
    """Read what a cell left: the run's figures, and whether it ended in a tree."""
    records = sorted(out.glob(f"runs/*/*/{ran.cell.scenario}/performance/{RUN_FILE}"))
    if not records:
        return replace(ran, error=f"no {RUN_FILE} of a performance run")
    if not (out / "submission").is_dir():
        return replace(ran, error="no submission tree")
    made = read_performance(records[0].parent)
    tokens, samples = float(made.figures.get("tokens_per_second", 0.0)), float(made.samples_per_second)
    targets = {target.metric: target.reference for target in read_record(records[0], RunRecord).settings.terms.targets}
    published = targets.get("TOKENS_PER_SAMPLE")
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


def main() -> int:
    """Run the cells that are asked for and print the table; return 1 where one failed."""
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
    parser.add_argument("--again", action="store_true", help="run also the cells that are kept")
    parser.add_argument("--cells", type=Path, default=KEPT, metavar="FILE", help="what ran, and is kept (%(default)s)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table of all cells to FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    asked = parser.parse_args()
    chosen, kept = cells(asked.only.split(",")), Cells.kept(asked.cells)
    if not chosen:
        parser.error(f"no cell fits {asked.only}; --list shows them")
    if asked.list:
        print("\n".join(cell.name for cell in chosen))
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        kept = run_cells(chosen, kept, asked)
    if asked.page:
        write_text(asked.page, page(cells(), kept.ran))
    if asked.list:
        return 0
    ran = [kept.ran[cell.name] for cell in chosen if cell.name in kept.ran]
    print(table(chosen, kept.ran), *reasons(ran), sep="\n")
    return report(figures(ran), asked.json)


def run_cells(chosen: Sequence[Cell], kept: Cells, asked: argparse.Namespace) -> Cells:
    """Run the cells that are missing or failed, model by model, and return all that are kept."""
    checkers = f"--inference_src={Path(asked.inference_src).absolute()}" if asked.inference_src else "--run_checker=no"
    more, folder = [f"--test_query_count={asked.test_query_count}", checkers], asked.output_dir.absolute()

    def is_kept(cell: Cell) -> bool:
        earlier = kept.ran.get(cell.name)
        own = shown(command(cell, "", folder, more))
        return earlier is not None and not earlier.error and earlier.command == own

    todo = [cell for cell in chosen if asked.again or not is_kept(cell)]
    for (name, benchmark), together in groupby(sorted(todo, key=model_of), model_of):
        with served(benchmark, folder / name) as url:
            for cell in together:
                done = run(cell, url, folder, more)
                kept = kept.with_one(done, asked.cells)
                rate, unit = done.rate
                ended = f"{'refused: ' if done.refused else ''}{done.error}"
                print(f"{cell.name}: {ended or f'{done.took_s:.0f} s, {rate:,.0f} {unit}'}", flush=True)
    return kept


if __name__ == "__main__":
    sys.exit(main())
