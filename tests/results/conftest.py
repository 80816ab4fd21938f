"""Trees: the published one, and copies of it in other layouts that a test may change."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.results import file_listing

# For good_tree.py.
sys.path.insert(0, str(Path(__file__).parent))

SCENARIOS = ("Offline", "Server", "SingleStream", "MultiStream")
#: Names in LoadGen's mlperf.conf: of a benchmark with token latencies, and of one without.
NAMES = {"tokens": "llama3_1-8b", "samples": "resnet50"}


@pytest.fixture
def tree(neural_magic, tmp_path):
    """A copy of the published v4.1 tree."""
    home = tmp_path / "tree" / "open" / neural_magic.name
    shutil.copytree(neural_magic, home, copy_function=shutil.copyfile)
    for path in [home, *home.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tmp_path / "tree"


@pytest.fixture(scope="session")
def any_scenario(tmp_path_factory):
    """The logs of short real runs: each scenario, with token latencies and without, and one accuracy run."""
    root = tmp_path_factory.mktemp("scenarios")
    program = Path(__file__).with_name("any_scenario.py")
    folders, processes = {}, []
    for scenario in SCENARIOS:
        for kind, name in NAMES.items():
            folder = root / scenario / kind
            folder.mkdir(parents=True)
            processes.append(
                subprocess.Popen([sys.executable, program, folder, scenario, name], stdout=subprocess.DEVNULL)
            )
            folders[scenario, kind] = folder
    accuracy = folders["Offline", "accuracy"] = root / "accuracy"
    accuracy.mkdir()
    processes.append(
        subprocess.Popen(
            [sys.executable, program, accuracy, "Offline", NAMES["samples"], "AccuracyOnly"], stdout=subprocess.DEVNULL
        )
    )
    for process in processes:
        assert process.wait(timeout=120) == 0
    return folders


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """Treat files that a test has just written as unchanged for long: otherwise nothing of them would be kept."""
    monkeypatch.setattr(file_listing, "RECENT_S", -60.0)
