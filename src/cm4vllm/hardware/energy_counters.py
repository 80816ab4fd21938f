"""The energy counters of this machine, read through a run: of GPU boards and of CPU packages.

The drivers of GPUs have those of boards, the kernel's powercap those of packages. A machine without a counter, or one
that a user may not read, has no energy, which is no error: why is said.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from cm4vllm.common.kernel_files import matching, number, text
from cm4vllm.common.repetition import repeated
from cm4vllm.hardware.gpus.gpu import gpus_of_processes, opened_drivers, vendors
from cm4vllm.hardware.gpus.vendor import Read
from cm4vllm.records.energy import Counter, Reading, RunEnergy, Scope, energy_of_run

#: Seconds between two readings. NVML's counter itself changes about every 0.1 s.
INTERVAL_S = 0.25
#: The reason why the energy of a run is unknown: its server runs on another machine.
ELSEWHERE = "the server runs on another machine, or is simulated"


class EnergyWatch:
    """The counters of this machine and their readings so far; `missing` says which parts have none, and why."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.counters: list[tuple[Counter, Read]] = []
        self._rows: list[tuple[float, tuple[int | None, ...]]] = []

    def add(self, counters: Sequence[tuple[Counter, Read]], why_none: str) -> None:
        """Add counters, or why there are none."""
        self.counters += counters
        self.missing += [] if counters else [why_none]

    def read(self) -> None:
        """Read all counters once; the time of the reading is the middle between its start and its end."""
        before = time.time()
        values = tuple(read() for _, read in self.counters)
        self._rows.append(((before + time.time()) / 2, values))

    def energy(self, begin: datetime, end: datetime, pids: Collection[int] = ()) -> RunEnergy:
        """Return the energy between two times; the server's processes `pids` show on which GPUs it computes."""
        rows = list(self._rows)
        readings: list[tuple[Counter, list[Reading]]] = [
            (counter, [(at, value) for at, values in rows if (value := values[place]) is not None])
            for place, (counter, _) in enumerate(self.counters)
        ]
        return energy_of_run(readings, begin, end, used=gpus_of_processes(pids), not_measured=self.missing)


@contextmanager
def energy_watched(
    *, here: bool = True, interval_s: float = INTERVAL_S, root: Path = Path("/")
) -> Iterator[EnergyWatch]:
    """Read the counters of this machine through the block; `here` says whether the server runs on it."""
    watch = EnergyWatch()
    with ExitStack() as stack:
        if here:
            drivers = stack.enter_context(opened_drivers())
            why_none = "the driver has no energy counter" if drivers else vendors()[0].why_none() or "no GPU"
            boards = [counter for vendor, library in drivers for counter in vendor.counters(library)]
            watch.add(boards, f"{Scope.GPU}: {why_none}")
            watch.add(list(package_counters(root)), _no_package(root))
        else:
            watch.missing.append(ELSEWHERE)
        if watch.counters:
            watch.read()
            stack.callback(watch.read)
            stack.enter_context(repeated(watch.read, interval_s, "energy-counters"))
        yield watch


def package_counters(root: Path = Path("/")) -> Iterator[tuple[Counter, Read]]:
    """Yield the counters of CPU packages that can be read (kernel: power/powercap/powercap.rst)."""
    for folder in _packages(root):
        largest = number(folder / "max_energy_range_uj")
        if largest is not None and number(folder / "energy_uj") is not None:
            counter = Counter(
                name=text(folder / "name"),
                scope=Scope.CPU,
                method=f"powercap, {folder.name}/energy_uj",
                unit_j=1e-6,
                wraps_at=largest,
            )
            yield counter, partial(number, folder / "energy_uj")


def _packages(root: Path) -> list[Path]:
    """Return the zones of whole packages; those of intel-rapl-mmio state the same energy again."""
    zones = matching(root / "sys/class/powercap", "*:*")
    return [zone for zone in zones if text(zone / "name").startswith("package") and "mmio" not in zone.name]


def _no_package(root: Path) -> str:
    if zones := _packages(root):
        return f"{Scope.CPU}: /sys/class/powercap/{zones[0].name}/energy_uj cannot be read; mostly root alone may"
    return f"{Scope.CPU}: the kernel shows no counter of one in /sys/class/powercap"
