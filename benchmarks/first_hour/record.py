"""The parts that benchmarks/gpu.py keeps, by machine: a later command goes on from them, on another machine too."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import Path

from cm4vllm.common.records import Record, read_record, write_record
from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.hardware.size_texts import memory_size
from figures import Figure


class Outcome(StrEnum):
    """The end of a part: with all figures; not possible on the machine, or in the time; cut short; with an error."""

    MEASURED = "measured"
    LEFT_OUT = "left out"
    TIME_OVER = "time over"
    FAILED = "failed"


class PartRecord(Record, frozen=True, kw_only=True):
    """A part that was begun: when, for how many s, and what it measured until its end. `why` has the reason of others.

    `settings` says what was measured: vLLM's release, model, samples and rounds.
    """

    outcome: Outcome
    began: str
    took_s: float
    settings: str
    figures: list[Figure] = []
    why: str = ""


class HourRecord(Record, frozen=True, kw_only=True):
    """The parts by machine, as `machine_words` describes it, and by name."""

    machines: dict[str, dict[str, PartRecord]] = {}

    def with_part(self, machine: str, name: str, part: PartRecord, path: Path | None) -> HourRecord:
        """Return this record and one more part, and keep it in a file where one is given."""
        parts = {**self.machines.get(machine, {}), name: part}
        record = HourRecord(machines={**self.machines, machine: parts})
        if path is not None:
            write_record(path, record)
        return record

    def measured(self, name: str) -> dict[str, PartRecord]:
        """Return the part as it was measured, by machine."""
        every = {machine: parts[name] for machine, parts in self.machines.items() if name in parts}
        return {machine: part for machine, part in every.items() if part.outcome is Outcome.MEASURED}

    def figures(self, machine: str) -> list[Figure]:
        """Return all figures of a machine."""
        return [each for part in self.machines.get(machine, {}).values() for each in part.figures]

    def expected_s(self, name: str, machine: str, assumed_s: float) -> tuple[float, str]:
        """Return the seconds that a part is expected to take, and in words where they come from.

        A part whose time was over takes longer than it had.
        """
        here = self.machines.get(machine, {}).get(name)
        if here is not None and here.outcome is Outcome.TIME_OVER and here.took_s >= assumed_s:
            return 2 * here.took_s, f"twice the {here.took_s:.0f} s after which its time was over"
        for where, part in sorted(self.measured(name).items(), key=lambda item: item[0] != machine):
            return part.took_s, "measured" if where == machine else f"measured on {where}"
        return assumed_s, "assumed"


def kept_hour(path: Path) -> HourRecord:
    """Return what a file keeps. Raises CmError where it cannot be read."""
    return read_record(path, HourRecord)


def machine_words() -> str:
    """Return GPUs, driver and processors of this machine in words."""
    cpu, gpus = detect_cpu(), detect_gpus()
    counts = Counter((gpu.name, gpu.memory_bytes or 0, gpu.driver) for gpu in gpus)
    boards = [
        f"{count} x {name} ({memory_size(size)}), driver {driver}" for (name, size, driver), count in counts.items()
    ]
    return "; ".join([*(boards or ["no GPU"]), f"{cpu.logical_cpus} processors, {cpu.model_name}"])
