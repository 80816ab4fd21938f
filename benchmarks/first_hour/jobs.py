"""The parts that are the main job, `cm run script --tags=run-mlperf,inference,_vllm`, on the tiny stand-in."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cm4vllm.common.records import read_record
from cm4vllm.records.energy import Scope
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.records.searches.rate_search import SEARCH_FILE, SearchRecord
from cm4vllm.records.server import ServerRecord
from fault_injection.trial import JobKind
from faults import REAL_FAULTS, REAL_JOB, tried
from figures import CM, Figure, figure
from first_hour.hour import Hour, LeftOut
from matrix import error_of

_KILLED = "kill -9 of cm"
#: The seed with which the fault comes during the accuracy run of the Server scenario: the Offline runs are to be kept.
_SEED = 1


def words(python: str, folder: Path, *more: str) -> list[str]:
    """Return the main job with the vLLM of a Python, for a machine without network; its results are below `folder`."""
    return [
        *(str(CM), "run", "script", "--tags=run-mlperf,inference,_vllm", "--quiet", "--run_checker=no"),
        *("--adr.vllm.tags=_system", f"--vllm_python={python}", f"--output_dir={folder / 'results'}", *more),
    ]


def rehearsal(hour: Hour) -> Iterator[Figure]:
    """Rehearse as the first command of the README does: from the server to the tree."""
    with tempfile.TemporaryDirectory() as place:
        out, took_s = _done(hour, Path(place))
        yield figure("Rehearsal, time", [took_s], "s")
        for path in sorted(out.glob("server/**/server.json")):
            yield figure("Rehearsal, server ready after", [read_record(path, ServerRecord).ready_after_s or 0.0], "s")
        yield from run_figures("Rehearsal", out)
        yield figure("Rehearsal, a tree was built", [float((out / "submission").is_dir())], "share", at_least=1)


def search(hour: Hour) -> Iterator[Figure]:
    """Search for the target rate of the Server scenario, as short as a rehearsal does."""
    with tempfile.TemporaryDirectory() as place:
        out, took_s = _done(hour, Path(place), "--find_target_qps=yes", "--scenario=Offline,Server")
        yield figure("Search, time of the job", [took_s], "s")
        yield from search_figures(out)
        yield from run_figures("Search", out)


def search_figures(out: Path) -> Iterator[Figure]:
    """Yield what the searches below a campaign's folder found, and by how many probes."""
    for path in sorted(out.glob(f"search/**/{SEARCH_FILE}")):
        record = read_record(path, SearchRecord)
        yield figure("Search, rate found", [record.rate], "queries/s")
        yield figure("Search, probes", [float(len(record.probes))], "probes", at_least=1)


def killed(hour: Hour) -> Iterator[Figure]:
    """Kill the main job in a LoadGen run, and have the same command go on: nothing is lost, nothing is left."""
    _require_home()
    kind: JobKind = replace(REAL_JOB, argv=lambda folder: [*words(hour.real.python, folder), *_few_samples()])
    began = time.monotonic()
    trial = tried(_SEED, kind, {_KILLED: REAL_FAULTS[_KILLED]})
    if not trial.hit:
        raise RuntimeError(f"the job ended before it could be killed: {'; '.join(trial.wrong)}")
    print(f"{trial.name} at {trial.share:.0%} of {trial.run}: {'; '.join(trial.wrong) or 'nothing is wrong'}")
    yield figure("kill -9, moment in the job", [trial.moment_s], "s")
    yield figure("kill -9, time of both commands", [time.monotonic() - began], "s")
    yield figure("kill -9, what was lost, left or wrong", [float(len(trial.wrong))], "things", at_most=0)


def _few_samples() -> Sequence[str]:
    """Return the flags of the real job that set its size."""
    return [word for word in REAL_JOB.argv(Path()) if word.startswith("--test_query_count=")]


def run_figures(title: str, out: Path) -> Iterator[Figure]:
    """Yield rate, energy and validity of the performance runs below a campaign's folder.

    Raises RuntimeError where there is none.
    """
    valid = []
    for path in sorted(out.glob(f"runs/*/*/*/performance/{RUN_FILE}")):
        record, made = read_record(path, RunRecord), read_performance(path.parent)
        name = f"{title}, {record.settings.title}"
        valid.append(float(made.valid))
        yield figure(name, [float(made.figures.get("tokens_per_second", 0.0))], "tokens/s")
        if record.energy is not None and (boards := record.energy.serving(Scope.GPU)):
            yield figure(f"{name}, energy of the boards", [sum(counter.joules for counter in boards)], "J")
    if not valid:
        raise RuntimeError("the job left no performance run")
    yield figure(f"{title}, runs that are valid", [sum(valid) / len(valid)], "share", at_least=1)


def _require_home() -> None:
    if not CM.is_file():
        raise LeftOut(f"{CM} is missing: the command cm is in the environment that `make setup` makes")
    if not os.environ.get("CM_REPOS"):
        raise LeftOut("CM_REPOS names no CM home")


def _done(hour: Hour, folder: Path, *more: str) -> tuple[Path, float]:
    """Run the main job; return the folder of its campaign and the seconds it took. Raises RuntimeError if it fails."""
    _require_home()
    began, log = time.monotonic(), folder / "job.log"
    argv = words(hour.real.python, folder, *more)
    with log.open("wb") as file:
        code = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT).returncode
    if code:
        error = error_of(log.read_text(errors="replace")).replace(str(folder), "…")  # outcomes are published
        raise RuntimeError(f"the job ended with {code}: {error}")
    return folder / "results" / "test", time.monotonic() - began
