"""The parts that compare rates: GPUs as nvidia-smi lists them, Offline and Server runs beside vLLM's own generate."""

import csv
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace

from clients.generate import TOKENS
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.loadgen.settings import SERVER_STREAM_INTERVAL
from cm4vllm.records.machine import GpuFacts
from figures import Figure, figure, ratios
from first_hour.hour import WANTED, Hour, LeftOut

MIB = 2**20
_QUERY = ("name", "memory.total", "driver_version")


def detected(hour: Hour) -> Iterator[Figure]:
    """Compare NVML, as cm4vllm reads it, with nvidia-smi: the same GPUs, names, memory and driver."""
    if shutil.which("nvidia-smi") is None:
        raise LeftOut("nvidia-smi is not on PATH")
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
        raise LeftOut("vLLM's CPU backend does not quantise weights to FP8 when it starts")
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
        raise LeftOut(f"it needs two GPUs, {hour.gpus} can be used")
    if hour.real.device != "cpu":
        yield from hour.beside(f"Offline, tensor parallel {hour.gpus}", replace(hour.real, gpus=hour.gpus))
    rate = hour.served(hour.real)
    many = replace(hour.real, samples=hour.real.samples * hour.gpus)
    with many.replicas(hour.gpus) as servers:
        task = replace(many.task, api=many.api, in_flight=many.task.in_flight * hour.gpus)
        made = hour.times(lambda: many.through_loadgen(servers[0], task, servers[1:]))
    yield figure(f"Offline, {hour.gpus} replicas", [each.rate for each in made], "tokens/s")
    yield figure(f"Offline, {hour.gpus} replicas / one server", ratios([each.rate for each in made], rate), "x")
