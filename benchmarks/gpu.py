"""The first hour on a machine with a GPU, without network and with the vLLM that is installed there.

    python benchmarks/gpu.py --vllm_python=PYTHON [--only=PART,…] [--rounds=N] [--gpus=N] [--json=FILE]

The model is llama3.1-8b with random weights (`get,ml-model,_dummy.llama3.1-8b`), or another benchmark's; prompts and
answers have 128 tokens each. The parts:

    detected  the GPUs that cm4vllm detects beside those that nvidia-smi lists
    offline   Offline through LoadGen and a server beside vLLM's own generate in one process
    server    Server at a share of that rate, beside the same queries asked of vLLM in one process
    fp8       Offline again, with the weights quantised to FP8 by vLLM when it starts
    parallel  several GPUs: one server over all of them (tensor parallel), and one server on each (replicas)

A GPU holds one engine at a time, so what is compared is measured one after the other, each after a warm-up. A part that
this machine cannot run is left out, and the reason printed. --device=cpu with --dummy_layers=1 tries the parts on a
machine without a GPU.
"""

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clients.generate import TOKENS
from clients.real_vllm import Made, RealVllm
from cm4vllm.assets.models import ModelSettings, provide
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.loadgen.settings import SERVER_STREAM_INTERVAL
from cm4vllm.records.machine import GpuFacts
from cm4vllm.records.server import Api
from cm4vllm.serving.installation.vllm_choice import DEVICES
from figures import Figure, arguments, figure, left_out, ratios, report

#: The share of the in-process rate that a run through LoadGen and a server reaches.
WANTED = 0.97
MIB = 2**20
_QUERY = ("name", "memory.total", "driver_version")


@dataclass
class Hour:
    """The servers that are measured: `real` is vLLM with the model on one GPU. Rates in one process are kept."""

    real: RealVllm
    rounds: int
    gpus: int
    share: float
    in_process: dict[str, list[float]] = field(default_factory=dict)

    def generated(self, real: RealVllm) -> list[float]:
        """Return the tokens/s of vLLM's own generate, measured once for each way of serving."""
        name = f"{real.quantization} x {real.gpus}"
        if name not in self.in_process:
            with real.in_process() as measure:
                self.in_process[name] = [made.rate for made in self.times(measure)]
        return self.in_process[name]

    def served(self, real: RealVllm) -> list[float]:
        """Return the tokens/s of Offline runs through LoadGen against one server."""
        with real.served(real.settings()) as server:
            task = replace(real.task, api=real.api)
            return [made.rate for made in self.times(lambda: real.through_loadgen(server, task))]

    def times(self, measure: Callable[[], Made]) -> list[Made]:
        """Measure once to warm up, and then each round."""
        measure()
        return [measure() for _ in range(self.rounds)]

    def beside(self, title: str, real: RealVllm) -> Iterator[Figure]:
        """Yield the rates in one process and through LoadGen, and their ratio."""
        alone, through = self.generated(real), self.served(real)
        yield from (
            figure(f"{title}, in process", alone, "tokens/s"),
            figure(f"{title}, through LoadGen", through, "tokens/s"),
            figure(f"{title}, through LoadGen / in process", ratios(through, alone), "x", at_least=WANTED),
        )


def detected(hour: Hour) -> Iterator[Figure]:
    """Compare NVML, as cm4vllm reads it, with nvidia-smi: the same GPUs, names, memory and driver."""
    if shutil.which("nvidia-smi") is None:
        left_out("detected", "nvidia-smi is not on PATH")
        return
    said = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    yield from compared(detect_gpus(), said)


def compared(gpus: Sequence[GpuFacts], said: str) -> Iterator[Figure]:
    """Yield the figures of the GPUs `gpus` beside what nvidia-smi `said`, a line of CSV for each."""
    listed = [[cell.strip() for cell in row] for row in csv.reader(said.splitlines()) if row]
    print(
        f"detected: {', '.join(gpu.name for gpu in gpus) or 'no GPU'}; nvidia-smi: "
        f"{', '.join(row[0] for row in listed)}"
    )
    same = [
        gpu.name == name and gpu.driver == driver and abs((gpu.memory_bytes or 0) / MIB - float(memory)) < 1
        for gpu, (name, memory, driver) in zip(gpus, listed, strict=False)
    ]
    whole = max(len(gpus), len(listed), 1)
    yield figure("GPUs detected as nvidia-smi lists them", [sum(same) / whole], "share", at_least=1)


def offline(hour: Hour) -> Iterator[Figure]:
    """Offline through LoadGen beside vLLM's own generate."""
    yield from hour.beside("Offline", hour.real)


def fp8(hour: Hour) -> Iterator[Figure]:
    """Offline with FP8 weights, beside those of the model's own type."""
    if hour.real.device == "cpu":
        left_out("fp8", "vLLM's CPU backend does not quantise weights to FP8 when it starts")
        return
    yield from hour.beside("Offline, FP8", quantised := replace(hour.real, quantization="fp8"))
    yield figure("in process, FP8 / own type", ratios(hour.generated(quantised), hour.generated(hour.real)), "x")


