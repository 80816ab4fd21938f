"""Energy of a run by counters: composed traces of NVML's counter, one of a GPU under load, and kernel files.

The sums of the composed traces, with wraps and resets, are worked out beside them. recordings/h200-energy.csv was
recorded on an NVIDIA H200 through an Offline run of llama3.1-8b with random weights (vLLM 0.26.0, 26 November 2026):
the board's counter and its power every 0.05 s, in seconds from the begin of the run's window.
"""

import contextlib
import csv
import itertools
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from cm4vllm.hardware.gpus.vendors import amd, nvml
from cm4vllm.hardware.machine_samples import ELSEWHERE, energy_watched, package_counters
from cm4vllm.records.energy import Counter, Reading, Scope, energy_between, energy_of_run
from gpu_replay import Replay

RECORDING = json.loads((Path(__file__).parent / "recordings" / "h100-sxm-x4.json").read_text())
QUESTION = "nvmlDeviceGetTotalEnergyConsumption"
BEGIN = datetime(2026, 11, 24, 12, tzinfo=UTC)
NVML = Counter(name="GPU 0", scope=Scope.GPU, method=f"NVML, {QUESTION}", unit_j=1e-3, wraps_at=2**64, device="GPU-0")
#: The composed trace: seconds from its first reading, and the power of the board in W from then on.
POWERS = ((0.0, 120.0), (10.0, 690.0), (400.0, 540.0), (610.0, 120.0))
SECONDS, STEP_S = 620.0, 0.25
#: The window of the run in the trace, and its energy by hand: 390 s at 690 W, 200 s at 540 W.
WINDOW = (10.0, 600.0)
BY_HAND_J = 390 * 690.0 + 200 * 540.0


def composed(start: int = 5_000_000, *, reset_at: float | None = None, wrap: int = 2**64) -> list[Reading]:
    """Return readings every quarter of a second of a counter in mJ that begins at `start`."""
    readings, value, zero = [], start, False
    for number in range(int(SECONDS / STEP_S) + 1):
        at = number * STEP_S
        if reset_at is not None and at >= reset_at and not zero:
            value, zero = 0, True  # what was counted since the reading before is lost
        readings.append((BEGIN.timestamp() + at, value))
        watts = next(power for since, power in reversed(POWERS) if since <= at)
        value = (value + round(watts * STEP_S * 1e3)) % wrap
    return readings


def joules(readings: list[Reading], shift: float = 0.0, counter: Counter = NVML):
    begin, end = (BEGIN.timestamp() + second + shift for second in WINDOW)
    energy = energy_between(counter, readings, begin, end)
    assert not isinstance(energy, str)
    return energy


@pytest.mark.parametrize(
    ("readings", "wraps", "resets"),
    [
        (composed(), 0, 0),
        (composed(2**64 - 100_000_000), 1, 0),
        (composed(2**32 - 100_000_000, wrap=2**32), 0, 1),  # a counter of 32 bits, where 64 are stated: like a reset
        (composed(reset_at=300.0), 0, 1),
        (composed(2**64 - 100_000_000, reset_at=500.0), 1, 1),
    ],
    ids=["plain", "wrap", "unknown wrap", "reset", "wrap and reset"],
)
def test_the_energy_of_a_composed_trace_is_that_of_the_hand(readings: list[Reading], wraps: int, resets: int) -> None:
    energy = joules(readings)
    assert energy.joules == pytest.approx(BY_HAND_J, rel=1e-3)
    assert (energy.wraps, energy.resets) == (wraps, resets)
    if not resets:
        assert energy.joules == pytest.approx(BY_HAND_J, abs=1e-3) and energy.within_j == 0
    else:  # a quarter of a second at most is missing, and nothing is put in its place
        assert BY_HAND_J - 690 * STEP_S <= energy.joules < BY_HAND_J


def test_an_end_between_two_readings_is_within_the_stated_resolution() -> None:
    energy = joules(composed(), shift=0.1)
    by_hand = BY_HAND_J - 0.1 * 690 + 0.1 * 540
    assert energy.joules == pytest.approx(by_hand, abs=1e-3)
    assert 0 < energy.within_j <= (690 + 540) * STEP_S
    assert energy.first[0] == pytest.approx(-0.1) and energy.last[0] == pytest.approx(590.15, abs=0.01)


PACKAGE = Counter(name="package-0", scope=Scope.CPU, method="powercap", unit_j=1e-6, wraps_at=262_143_328_850)


