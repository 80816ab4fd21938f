"""Files with holes, larger than all memory, in a stranger's tree: each is read up to a bound."""

import os
import subprocess
import sys
import time

import pytest
from test_power_checks import GOOD, tree_of

SIZE = 5 * 2**30
#: Everything that reads a stranger's tree, in a process that may have 1.5 GiB of memory of its own.
PROGRAM = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**29, 3 * 2**29))
from cm4vllm.results.check_command.tree_check import check_tree
from cm4vllm.submission.checker.official_checker import _unscored, is_rehearsal
from cm4vllm.submission.capsule.from_tree import _pages
root = Path(sys.argv[1])
checked = check_tree(root)
print(len(checked.findings), is_rehearsal(root, next(path for path in root.glob("*/*")).name), _unscored(root))
for finding in checked.findings:
    print(finding.code, finding.file, finding.value)
"""


def checked(root):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, root], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, time.monotonic() - began


def enlarge(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch()
    os.truncate(path, SIZE)


@pytest.mark.parametrize(
    "names",
    [
        ("README.md", "calibration.md", "documentation/calibration.md", "measurements/*/README.md"),
        ("measurements/*/*/*/README.md", "results/*/*/*/README.md"),
        ("results/*/*/*/accuracy/accuracy.txt",),
        ("measurements/*/*/*/user.conf", "measurements/*/*/*/mlperf.conf", "measurements/*/*/*/*.json"),
        ("systems/*.json", "model_mapping.json"),
        ("results/*/*/*/*/mlperf_log_accuracy.json", "results/*/*/*/performance/run_1/mlperf_log_summary.txt"),
    ],
    ids=lambda names: names[0],
)
def test_a_tree_with_such_files_is_checked(tree, names):
    home = next((tree / "open").iterdir())
    for name in names:
        for path in list(home.glob(name))[:3] or [home / name.replace("*", "x")]:
            enlarge(path)
    printed, seconds = checked(tree)
    assert "CHECK-FAILED" not in printed
    assert seconds < 90


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("power/server.log", "POWER-HASH"),
        ("power/ptd_logs.txt", "POWER-HASH"),
        ("power/client.json", "POWER-FILES"),
        ("run_1/spl.txt", "POWER-HASH"),
        ("run_1/mlperf_log_detail.txt", "LOG-UNREADABLE"),
        ("run_1/anything.bin", ""),
    ],
)
def test_a_power_session_with_such_a_file_is_checked(published_power, tmp_path, name, code):
    session = tree_of(published_power, GOOD, tmp_path)
    enlarge(session / name)
    printed, seconds = checked(tmp_path)
    assert code in printed and "CHECK-FAILED" not in printed, printed
    assert seconds < 60
