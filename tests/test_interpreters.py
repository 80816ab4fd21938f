"""No interpreter that the package starts looks for modules in the present folder."""

import ast
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from cm4vllm.common.programs.processes import run, safe_environment, spawned_safely
from cm4vllm.serving.supervisor import start_supervised
from syntax import nodes_of
from test_architecture import MODULES
from traps import imported, set_traps

ROOT = Path(__file__).resolve().parents[1]
#: What begins the command line of an interpreter, where it is a name or an attribute.
_INTERPRETERS = {"python", "executable", "own"}
_SAFE = {"-P", "-I", "--version"}


def commands(nodes):
    """Yield the parts of each list that begins with, or has after words of `env`, an interpreter and then an option."""
    for node in nodes:
        if isinstance(node, ast.List):
            for at, part in enumerate(node.elts[:-1]):
                part = part.args[0] if isinstance(part, ast.Call) and part.args else part
                name = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
                following = node.elts[at + 1]
                option = following.value if isinstance(following, ast.Constant) else ""
                if name in _INTERPRETERS and isinstance(option, str) and option.startswith("-"):
                    yield node.lineno, option


@pytest.mark.xdist_group("source")
def test_each_command_line_of_an_interpreter_says_so():
    offenders = [
        f"{name}:{line}: {option}"
        for name, path in MODULES.items()
        for line, option in commands(nodes_of(path))
        if option not in _SAFE
    ]
    assert not offenders


@pytest.fixture
def trapped(tmp_path, monkeypatch):
    set_traps(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return tmp_path


def test_a_child_of_a_child_finds_nothing(trapped):
    program = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', 'import json, yaml']).returncode)"
    assert run([sys.executable, "-P", "-c", program]).ok
    assert not imported(trapped)


@pytest.mark.parametrize("path", ["", ".", os.pathsep, f".{os.pathsep}/nowhere"])
def test_an_empty_part_of_the_path_is_not_the_present_folder(trapped, path):
    assert run([sys.executable, "-P", "-c", "import json, dataclasses"], env={"PYTHONPATH": path}).ok
    assert not imported(trapped)
    assert safe_environment({"PYTHONPATH": f"/a{os.pathsep}{path}"})["PYTHONPATH"].startswith("/a")


def test_processes_of_a_pool_find_nothing(trapped):
    before = dict(os.environ)
    with spawned_safely() as context, ProcessPoolExecutor(2, mp_context=context) as pool:
        assert list(pool.map(abs, [-1, -2])) == [1, 2]
    assert not imported(trapped)
    assert dict(os.environ) == before


def test_a_supervised_program_finds_nothing_in_its_folder(trapped, tmp_path_factory):
    """The client of MLPerf Endpoints works in the folder of its points."""
    place = tmp_path_factory.mktemp("supervised")
    program = "import dataclasses, json, multiprocessing, subprocess, sys, yaml; print('read')\n"
    program += "subprocess.run([sys.executable, '-c', 'import dataclasses, json'], check=True)"
    words = [sys.executable, "-P", "-c", program]
    log = place / "log"
    with start_supervised(
        words, {}, spec=place / "spec", log=log, state=place / "state", grace_s=1.0, cwd=trapped
    ) as supervisor:
        assert supervisor.wait(30) == 0
    assert log.read_text() == "read\n"
    assert not imported(trapped)


def test_make_and_the_workflow_start_no_interpreter_that_looks_there():
    """A module of Python's own name beside the Makefile would run at `make setup`."""
    words = (ROOT / "Makefile").read_text() + (ROOT / ".ci/run").read_text()
    assert re.findall(r"/python (-\w)", words).count("-P") == len(re.findall(r"/python -", words)) >= 8


def test_the_traps_work(trapped):
    """Without this, the other tests would prove nothing."""
    done = subprocess.run([sys.executable, "-c", "import json"], capture_output=True, text=True, check=False)
    assert done.returncode and "nothing may be imported from" in done.stderr
    assert set(imported(trapped)) == {"json.py.imported"}