@pytest.mark.parametrize(
    ("counter", "readings", "joules", "wraps"),
    [
        # The largest value of a package is not a reset.
        (PACKAGE, [(0.0, 262_143_000_000), (1.0, 99_671_150), (2.0, 199_671_150)], 200.0, 1),
        # A counter that is renewed once a second has not stopped.
        (NVML, [(STEP_S * step, 7_000 + int(STEP_S * step) * 100_000) for step in range(81)], 2_000.0, 0),
        # A package that idles at 0.5 W.
        (PACKAGE, [(STEP_S * step, step * 125_000) for step in range(81)], 10.0, 0),
    ],
)
def test_readings_that_look_like_those_of_no_board_are_measured(counter, readings, joules, wraps) -> None:
    stated = energy_between(counter, readings, 0.0, readings[-1][0])
    assert not isinstance(stated, str) and stated.joules == pytest.approx(joules)
    assert (stated.wraps, stated.resets) == (wraps, 0)


def test_the_energy_of_a_gpu_under_load_is_that_of_finer_readings_and_near_that_of_its_power() -> None:
    with (Path(__file__).parent / "recordings" / "h200-energy.csv").open() as file:
        rows = [(float(at), int(energy), int(power) / 1e3) for at, energy, power in list(csv.reader(file))[1:]]
    fine = [(at, energy) for at, energy, _ in rows]
    for phase, begin in itertools.product(range(5), (0.0, 3.03, 7.77)):
        stated = energy_between(NVML, fine[phase::5], begin, 22.622)  # every 0.25 s, as in a run
        finer = energy_between(NVML, fine, begin, 22.622)
        by_power = sum(
            (power + after) / 2 * (until - at)
            for (at, _, power), (until, _, after) in itertools.pairwise(rows)
            if begin <= at and until <= 22.622
        )
        assert not isinstance(stated, str) and not isinstance(finer, str)
        assert abs(stated.joules - finer.joules) <= stated.within_j + finer.within_j < 0.03 * finer.joules
        assert stated.joules == pytest.approx(by_power, rel=0.03)


def test_a_run_that_the_readings_do_not_cover_and_another_board_do_not_count() -> None:
    begin, end = BEGIN, BEGIN + timedelta(seconds=SECONDS + 5)
    energy = energy_of_run([(NVML, composed())], begin, end, used=[], not_measured=["CPU package: none"])
    assert energy.counters == [] and energy.serving(Scope.GPU) == []
    assert energy.not_measured == ["CPU package: none", "GPU 0: its counter was not read before and after the run"]
    energy = energy_of_run([(NVML, composed())], begin, begin + timedelta(seconds=100), used=["GPU-1"], not_measured=[])
    assert len(energy.counters) == 1 and energy.serving(Scope.GPU) == []


def stopping(after_s: float, until_s: float = 600.0, watts: float = 100.0) -> list[Reading]:
    """Return readings of a board that draws `watts`, whose counter stops after some seconds."""
    times = [number * STEP_S for number in range(int(until_s / STEP_S) + 1)]
    return [(at, 5_000 + round(min(at, after_s) * watts * 1e3)) for at in times]


@pytest.mark.parametrize(
    ("readings", "why"),
    [
        ([(0.0, 7_000), (1.0, 7_000), (2.0, 7_000)], "its counter stayed at 7,000 for 2 s"),
        ([(0.0, 0), (1.0, 0), (2.0, 0)], "its counter stayed at 0 for 2 s"),
        ([(0.0, 1_000), (600.0, 1_001)], "its counter stayed at 1,000 for 600 s"),
        (stopping(600.0, watts=1 / 600e3), "its counter stayed at 5,000 for 2 s"),
        (stopping(1.0), "its counter stayed at 105,000 for 2 s"),
        (stopping(590.0), "its counter stayed at 59,005,000 for 2 s"),
        # One reading is lower than the one before: 40 times the true energy, if what it states were counted as new.
        ([(0.0, 30_000_000), (0.5, 29_999_000), (2.0, 30_750_000)], "its counter went back from 30,000,000 to 29,999"),
        ([(0.0, 9_000_000_000), (1.0, 8_000_000_000), (2.0, 8_000_400_000)], "its counter went back from 9,000,000"),
        # A small counter: whether it began at 0 again or made an error is not known.
        ([(0.0, 100_000), (1.0, 99_000), (2.0, 199_000)], "its counter went back from 100,000 to 99,000"),
        ([(0.0, 100_000), (1.0, 0), (2.0, 100_000)], "its counter went back from 100,000 to 0"),
        ([(0.0, 5_001_000), (1.0, 4_999_000), (2.0, 5_099_000)], "its counter went back from 5,001,000 to 4,999,000"),
        ([(0.0, 1_000), (1.0, 90_000_000_000), (2.0, 90_000_400_000)], "its counter states 90,000,399 J in 2 s"),
    ],
    ids=[
        *(
            "stays",
            "stays at 0",
            "1 unit in 600 s",
            "less than 1 unit in 600 s",
            "stops after 1 s",
            "stops near the end",
        ),
        *("a little back", "far back", "a small one back", "a small one back to 0", "near the limit", "jumps"),
    ],
)
def test_readings_that_no_board_can_have_are_not_measured(readings: list[Reading], why: str) -> None:
    end = readings[-1][0]
    stated = energy_between(NVML, readings, 0.0, end)
    assert isinstance(stated, str) and stated.startswith(why)
    begin = datetime.fromtimestamp(0, UTC)
    energy = energy_of_run([(NVML, readings)], begin, begin + timedelta(seconds=end), used=[], not_measured=[])
    assert energy.counters == [] and energy.not_measured == [f"GPU 0: {stated}"]


