"""The files at the top of the repository say what is true: tests they name exist, commands they name are make's own."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import cm4vllm

ROOT = Path(__file__).resolve().parents[1]
HABITS = (
    "LICENSE CONTRIBUTING.md CHANGELOG.md SECURITY.md CITATION.cff .pre-commit-config.yaml "
    ".github/workflows/checks.yml .github/ISSUE_TEMPLATE/bug_report.md "
    ".github/ISSUE_TEMPLATE/feature_request.md .github/ISSUE_TEMPLATE/config.yml"
).split()
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
#: A path of one machine, and hosts that packages come from: neither is the same for the next reader.
PRIVATE = re.compile(r"(?<![\w.<}])/(?:work|home|root|Users|mnt)/|pypi\.|pythonhosted|/simple\b|index-url=http")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def missing_tests(page: str) -> list[str]:
    """Return the tests that a page names and that are not defined."""
    named = NAMED_TEST.findall(page)
    assert named, "no test is named"
    return [f"{path}::{test}" for path, test in named if f"\ndef {test}(" not in read(path)]


def test_a_project_file_names_no_path_of_a_machine_and_no_package_host():
    assert {name: private for name in HABITS if (private := PRIVATE.findall(read(name)))} == {}
    assert all(map(PRIVATE.search, ("see /home/me/x", "cd /mnt/y", "https://pypi.example/simple")))


def test_tests_do_not_write_to_the_repository_of_a_hook_of_git(tmp_path):
    """git sets these variables for its hooks, which may run `make test`."""
    theirs = tmp_path / "x"
    subprocess.run(["git", "init", "-q", theirs], check=True)
    before = {path: path.read_bytes() for path in theirs.rglob("*") if path.is_file()}
    places = {"GIT_DIR": f"{theirs}/.git", "GIT_WORK_TREE": f"{theirs}", "GIT_INDEX_FILE": f"{theirs}/.git/index"}
    words = [sys.executable, *"-m pytest -q -p no:cacheprovider -n0 -k a_changed_file_is_found".split()]
    done = subprocess.run(
        [*words, f"--basetemp={tmp_path}/base", "tests/common/test_git_objects.py"],
        cwd=ROOT,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert {path: path.read_bytes() for path in theirs.rglob("*") if path.is_file()} == before


def test_every_test_that_the_security_page_names_exists():
    assert missing_tests(read("SECURITY.md")) == []
    (missing,) = missing_tests("`tests/test_project_files.py::test_of_nothing`")
    assert missing == "tests/test_project_files.py::test_of_nothing"


def test_every_threat_has_a_test():
    part = read("SECURITY.md").partition("\n## Threats")[2].partition("\n## ")[0]
    threats = re.split(r"\n- ", part)[1:]
    assert len(threats) > 30
    assert [threat for threat in threats if not NAMED_TEST.search(threat)] == []


def test_the_citation_and_the_package_agree():
    citation = yaml.safe_load(read("CITATION.cff"))
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert citation["version"] == project["version"] == cm4vllm.__version__
    assert citation["license"] == project["license"] == "Apache-2.0"
    assert f"## {project['version']}" in read("CHANGELOG.md")


PIN = re.compile(
    r"^([\w.-]+)(?:\[[\w,]+\])?===?(\S+)(?: ; .+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


def pins(text: str) -> dict[str, str]:
    """Return name and version of each package that a requirements file pins with hashes; it may hold nothing else."""
    rest = [line for line in PIN.sub("", text).splitlines() if line and not line.startswith("#")]
    assert rest == [], "not pinned with hashes"
    return {name.lower().replace("_", "-"): version for name, version, _ in PIN.findall(text)}


def test_requirements_are_pinned_with_hashes_and_agree_with_pyproject():
    run, tests, tools = (pins(read(f"requirements{part}.txt")) for part in ("", "-test", "-tools"))
    project = tomllib.loads(read("pyproject.toml"))
    named = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["test"]]
    names = {re.split(r"[<>=]", pin)[0].lower().replace("_", "-") for pin in named}
    assert names <= tests.keys()
    assert run.items() <= tests.items()
    assert {tuple(pin.split("==")) for pin in project["dependency-groups"]["tools"]} <= set(tools.items())


@pytest.mark.parametrize(
    "name",
    ["install-vllm/requirements-cpu.txt", "install-vllm/requirements-cuda.txt", "get-llm-compressor/requirements.txt"],
)
def test_what_a_recipe_installs_is_pinned_with_hashes(name):
    assert len(pins(read(f"script/{name}"))) > 50
    with pytest.raises(AssertionError, match="not pinned"):
        pins("six==1.17.0\n")


def test_every_installation_of_make_asks_for_hashes():
    assert "pip install" not in read("Makefile")
    code = read("src/cm4vllm/common/programs/checkout_environment.py")
    assert code.count('"install",') == code.count('"--require-hashes",') == 2


def test_the_licence_is_the_whole_apache_licence():
    words = " ".join(read("LICENSE").split())
    assert words.startswith("Apache License Version 2.0, January 2004")
    assert "9. Accepting Warranty or Additional Liability" in words
    assert words.endswith("limitations under the License.")


def test_the_workflow_and_pre_commit_call_make_alone():
    (job,) = yaml.safe_load(read(".github/workflows/checks.yml"))["jobs"].values()
    steps = [step["run"] for step in job["steps"] if step.get("run", "").startswith("make ")]
    assert steps == ["make check", "make test", "make coverage"]
    (repo,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert (repo["repo"], [hook["entry"] for hook in repo["hooks"]]) == ("local", ["make check", "make test"])
    targets = re.search(r"^\.PHONY: (.*)$", read("Makefile"), re.MULTILINE)
    assert targets is not None
    assert {"check", "test"} <= set(targets[1].split())


def test_the_files_that_a_report_of_a_bug_asks_for_are_written_by_the_program():
    named = re.findall(r"`(?:\w+/)?([\w-]+\.(?:jsonl?|log))`", read(".github/ISSUE_TEMPLATE/bug_report.md"))
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert len(named) > 5 and [name for name in named if f'"{name}"' not in code] == []


def test_the_least_python_that_is_named_is_one_that_the_workflow_runs():
    least = tomllib.loads(read("pyproject.toml"))["project"]["requires-python"].removeprefix(">=")
    (job,) = yaml.safe_load(read(".github/workflows/checks.yml"))["jobs"].values()
    run = {entry["image"]: entry["python"] for entry in job["strategy"]["matrix"]["include"]}
    assert run == {"debian:12": least, "debian:13": "3.13"}
    pages = ["README.md", "CONTRIBUTING.md", "docs/tutorial.md", "docs/what-runs.md"]
    assert {name for name in pages if f"Python {least}" in re.sub(r"\s+", " ", read(name))} == set(pages)


#: In place of the environment's programs: writes how it was called, and the first folder of PATH.
SAID = '#!/bin/sh\nprintf "%s\\n" "${0##*/}: $*" "${PATH%%:*}" "$CM_REPOS" >> "$SAID"\n'


def test_make_run_works_in_a_path_with_spaces_and_letters_that_are_not_ascii(tmp_path):
    checkout = tmp_path / "meine Läufe" / "cm4vllm"
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "cm"):
        (programs / name).write_text(SAID, encoding="utf-8")
        (programs / name).chmod(0o755)
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout / name)
    (checkout / "environment.py").touch()  # finds nothing to do
    env = {"PATH": os.environ["PATH"], "SAID": str(tmp_path / "said"), "LANG": "C"}
    done = subprocess.run(
        ["make", "run", "ARGS=--scenario=Offline"], cwd=checkout, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    assert f"python: -P -m cm4vllm.engine.tools.register {checkout}" in said
    assert "cm: run script --tags=run-mlperf,inference,_vllm --quiet --scenario=Offline" in said
    assert set(said[1::3]) == {str(programs)} and set(said[2::3]) == {str(checkout / ".cm")}
    # A shell would read a dollar or a backquote in the place of it once more.
    assert [line for line in read("Makefile").splitlines() if "$(CURDIR)" in line and line.startswith("\t")] == []
