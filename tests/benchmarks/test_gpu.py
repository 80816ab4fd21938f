"""The first hour on a GPU: what can be held against nothing but its own output, and the parts on the CPU backend."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import gpu
from clients.real_vllm import RealVllm
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.energy import CountedEnergy, RunEnergy, Scope
from cm4vllm.records.machine import GpuFacts
from figures import figure
from first_hour import limits
from first_hour.hour import Hour, LeftOut
from first_hour.limits import TimeOver, ended_after
from first_hour.page import page
from first_hour.rates import compared, fp8, parallel
from first_hour.record import HourRecord, Outcome, PartRecord
from first_hour.servers import energy, energy_figures

H100 = GpuFacts(
    name="NVIDIA H100 80GB HBM3",
    uuid="GPU-1",
    memory_bytes=81559 * 2**20,
    max_sm_mhz=1980.0,
    pcie_generation=5,
    pcie_width=16,
    driver="570.86.15",
)
SAID = "NVIDIA H100 80GB HBM3, 81559, 570.86.15\n"


def hour_of(python: str = "", samples: int = 1) -> Hour:
    return Hour(RealVllm(python=python, model=Path(), samples=samples), 1, 1, 0.8)


@pytest.mark.parametrize(
    ("gpus", "said", "share"),
    [
        ([H100], SAID, 1.0),
        ([H100, H100], SAID * 2, 1.0),
        ([H100], SAID * 2, 0.5),
        ([], SAID, 0.0),
        ([H100], SAID.replace("81559", "40960"), 0.0),
        ([H100], SAID.replace("H100", "H200"), 0.0),
        ([H100], SAID.replace("570", "580"), 0.0),
    ],
)
def test_what_is_detected_is_held_against_nvidia_smi(gpus, said, share):
    (detected,) = compared(gpus, said)
    assert (detected.value, detected.holds) == (share, share == 1)


@pytest.mark.parametrize(
    ("part", "words"), [(parallel, "two GPUs, 1 can be used"), (fp8, "CPU backend"), (energy, "GPU board: ")]
)
def test_a_part_that_a_machine_cannot_run_says_why(part, words):
    with pytest.raises(LeftOut, match=words):
        list(part(hour_of()))


def test_a_server_that_does_not_come_up_shows_its_last_lines(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'unrecognized arguments: --enable-scale-out' >&2\nexit 2\n")
    python.chmod(0o700)
    real = RealVllm(python=str(python), model=tmp_path, samples=1)
    with pytest.raises(RuntimeError, match="did not come up:\nunrecognized arguments"), real.served(real.settings()):
        pass


@pytest.mark.parametrize(("watts", "apart", "holds"), [(600.0, 0.2, False), (520.0, 0.04, True), (400.0, 0.2, False)])
def test_the_energy_of_two_boards_is_held_against_their_mean_power(watts, apart, holds):
    boards = [
        CountedEnergy(
            name=f"GPU {number}",
            scope=scope,
            method="NVML",
            unit_j=0.001,
            joules=joules,
            within_j=1.0,
            first=(0.0, 0),
            last=(10.0, 1),
        )
        for number, (scope, joules) in enumerate([(Scope.GPU, 4000.0), (Scope.GPU, 6000.0), (Scope.CPU, 999.0)])
    ]
    counted, power, both = energy_figures(RunEnergy(seconds=10.0, counters=boards), [watts - 100, watts + 100])
    assert (counted.value, counted.unit) == (10_000, "J")
    assert power.value == pytest.approx(watts * 20)
    assert both.value == pytest.approx(apart) and both.holds == holds
    with pytest.raises(LeftOut, match="no counter"):
        list(energy_figures(RunEnergy(seconds=10.0, not_measured=["no counter"]), [1.0]))


# --- the time of a part -----------------------------------------------------------------------------------------------

#: A program with a child that outlives it and does not listen to SIGTERM, as a server that hangs.
DEAF = "trap '' TERM; (trap '' TERM; sleep 600) & sleep 600"


def own_processes() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("script", "least_s"), [("sleep 600 & sleep 600", 0.0), (DEAF, 1.0)], ids=["in order", "killed"]
)
def test_all_that_a_part_started_ends_when_its_time_is_over(script, least_s, monkeypatch):
    monkeypatch.setattr(limits, "ORDERLY_S", 1.0)
    began = time.monotonic()
    with pytest.raises(TimeOver), ended_after(0.5):
        subprocess.run(["setsid", "-w", "bash", "-c", script], check=False)
    assert own_processes() == []
    assert 0.5 + least_s <= time.monotonic() - began < 20
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_a_part_left_behind_ends_with_it_and_its_handlers_go():
    before = signal.getsignal(signal.SIGINT)
    with ended_after(60):
        subprocess.run(["bash", "-c", "(setsid sleep 600 &) ; true"], check=True)
        assert own_processes()
    assert own_processes() == [] and signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_measured_and_ends_what_was_started(tmp_path, signum):
    """The program itself: a vLLM that does not come up is waited for, and the signal comes meanwhile."""
    python, file = tmp_path / "python", tmp_path / "hour.json"
    python.write_text('#!/bin/sh\n[ "$1" = -P ] && exit 1\necho $$ > "$(dirname "$0")/pid"\nexec sleep 600\n')
    python.chmod(0o700)
    words = [sys.executable, gpu.__file__, f"--vllm_python={python}", "--device=cpu", "--model=tiny", "--samples=1"]
    with subprocess.Popen(
        [*words, "--only=fp8,offline", f"--json={file}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        while not (pid := tmp_path / "pid").exists() or not pid.read_text():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        process.send_signal(signum)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted: what was measured is kept" in printed, printed
    assert not psutil.pid_exists(int(pid.read_text()))
    ((machine, parts),) = read_record(file, HourRecord).machines.items()
    assert parts["fp8"].outcome is Outcome.LEFT_OUT and "offline" not in parts
    assert "CPU backend" in file.with_suffix(".html").read_text() and machine in file.with_suffix(".html").read_text()


# --- the parts that fit -----------------------------------------------------------------------------------------------


def part_of(took_s: float, outcome: Outcome = Outcome.MEASURED, why: str = "") -> PartRecord:
    figures = [figure("Offline, in process", [14515.0, 14000.0, 15000.0], "tokens/s", at_least=1)]
    return PartRecord(
        outcome=outcome, began="2026-11-27T10:00:00+00:00", took_s=took_s, settings="vLLM 1", figures=figures, why=why
    )


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, (200, "assumed")),
        ({"here": part_of(50)}, (50, "measured")),
        ({"there": part_of(70)}, (70, "measured on there")),
        ({"there": part_of(70), "here": part_of(50)}, (50, "measured")),
        ({"there": part_of(70, Outcome.FAILED)}, (200, "assumed")),
        ({"here": part_of(150, Outcome.TIME_OVER)}, (200, "assumed")),
        ({"here": part_of(300, Outcome.TIME_OVER)}, (600, "twice the 300 s after which its time was over")),
    ],
)
def test_a_part_is_expected_to_take_what_it_took_before(parts, expected):
    record = HourRecord(machines={machine: {"offline": part} for machine, part in parts.items()})
    assert record.expected_s("offline", "here", 200) == expected


def session_of(minutes: float, record: HourRecord, path: Path | None = None) -> gpu.Session:
    return gpu.Session(
        hour=hour_of(samples=1024),
        record=record,
        machine="here",
        settings="vLLM 1",
        path=path,
        ends=time.monotonic() + minutes * 60,
    )


def test_the_parts_are_taken_in_their_order_as_long_as_they_fit(monkeypatch, capsys):
    monkeypatch.setattr(
        gpu,
        "PARTS",
        {name: gpu.Part(lambda hour: iter(()), more_s=s) for name, s in {"a": 100, "b": 900, "c": 100}.items()},
    )
    session = session_of(9, HourRecord())
    for name in gpu.PARTS:
        session.take(name)
    outcomes = {name: part.outcome for name, part in session.record.machines["here"].items()}
    assert outcomes == {"a": Outcome.MEASURED, "b": Outcome.LEFT_OUT, "c": Outcome.MEASURED}
    assert session.left_out == ["b"]
    said = capsys.readouterr()
    assert "a: expected to take 100 s (assumed), 400 s at most" in said.out
    assert "b: left out: it is expected to take 900 s (assumed), 540 s are left" in said.err


def test_a_part_without_time_does_not_take_the_place_of_what_was_measured_of_it():
    record = HourRecord(machines={"here": {"offline": part_of(300, Outcome.TIME_OVER)}})
    session = session_of(1, record)
    session.take("offline")
    assert session.record == record and session.left_out == ["offline"]


def test_nine_minutes_are_enough_for_todays_parts_and_each_part_has_an_assumed_time():
    hour = hour_of(samples=1024)
    assert list(gpu.PARTS) == ("detected offline server fp8 parallel readiness rehearsal search energy killed".split())
    assert all(part.assumed_s(hour) >= 10 for part in gpu.PARTS.values())
    first = gpu.PARTS["detected"].assumed_s(hour) + gpu.PARTS["offline"].assumed_s(hour)
    hour.in_process[" x 1"] = [14_500.0]
    rest = gpu.PARTS["server"].assumed_s(hour) + gpu.PARTS["fp8"].assumed_s(hour)
    assert first + rest < 9 * 60 - gpu.LAST_S


def failing(error):
    def measure(hour):
        yield figure("Offline", [1.0], "tokens/s")
        raise error

    return measure


@pytest.mark.parametrize(
    ("error", "outcome", "failed"),
    [
        (RuntimeError("vLLM ended"), Outcome.FAILED, True),
        (subprocess.CalledProcessError(1, "nvidia-smi"), Outcome.FAILED, True),
        (LeftOut("no GPU"), Outcome.LEFT_OUT, False),
        (TimeOver(), Outcome.TIME_OVER, True),
    ],
)
def test_a_part_that_ends_early_is_kept_with_its_figures_and_the_reason(tmp_path, monkeypatch, error, outcome, failed):
    monkeypatch.setattr(gpu, "PARTS", {"offline": gpu.Part(failing(error))})
    session = session_of(9, HourRecord(), tmp_path / "hour.json")
    session.take("offline")
    kept = read_record(tmp_path / "hour.json", HourRecord).machines["here"]["offline"]
    assert (kept.outcome, [each.name for each in kept.figures], session.failed) == (outcome, ["Offline"], failed)
    assert kept.why and HourRecord(machines={"here": {"offline": kept}}).measured("offline") == {}
    assert kept.why.partition(" ")[0] in (tmp_path / "hour.html").read_text()


def test_a_file_is_gone_on_from_on_another_machine(tmp_path, monkeypatch, capsys):
    """The parts of both machines stand on the page, each with its machine; those of the first are as they were."""
    file = tmp_path / "hour.json"
    there = {"detected": part_of(5), "offline": part_of(70), "server": part_of(80, Outcome.TIME_OVER, "too slow")}
    write_record(file, HourRecord(machines={"1 x NVIDIA H100 (80 GB)": there}))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o700)
    monkeypatch.setattr(gpu, "PARTS", {name: gpu.Part(failing(LeftOut("here"))) for name in there})
    monkeypatch.setattr(
        sys, "argv", ["gpu.py", f"--vllm_python={python}", "--device=cpu", "--model=tiny", f"--resume={file}"]
    )
    assert gpu.main() == 0
    assert "offline: kept, measured on 1 x NVIDIA H100 (80 GB)" in capsys.readouterr().out
    first, second = read_record(file, HourRecord).machines.values()
    assert first == there and list(second) == ["server"]
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--only=offline"])
    assert gpu.main() == 0
    assert list(list(read_record(file, HourRecord).machines.values())[1]) == ["server", "offline"]
    shown = file.with_suffix(".html").read_text()
    assert "1 x NVIDIA H100 (80 GB)" in shown and "14,515" in shown and "tokens/s" in shown and "too slow" in shown


def test_a_file_that_is_no_record_is_refused(tmp_path, monkeypatch):
    (tmp_path / "hour.json").write_text('{"Offline": {"value": 1}}')
    with pytest.raises(gpu.CmError, match="not a HourRecord"):
        gpu.kept_hour(tmp_path / "hour.json")


def test_texts_of_the_page_are_escaped():
    part = part_of(1, Outcome.FAILED, "<script>alert(1)</script>")
    shown = page(HourRecord(machines={"<b>": {"offline": part, "detected": part_of(2)}}), ["detected", "offline"])
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "<b>" not in shown
    assert shown.index("<td>detected</td>") < shown.index("<td>offline</td>")


# --- the real vLLM ----------------------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.xdist_group("vllm-gpu")
def test_its_parts_run_on_the_cpu_backend(tmp_path, vllm_python):
    """All parts but detection and energy, on the tiny stand-in. No rate is asked for: the machine is not a GPU."""
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [
            sys.executable,
            *("-W", "error", gpu.__file__, f"--vllm_python={vllm_python}", f"--json={file}"),
            *"--device=cpu --model=tiny --samples=16 --sequences=8 --gpus=2".split(),
            "--only=offline,server,fp8,parallel,readiness,rehearsal,search,killed",
        ],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    ((machine, parts),) = read_record(file, HourRecord).machines.items()
    outcomes = {name: part.outcome for name, part in parts.items() if part.outcome is not Outcome.MEASURED}
    assert outcomes == {"fp8": Outcome.LEFT_OUT}, done.stdout + done.stderr
    assert "no GPU" in machine and "TINY STAND-IN: cm4vllm-tiny" in done.stdout
    figures = {each.name: each for part in parts.values() for each in part.figures}
    assert figures["Offline, through LoadGen / in process"].limit == ">= 0.97"
    for name in (
        "Offline, in process",
        "Server, through LoadGen",
        "Server, in process, TTFT p99",
        "Offline, 2 replicas",
        "Server, second start, first answer after",
        "Rehearsal, time",
        "Search, rate found",
    ):
        assert figures[name].value > 0, figures
    assert figures["Rehearsal, a tree was built"].value == 1
    assert figures["kill -9, what was lost, left or wrong"].value == 0, done.stdout
    assert "2 replicas" in file.with_suffix(".html").read_text()
