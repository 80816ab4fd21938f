"""Commands started in folders of strangers, whose files have the names of modules."""

import os
import shutil

import pytest

from traps import imported, set_traps


@pytest.fixture(scope="module")
def tree(neural_magic, tmp_path_factory):
    """Return copies of a published submission, which several processes read, with modules in each folder."""
    root = tmp_path_factory.mktemp("tree")
    for number in range(7):
        home = root / "open" / f"Submitter{number}"
        shutil.copytree(neural_magic, home, copy_function=shutil.copyfile)
        for path in [home, *home.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        set_traps(folder)
    return root


COMMANDS = {
    "check": ("check,mlperf,results", "--input={tree}"),
    "official checkers": (
        "run,mlperf,inference,submission,checker,_r4.1",
        "--input={tree}",
        "--submitter=Submitter0",
        "--inference_src={inference}",
    ),
    "explore": ("explore,mlperf,results", "--input={tree}"),
    "compare": ("compare,mlperf,results", "--input={systems}"),
    "check a curve": ("check,mlperf,endpoints", "--input={tree}"),
    "verify": ("verify,mlperf", "--input={tree}"),
    "status": ("status,mlperf", "--output_dir={tree}"),
    "plan": ("run-mlperf,inference,_vllm", "--plan"),
    "doctor": ("doctor,mlperf",),
    "machine": ("get,sut,description",),
    "a shell": ("get,python3",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_module_of_a_folder_that_is_judged_is_imported(start_cm, tree, command):
    tags, *flags = COMMANDS[command]
    inference = os.environ.get("INFERENCE_GIT", "")
    if any("{inference}" in flag for flag in flags) and not inference:
        pytest.skip("INFERENCE_GIT names no git directory of mlcommons/inference")
    systems = ",".join(map(str, sorted((tree / "open/Submitter0/results").glob("4xH100*"))))
    words = [flag.format(tree=tree, systems=systems, inference=inference) for flag in flags]
    cm = start_cm()
    cm.cwd = tree / "open/Submitter0/results"
    done = cm("run", "script", f"--tags={tags}", "--quiet", *words)
    cm.cwd = tree
    assert "Traceback" not in done.output, done.output
    assert "no scripts were found" not in done.output and "has no input" not in done.output, done.output
    assert not imported(tree), imported(tree)
