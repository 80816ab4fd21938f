"""Commands started in folders of strangers, whose files have the names of modules."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from traps import imported, set_traps

sys.path.insert(0, str(Path(__file__).parents[1] / "endpoints"))
from made_points import write_points

SYSTEMS, POINTS = "open/Submitter0/results", "endpoints/test/points"
POWER = "closed/Power/results/a_system/resnet50/Offline/performance"


@pytest.fixture(scope="module")
def tree(neural_magic, published_power, tmp_path_factory):
    """Return copies of a published submission, which several processes read, with modules in each folder.

    Beside them are one submission alone, a published power session and points of MLPerf Endpoints.
    """
    root = tmp_path_factory.mktemp("tree")
    for number in range(7):
        home = root / "open" / f"Submitter{number}"
        shutil.copytree(neural_magic, home, copy_function=shutil.copyfile)
        for system in sorted((home / "results").iterdir())[1:] if number > 1 else ():  # one of a system is enough
            shutil.rmtree(system)
        for path in [home, *home.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.copytree(root / "open/Submitter6", root / "alone/open/Submitter6")
    power = root / POWER
    shutil.copytree(published_power / "v4.1-untether-r760-resnet50-offline", power, copy_function=shutil.copyfile)
    write_points(root / POINTS)
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)
        set_traps(folder)
    return root


#: The words of each command, and the folder that it is typed in where that is not the folder of the systems.
COMMANDS = {
    "check": ("check,mlperf,results", "--input={tree}"),
    "official checkers": (
        "run,mlperf,inference,submission,checker",
        "--input={tree}/alone",
        "--submitter=Submitter6",
        "--inference_src={inference}",
    ),
    "explore": ("explore,mlperf,results", "--input={tree}"),
    "compare": ("compare,mlperf,results", "--input={systems}"),
    "check a curve": ("check,mlperf,endpoints", "--input={tree}/endpoints", "--run_checker=no"),
    "check points": ("check,mlperf,endpoints", "--input=.", "--run_checker=no", POINTS),
    "in a power session": ("check,mlperf,results", "--input={tree}/closed", f"{POWER}/run_1"),
    "a capsule": ("generate,mlperf,capsule", "--input={tree}/open/Submitter1", "--capsules_dir=.", "capsules"),
    "compare capsules": ("compare,mlperf,results", "--input={capsules}", "capsules"),
    "replay": ("replay,mlperf", "--capsule={capsule}", "--plan", "capsules"),
    "status": ("status,mlperf", "--output_dir={tree}"),
    "plan": ("run-mlperf,inference,_vllm", "--plan"),
    "doctor": ("doctor,mlperf",),
    "machine": ("get,sut,description",),
    "a shell": ("get,python3",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_module_of_a_folder_that_is_judged_is_imported(start_cm, tree, command):
    tags, *flags = COMMANDS[command]
    folder = flags.pop() if flags and not flags[-1].startswith("--") else SYSTEMS
    if folder == "capsules":
        (tree / folder).mkdir(exist_ok=True)
        set_traps(tree / folder)
    inference = os.environ.get("INFERENCE_GIT", "")
    if any("{inference}" in flag for flag in flags) and not inference:
        pytest.skip("INFERENCE_GIT names no git directory of mlcommons/inference")
    systems = ",".join(map(str, sorted((tree / "open/Submitter0/results").glob("4xH100*"))))
    capsules = sorted(map(str, (tree / "capsules").glob("*.yaml")))
    if any("{capsule" in flag for flag in flags) and not capsules:
        pytest.skip("the test that makes capsules did not run")
    named = {"tree": tree, "systems": systems, "inference": inference}
    words = [flag.format(**named, capsules=",".join(capsules[:2]), capsule=(capsules or [""])[0]) for flag in flags]
    cm = start_cm(itself=True)  # a copy of this process would have imported most of them before
    cm.cwd = tree / folder
    done = cm("run", "script", f"--tags={tags}", "--quiet", *words)
    cm.cwd = tree
    assert "Traceback" not in done.output, done.output
    for refused in ("no scripts were found", "has no input", "has no variation", "holds no published results"):
        assert refused not in done.output, done.output
    assert not imported(tree), imported(tree)


# --- killed tests: nothing that they started with `cm` outlives them


#: Starts what a test starts by `cm.start`, here a process that would never end, and waits.
TESTS = """
import sys, time
from pathlib import Path
sys.path += [str(Path.cwd().parents[1]), str(Path.cwd().parent)]
from conftest import Cm
running = Cm(Path(sys.argv[1])).start(inside=(sys.executable, "-c", "import time; time.sleep(600)"))
print(running.process.pid, flush=True)
time.sleep(600)
"""


def test_what_a_test_started_ends_when_the_tests_are_killed(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", TESTS, tmp_path], cwd=Path(__file__).parent, text=True, stdout=subprocess.PIPE
    ) as tests:
        started = psutil.Process(int(tests.stdout.readline()))
        tests.kill()
    try:
        started.wait(10)
    except psutil.TimeoutExpired:
        started.kill()
        pytest.fail("it lives on")
