"""The processors that a program may use: the quotas of its control groups are read from the kernel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.common.processors import control_groups, cpu_quota, usable_processors
from cm4vllm.records.run import QUOTA

V2 = {"cpu.max": "50000 100000\n", "cpu.stat": "usage_usec 9\nnr_periods 35\nnr_throttled 19\nthrottled_usec 950000\n"}
V1 = {
    "cpu.cfs_quota_us": "150000\n",
    "cpu.cfs_period_us": "100000\n",
    "cpu.stat": "nr_periods 8\nnr_throttled 2\nthrottled_time 3000000000\n",
}


def put(root, own, **groups):
    """Write /proc/self/cgroup and the files of control groups, each by its folder below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    for folder, files in groups.items():
        path = root / "sys/fs/cgroup" / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (path / name).write_text(text)


@pytest.mark.parametrize(
    ("own", "groups", "cpus", "group"),
    [
        ("0::/\n", {".": V2}, 0.5, "."),
        ("0::/a/b\n", {"a": V2, "a/b": {"cpu.max": "max 100000\n"}}, 0.5, "a"),
        ("0::/a/b\n", {"a": {"cpu.max": "400000 100000"}, "a/b": {"cpu.max": "25000 10000"}}, 2.5, "a/b"),
        ("0::/docker/0815\n", {".": V2}, 0.5, "."),
        ("0::/../../elsewhere\n", {".": V2}, 0.5, "."),
        ("4:cpu,cpuacct:/job\n0::/\n", {"cpu,cpuacct/job": V1}, 1.5, "cpu,cpuacct/job"),
        ("4:cpuacct,cpu:/job/step\n", {"cpu/job": V1, "cpu/job/step": {"cpu.cfs_quota_us": "-1\n"}}, 1.5, "cpu/job"),
        ("4:cpu:/docker/0815\n", {"cpu": V1}, 1.5, "cpu"),
    ],
)
def test_the_smallest_quota_of_the_own_group_and_its_parents_counts(tmp_path, own, groups, cpus, group):
    put(tmp_path, own, **groups)
    quota = cpu_quota(tmp_path)
    assert (quota.cpus, quota.group) == (cpus, tmp_path / "sys/fs/cgroup" / group)
    assert usable_processors(tmp_path) == max(1, min(len(os.sched_getaffinity(0)), int(cpus)))


@pytest.mark.parametrize(("files", "periods", "throttled", "seconds"), [(V2, 35, 19, 0.95), (V1, 8, 2, 3.0)])
def test_how_often_a_quota_was_used_up_is_read_in_both_versions(tmp_path, files, periods, throttled, seconds):
    put(tmp_path, "0::/\n4:cpu:/\n", **{"." if files is V2 else "cpu": files})
    quota = cpu_quota(tmp_path)
    assert (quota.periods, quota.throttled_periods, quota.throttled_s) == (periods, throttled, seconds)


@pytest.mark.parametrize("text", ["max 100000", "max", "", "x y", "-1 100000", "50000", "50000 0", "5e4 1e5"])
def test_what_is_no_quota_is_none(tmp_path, text):
    put(tmp_path, "0::/\n", **{".": {"cpu.max": text}})
    assert cpu_quota(tmp_path) is None
    assert usable_processors(tmp_path) == len(os.sched_getaffinity(0))


def test_a_machine_without_control_groups_has_none(tmp_path):
    assert control_groups("memory", tmp_path) == [] and cpu_quota(tmp_path) is None


@pytest.fixture
def real_group():
    """Return a control group of this machine's kernel with a fifth of a processor, made for the test."""
    base = Path("/sys/fs/cgroup")
    version_1 = (base / "cpu/cpu.cfs_period_us").exists() or (base / "cpu/tasks").exists()
    group = (base / "cpu" if version_1 else base) / f"cm4vllm-test-{os.getpid()}"
    try:
        group.mkdir()
        if version_1:
            (group / "cpu.cfs_quota_us").write_text("20000")
        else:
            (group / "cpu.max").write_text("20000 100000")
        yield group
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    finally:
        if group.is_dir():
            group.rmdir()


PROGRAM = """
import json, os, sys, time
from cm4vllm.common.processors import usable_processors
from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.hardware.readiness import unready
from cm4vllm.hardware.machine_samples import throttling, throttling_between
open(sys.argv[1], "w").write(str(os.getpid()))
before, end = throttling(), time.time() + 3
while time.time() < end:
    pass
slowed = throttling_between(before, throttling())
print(json.dumps([usable_processors(), detect_cpu().quota_cpus, [each.what for each in unready()], slowed]))
"""


def test_a_real_quota_is_detected_and_its_throttling_is_counted(real_group):
    command = [sys.executable, "-c", PROGRAM, str(real_group / "cgroup.procs")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    usable, quota, findings, slowed = json.loads(done.stdout.splitlines()[-1])
    assert (usable, quota) == (1, 0.2)
    assert [text for text in findings if text.startswith(f"a control group ({real_group.name}) has a quota of 0.2 of ")]
    assert slowed[f"{QUOTA} of 0.2 CPUs (times)"] >= 1
