"""The installation of the reference client: its Python, its checkout, and that nothing in it was changed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.common.errors import InstallError, SourceUnavailable, UsageError
from cm4vllm.common.records import read_record
from cm4vllm.endpoints.client import ClientInstallation, require_unmodified
from cm4vllm.endpoints.client_source import client_checkout, wanted_commit
from cm4vllm.endpoints.installation import InstallationSettings, find_python, locked_packages, require_installable
from cm4vllm.rules import endpoints_rules

NEWEST = endpoints_rules().client.commits[-1]


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
    assert require_installable(InstallationSettings(part="checker")) == []
    with pytest.raises(InstallError, match="needs Python"):
        require_installable(InstallationSettings(part="client"))


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


@pytest.fixture
def client_source(checkout):
    """A git directory of a client that pins its packages: two commits, the first without a lock file."""
    folder, first = checkout
    (folder / "uv.lock").write_text("version = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=second")
    return folder, first, git(folder, "rev-parse", "HEAD")


def test_a_commit_is_found_in_the_given_source_by_its_name_or_a_part_of_it(client_source):
    folder, _, commit = client_source
    assert wanted_commit(commit, str(folder)) == wanted_commit(commit[:9].upper(), str(folder)) == commit
    assert wanted_commit("") == wanted_commit(NEWEST[:7]) == NEWEST
    assert wanted_commit("0123456789" * 4) == "0123456789" * 4  # its home may have it


@pytest.mark.parametrize("given", ["main", "v1.0", "12345", "0" * 41, "-ea33275"])
def test_what_names_no_commit_is_refused(client_source, given):
    with pytest.raises(UsageError, match="names no commit"):
        wanted_commit(given, str(client_source[0]))


def test_a_part_of_a_name_needs_a_source(client_source):
    with pytest.raises(UsageError, match="only a part of the name") as refused:
        wanted_commit("0123456")
    assert NEWEST in refused.value.cause and "--endpoints_src" in refused.value.remedy


@pytest.mark.parametrize(
    ("given", "cause"), [("0123456789" * 4, "no commit there has this name"), ("0123456", "begins so")]
)
def test_a_commit_that_the_source_does_not_hold_is_refused(client_source, given, cause):
    with pytest.raises(SourceUnavailable, match=f"does not hold the reference client at {given}") as refused:
        wanted_commit(given, str(client_source[0]))
    assert cause in refused.value.cause and "--endpoints_commit" in refused.value.remedy


def test_a_commit_without_pinned_packages_is_refused(client_source):
    folder, first, _ = client_source
    with pytest.raises(SourceUnavailable, match=f"at {first[:12]} has no uv.lock"):
        wanted_commit(first, str(folder))


def test_a_commit_that_was_not_tried_is_noted(client_source, pythons, monkeypatch):
    folder, _, commit = client_source
    python = pythons("python3.12", "3.12")
    monkeypatch.setenv("PATH", os.pathsep.join([str(python.parent), os.defpath]))
    (note,) = require_installable(InstallationSettings(commit=commit, source=str(folder), python=str(python)))
    assert commit[:12] in note and NEWEST[:12] in note


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


def test_the_newest_commit_has_what_the_client_is_started_by(tmp_path, endpoints_git):
    """And the points of a run at which cm4vllm relies on its files (endpoints.client)."""
    clone = client_checkout(tmp_path / "clone", endpoints_git, "", NEWEST)
    client = ClientInstallation(python="", checkout=str(clone), commit=NEWEST)
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
        client_checkout(tmp_path / "clone", given, "", NEWEST)
    assert "--endpoints_src" in refused.value.remedy


#: The lock file of a client that needs a package with an extra, and another one for its tests only.
LOCKED = """
version = 1
requires-python = ">=3.11"

[[package]]
name = "client"
version = "0.1.0"
source = { editable = "." }
dependencies = [{ name = "needed" }]

[package.dev-dependencies]
dev = [{ name = "tested" }]

[[package]]
name = "needed"
version = "1.2"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://example.org/needed-1.2-py3-none-any.whl", hash = "sha256:HASH" }]

[[package]]
name = "tested"
version = "3.4"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://example.org/tested-3.4-py3-none-any.whl", hash = "sha256:HASH" }]
""".replace("HASH", "ab" * 32)


@pytest.fixture
def python_with_uv(tmp_path):
    """The Python of an environment with the uv of the tests' own."""
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "uv"):
        if not (own := Path(sys.executable).with_name(name)).exists():
            pytest.skip(f"{name} is not installed")
        (folder / name).symlink_to(own)
    return folder / "python"


def test_the_packages_of_a_client_are_those_that_its_own_lock_file_pins(tmp_path, python_with_uv, monkeypatch):
    checkout = tmp_path / "endpoints"
    checkout.mkdir()
    named = '[project]\nname = "client"\nversion = "0.1.0"\nrequires-python = ">=3.11"\ndependencies = ["needed"]\n'
    (checkout / "pyproject.toml").write_text(f'{named}[dependency-groups]\ndev = ["tested"]\n')
    (checkout / "uv.lock").write_text(LOCKED)
    monkeypatch.setenv("UV_PROJECT", "/nonexistent")
    listed = locked_packages(python_with_uv, checkout, NEWEST)
    assert listed.read_text().split() == ["needed==1.2", "\\", f"--hash=sha256:{'ab' * 32}"]
    assert sorted(path.name for path in checkout.iterdir()) == ["pyproject.toml", "uv.lock"]
    (checkout / "uv.lock").write_text("version = 99\n")
    with pytest.raises(InstallError, match=r"the uv.lock of the reference client at ea3327530376 cannot be read"):
        locked_packages(python_with_uv, checkout, NEWEST)
    (checkout / "uv.lock").unlink()
    with pytest.raises(SourceUnavailable, match="has no uv.lock"):
        locked_packages(python_with_uv, checkout, NEWEST)


@pytest.mark.long
def test_the_client_is_installed_from_a_clean_checkout(reference_client, tmp_path):
    """It has its version from its environment, and its commit is the newest that was tried."""
    client = read_record(reference_client, ClientInstallation)
    require_unmodified(client)
    assert client.commit == NEWEST
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
