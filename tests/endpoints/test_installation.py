"""The installation of the reference client: its Python, its checkout, and that nothing in it was changed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.common.errors import InstallError, SourceUnavailable
from cm4vllm.common.records import read_record
from cm4vllm.endpoints.client import ClientInstallation, require_unmodified
from cm4vllm.endpoints.installation import InstallationSettings, client_checkout, find_python, require_python
from cm4vllm.rules import endpoints_rules


@pytest.fixture
def pythons(tmp_path, monkeypatch):
    """A function that makes programs which call themselves Pythons, by name and version; PATH has no others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))

    def made(name, version, where=folder):
        where.mkdir(parents=True, exist_ok=True)
        path = where / name
        path.write_text(f"#!/bin/sh\necho {path} {version.replace('.', ' ')}\n")
        path.chmod(0o755)
        return path

    return made


def test_the_first_python_that_is_new_enough_is_used(pythons):
    pythons("python3", "3.11")
    newer = pythons("python3.13", "3.13")
    assert find_python() == newer
    assert find_python(str(pythons("python3.12", "3.12"))) == find_python()


def test_a_python_of_pyenv_is_found_where_path_has_none(pythons, tmp_path):
    pythons("python3", "3.11")
    pythons("python3", "3.11", tmp_path / "pyenv/versions/3.11.7/bin")
    newer = pythons("python3", "3.12", tmp_path / "pyenv/versions/3.12.1/bin")
    assert find_python() == newer


def test_without_a_python_that_is_new_enough_the_remedy_is_named(pythons):
    with pytest.raises(InstallError, match=r"needs Python 3\.12 or newer") as refused:
        find_python()
    assert "none of python3.12" in refused.value.cause
    pythons("python3", "3.11")
    with pytest.raises(InstallError) as refused:
        find_python()
    assert refused.value.cause == "python3 is Python 3.11"
    assert "--endpoints_python=PATH" in refused.value.remedy


def test_a_given_python_is_taken_or_refused_whatever_path_has(pythons, tmp_path):
    pythons("python3.12", "3.12")
    old = pythons("python3", "3.11", tmp_path / "other")
    with pytest.raises(InstallError) as refused:
        find_python(str(old))
    assert refused.value.cause == f"{old} is Python 3.11"
    with pytest.raises(InstallError) as refused:
        find_python("/bin/true")
    assert refused.value.cause == "/bin/true is no Python"


def test_this_python_is_asked_for_its_version():
    least = tuple(map(int, endpoints_rules().client.least_python.split(".")))
    if sys.version_info[:2] >= least:
        assert find_python(sys.executable)
    else:
        with pytest.raises(InstallError, match="needs Python"):
            find_python(sys.executable)


def test_the_checker_needs_no_newer_python(pythons):
    require_python(InstallationSettings(part="checker"))
    with pytest.raises(InstallError):
        require_python(InstallationSettings(part="client"))


def git(folder, *words):
    own = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
    return subprocess.run(own, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """A git checkout with one file, and its commit."""
    folder = tmp_path / "source"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "program.py").write_text("answer = 42\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")
    return folder, git(folder, "rev-parse", "HEAD")


def test_a_checkout_that_was_changed_or_has_another_commit_is_refused(checkout):
    folder, commit = checkout
    client = ClientInstallation(python="python", checkout=str(folder), commit=commit)
    require_unmodified(client)
    (folder / "program.py").write_text("answer = 43\n")
    with pytest.raises(InstallError, match="was changed") as refused:
        require_unmodified(client)
    assert "program.py" in refused.value.cause
    git(folder, "checkout", "--quiet", ".")
    (folder / "added.py").touch()
    with pytest.raises(InstallError, match="was changed"):
        require_unmodified(client)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=second")
    with pytest.raises(InstallError, match="is not the reference client at"):
        require_unmodified(client)


def test_the_checkout_is_a_clone_at_the_commit(checkout, tmp_path):
    folder, commit = checkout
    (folder / "later.py").touch()
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=second")
    clone = client_checkout(tmp_path / "clone", folder, "", commit)
    assert git(clone, "rev-parse", "HEAD") == commit
    assert sorted(path.name for path in clone.iterdir()) == [".git", "program.py"]
    assert git(folder, "status", "--porcelain") == ""


def test_the_pinned_commit_has_what_the_client_is_started_by(tmp_path):
    """And the points of a run at which cm4vllm relies on its files (endpoints.client)."""
    if not (source := os.environ.get("ENDPOINTS_GIT")):
        pytest.skip("ENDPOINTS_GIT names no git directory of mlcommons/endpoints")
    clone = client_checkout(tmp_path / "clone", Path(source), "", endpoints_rules().client.commit)
    client = ClientInstallation(python="", checkout=str(clone), commit=endpoints_rules().client.commit)
    require_unmodified(client)
    program = clone / "src/inference_endpoint"
    assert (program / "main.py").is_file()
    run = (program / "commands/benchmark/execute.py").read_text()
    for name in ("result_summary.json", "sample_idx_map.json", "events.jsonl"):
        assert name in run
    assert "response_counts" in (program / "commands/benchmark/accuracy.py").read_text()


@pytest.mark.parametrize("source", ["no checkout", "another project"])
def test_a_source_without_the_client_is_refused(checkout, tmp_path, source):
    given = checkout[0] if source == "another project" else tmp_path
    with pytest.raises(SourceUnavailable, match="no git checkout|does not hold the reference client") as refused:
        client_checkout(tmp_path / "clone", given, "", endpoints_rules().client.commit)
    assert "--endpoints_src" in refused.value.remedy


@pytest.mark.long
def test_the_client_is_installed_from_a_clean_checkout(reference_client, tmp_path):
    """It says its version from its environment, and its commit is the pinned one."""
    client = read_record(reference_client, ClientInstallation)
    require_unmodified(client)
    assert client.commit.startswith(endpoints_rules().client.commit)
    words = [client.python, "-P", "-c", "import inference_endpoint as found; print(found.__file__)"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, cwd=tmp_path, env={"PATH": os.environ["PATH"]}
    )
    assert done.stdout.startswith(client.checkout)


def test_foreign_files_at_the_place_of_the_clients_checkout_are_kept(checkout, tmp_path, capsys):
    source, commit = checkout
    place = tmp_path / "client" / "endpoints"
    for _ in range(2):
        (place / "sub").mkdir(parents=True, exist_ok=True)
        (place / "sub" / "notes.txt").write_text("mine")
        client_checkout(place, source, "unused", commit)
        assert (place / "program.py").exists() and not (place / "sub").exists()
    for kept in ("kept-endpoints", "kept1-endpoints"):
        assert [path.name for path in (place.parent / kept).rglob("*")] == ["sub", "notes.txt"]
        assert kept in capsys.readouterr().out or kept == "kept1-endpoints"