def server(hour: Hour) -> Iterator[Figure]:
    """Server at a share of the in-process rate, beside the same load without LoadGen and HTTP."""
    qps = hour.share * min(hour.generated(hour.real)) / TOKENS
    with hour.real.in_process(qps=qps) as measure:
        alone = hour.times(measure)
    task = replace(hour.real.task, api=hour.real.api, streamed=True, interval=SERVER_STREAM_INTERVAL, qps=qps)
    with hour.real.served(hour.real.settings()) as running:
        through = hour.times(lambda: hour.real.through_loadgen(running, task))
    yield figure("Server, queries/s asked for", [qps], "queries/s")
    for name, made in (("in process", alone), ("through LoadGen", through)):
        yield from (
            figure(f"Server, {name}", [run.rate for run in made], "tokens/s"),
            figure(f"Server, {name}, TTFT p99", [run.ttft_p99 for run in made], "ms"),
            figure(f"Server, {name}, TPOT p99", [run.tpot_p99 for run in made], "ms"),
        )
    share = ratios([run.rate for run in through], [run.rate for run in alone])
    yield figure("Server, through LoadGen / in process", share, "x", at_least=WANTED)


def parallel(hour: Hour) -> Iterator[Figure]:
    """Several GPUs: tensor parallel beside generate over as many, and replicas beside one GPU."""
    if hour.gpus < 2:
        left_out("parallel", f"it needs two GPUs, {hour.gpus} can be used")
        return
    if hour.real.device != "cpu":
        yield from hour.beside(f"Offline, tensor parallel {hour.gpus}", replace(hour.real, gpus=hour.gpus))
    rate = hour.served(hour.real)
    many = replace(hour.real, samples=hour.real.samples * hour.gpus)
    with many.replicas(hour.gpus) as servers:
        task = replace(many.task, api=many.api, in_flight=many.task.in_flight * hour.gpus)
        made = hour.times(lambda: many.through_loadgen(servers[0], task, servers[1:]))
    yield figure(f"Offline, {hour.gpus} replicas", [each.rate for each in made], "tokens/s")
    yield figure(f"Offline, {hour.gpus} replicas / one server", ratios([each.rate for each in made], rate), "x")


PARTS: dict[str, Callable[[Hour], Iterator[Figure]]] = {
    "detected": detected,
    "offline": offline,
    "server": server,
    "fp8": fp8,
    "parallel": parallel,
}


def main() -> int:
    """Measure the parts that are asked for, and print the table."""
    parser = arguments(__doc__.split("\n")[0], rounds=3, parts=PARTS)
    parser.add_argument("--vllm_python", required=True, metavar="PYTHON", help="a Python that has vllm")
    parser.add_argument("--device", choices=DEVICES, default="cuda", help="%(default)s")
    parser.add_argument(
        "--api",
        type=Api,
        choices=(Api.GENERATE, Api.COMPLETIONS),
        default=Api.GENERATE,
        help="how the server is asked; %(default)s needs a vLLM that has --enable-scale-out (%(default)s)",
    )
    parser.add_argument("--gpus", type=int, help="how many are used together in `parallel`; all otherwise")
    parser.add_argument("--model", default="llama3.1-8b", help="benchmark or name of the catalogue (%(default)s)")
    parser.add_argument("--dummy_layers", type=int, help="this many of the model's layers; all otherwise")
    parser.add_argument("--samples", type=int, default=4096, help="queries of a run on one GPU (%(default)s)")
    parser.add_argument("--sequences", type=int, default=256, help="--max-num-seqs of vLLM (%(default)s)")
    parser.add_argument("--share", type=float, default=0.8, help="of the in-process rate, for Server (%(default)s)")
    asked = parser.parse_args()
    gpus = asked.gpus or len(detect_gpus())
    with tempfile.TemporaryDirectory() as folder:
        model = provide(ModelSettings(source="dummy", location=asked.model, layers=asked.dummy_layers), Path(folder))
        print(f"DUMMY WEIGHTS: {model.name}, {model.parameters:,} parameters; {gpus} GPUs")
        real = RealVllm(
            python=asked.vllm_python,
            model=Path(model.path),
            samples=asked.samples,
            sequences=asked.sequences,
            device=asked.device,
            load_format="dummy",
            eager=asked.device == "cpu",
            api=asked.api,
        )
        hour, figures = Hour(real, asked.rounds, gpus, asked.share), []
        for part_figure in (part_figure for name in asked.only for part_figure in PARTS[name](hour)):
            print(f"{part_figure.name}: {part_figure.value:,.4g} {part_figure.unit}", flush=True)
            figures.append(part_figure)
        return report(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