def test_the_boards_with_a_counter_are_read() -> None:
    answers = {**RECORDING["answers"], **{f"{QUESTION}(gpu{place})": 1_000 + place for place in (0, 2)}}
    counters = list(nvml.VENDOR.counters(Replay({"answers": answers})))
    assert [counter.name.split()[:2] for counter, _ in counters] == [["GPU", "0"], ["GPU", "2"]]
    assert [read() for _, read in counters] == [1_000, 1_002] and counters[0][0].device.startswith("GPU-")
    assert list(nvml.VENDOR.counters(Replay(RECORDING))) == []  # the recording is of a driver that was not asked


def test_amds_counter_has_the_unit_that_it_states() -> None:
    class AmdSmiException(Exception):
        pass

    answers = SimpleNamespace(
        AmdSmiException=AmdSmiException,
        amdsmi_get_processor_handles=lambda: ["one", "two"],
        amdsmi_get_energy_count=lambda _: {"energy_accumulator": 7, "counter_resolution": 15.3, "timestamp": 1},
    )
    (first, read), _ = amd.VENDOR.counters(answers)
    assert first.unit_j == pytest.approx(15.3e-6) and read() == 7

    def refuses(_):
        raise AmdSmiException

    answers.amdsmi_get_energy_count = refuses
    assert read() is None and list(amd.VENDOR.counters(answers)) == []


def zone(root: Path, folder: str, name: str, energy: str = "12000000") -> Path:
    path = root / "sys/class/powercap" / folder
    path.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", energy), ("max_energy_range_uj", "262143328850")):
        (path / file).write_text(f"{text}\n")
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a GPU, with the zones of two packages and what is no package."""
    monkeypatch.setattr(nvml.VENDOR, "opened", contextlib.nullcontext)
    zone(tmp_path, "intel-rapl:0", "package-0")
    zone(tmp_path, "intel-rapl:1", "package-1")
    zone(tmp_path, "intel-rapl:0:0", "dram")
    zone(tmp_path, "intel-rapl-mmio:0", "package-0")
    zone(tmp_path, "intel-rapl:2", "psys")
    return tmp_path


def test_packages_are_counted_once_and_a_kernel_without_zones_says_so(tmp_path: Path, machine: Path) -> None:
    assert [counter.method for counter, _ in package_counters(machine)] == [
        "powercap, intel-rapl:0/energy_uj",
        "powercap, intel-rapl:1/energy_uj",
    ]
    with energy_watched(root=tmp_path / "empty") as watch:
        pass
    assert watch.missing[1] == "CPU package: the kernel shows no counter of one in /sys/class/powercap"


def test_a_counter_is_read_through_the_run(machine: Path) -> None:
    file = machine / "sys/class/powercap/intel-rapl:0/energy_uj"

    def read_again() -> None:
        wanted = len(watch._rows) + 2  # the next reading may have begun before
        while len(watch._rows) < wanted:
            time.sleep(0.01)

    with energy_watched(interval_s=0.02, root=machine) as watch:
        read_again()
        begin = datetime.now(UTC)
        file.write_text("15500000\n")
        read_again()
        end = datetime.now(UTC)
        read_again()
    energy = watch.energy(begin, end)
    (first,) = energy.serving(Scope.CPU)
    assert first.joules == pytest.approx(3.5, abs=first.within_j + 1e-6)
    assert len(energy.not_measured) == 2 and energy.not_measured[0].startswith("GPU board: ")
    assert energy.not_measured[1].startswith("package-1: its counter stayed at ")


@pytest.mark.parametrize(
    ("here", "words"),
    [(True, ["GPU board: ", "CPU package: /sys/class/powercap/intel-rapl:0/energy_uj cannot"]), (False, [ELSEWHERE])],
)
def test_what_cannot_be_read_is_not_measured_and_never_zero(machine: Path, here: bool, words: list[str]) -> None:
    for path in machine.glob("sys/class/powercap/*/energy_uj"):
        path.unlink()  # as one that root alone may read
    with energy_watched(here=here, root=machine) as watch:
        pass
    energy = watch.energy(BEGIN, BEGIN + timedelta(seconds=1))
    assert energy.counters == [] and len(energy.not_measured) == len(words)
    assert all(said.startswith(word) for said, word in zip(energy.not_measured, words, strict=True))
