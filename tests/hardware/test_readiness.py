"""The machine settings that disturb a measurement, read from the kernel, each with the command that changes it."""

import shlex
import subprocess
import sys
import time

import pytest

from cm4vllm.hardware.machine_samples import throttling, throttling_between
from cm4vllm.hardware.readiness import LoadSample, load_sample, unready

GOOD = {
    "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "proc/meminfo": "MemTotal: 100 kB\nSwapTotal: 8000000 kB\nSwapFree: 7990000 kB\n",
}


@pytest.fixture
def machine(tmp_path):
    def make(**changes):
        for name, text in {**GOOD, **changes}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def test_a_machine_that_is_ready_has_no_findings(machine):
    assert unready(machine(), files=524_288, load=LoadSample(0.02, "idle", 1, 0.0)) == []


def test_what_a_machine_does_not_show_is_not_judged(tmp_path):
    assert unready(tmp_path, files=524_288) == []


CLOCK = "sys/devices/system/clocksource/clocksource0/"


@pytest.mark.parametrize(
    ("changes", "more", "words", "command"),
    [
        (
            {"proc/sys/net/ipv4/ip_local_port_range": "50000 60000"},
            {},
            "10,001 local ports",
            "sudo sysctl -w net.ipv4.ip_local_port_range='1024 65535'",
        ),
        ({}, {"files": 4096}, "a process may open 4,096 files", "ulimit -Hn 16384"),
        (
            {CLOCK + "current_clocksource": "hpet"},
            {},
            "the clock source is hpet",
            f"echo tsc | sudo tee /{CLOCK}current_clocksource",
        ),
        (
            {CLOCK + "current_clocksource": "acpi_pm", CLOCK + "available_clocksource": "acpi_pm"},
            {},
            "the clock source is acpi_pm",
            "sudo dmesg | grep -i clocksource",
        ),
        (
            {"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave"},
            {},
            "the CPU governor is performance, powersave",
            "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        ),
        (
            {"proc/meminfo": "SwapTotal: 8388608 kB\nSwapFree: 6291456 kB\n"},
            {},
            "2.0 GiB are swapped out",
            "sudo swapoff -a",
        ),
        (
            {},
            {"load": LoadSample(0.31, "cc1plus", 77, 0.2)},
            "31% of the processors are in use, 20% by cc1plus (process 77)",
            "top -o %CPU",
        ),
    ],
)
def test_each_disturbance_is_found_with_its_command(machine, changes, more, words, command):
    (finding,) = unready(machine(**changes), **{"files": 524_288, **more})
    assert words in finding.what
    assert finding.remedy.endswith(command)
    assert shlex.split(command)


def test_the_load_of_others_is_measured_and_named():
    program = "print('busy', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as busy:
        try:
            busy.stdout.readline()
            deadline = time.monotonic() + 30
            while not (sample := load_sample(0.3)).busy and time.monotonic() < deadline:
                pass  # it stood still, and others too
        finally:
            busy.kill()
    assert sample.busy > 0
    assert sample.pid and sample.name


def test_slowing_down_is_counted_between_two_readings(tmp_path):
    counters = tmp_path / "sys/devices/system/cpu/cpu0/thermal_throttle"
    counters.mkdir(parents=True)
    (counters / "core_throttle_count").write_text("3")
    before = throttling(tmp_path)
    (counters / "core_throttle_count").write_text("5")
    assert throttling_between(before, throttling(tmp_path)) == {"a processor: its temperature (times)": 2.0}
    (counters / "package_throttle_total_time_ms").write_text("1000")
    before = throttling(tmp_path)
    (counters / "package_throttle_total_time_ms").write_text("1200")
    assert throttling_between(before, throttling(tmp_path)) == {}  # too little to count
    (counters / "package_throttle_total_time_ms").write_text("4500")
    assert throttling_between(before, throttling(tmp_path)) == {"a processor: its temperature": 3.5}
