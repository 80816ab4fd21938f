import random
import subprocess
import time

import pytest

from cm4vllm.common.errors import SourceUnavailable
from cm4vllm.submission.checker import source
from cm4vllm.submission.checker.source import extract_checker, fetch, open_source


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository shaped like mlcommons/inference: a checker among other things."""
    folder = tmp_path / "repository"
    tools = folder / "tools" / "submission" / "submission_checker"
    tools.mkdir(parents=True)
    (tools / "main.py").write_text("print('as published')\n")
    (tools.parent / "submission_checker_old.py").write_text("pass\n")
    (tools.parent / "notes.md").write_text("notes\n")
    (folder / "large.bin").write_bytes(random.Random(1).randbytes(1_000_000))
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


@pytest.fixture
def pinned(repository, monkeypatch):
    """Take the repository's commit for the pinned one."""
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setattr(source, "COMMIT", commit)
    return commit


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


AS_PUBLISHED = {"submission_checker/main.py": "print('as published')\n", "submission_checker_old.py": "pass\n"}


def test_a_checkout_gives_the_pinned_commit_whatever_lies_in_its_folder(repository, pinned, tmp_path):
    (repository / "tools/submission/submission_checker/main.py").write_text("print('patched')\n")
    source = open_source(repository)
    assert source.commit == pinned
    assert files(extract_checker(source, tmp_path / "out")[0]) == AS_PUBLISHED


def test_a_bare_git_directory_gives_the_pinned_commit(repository, pinned, tmp_path):
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare")
    source = open_source(tmp_path / "bare")
    assert source.commit == pinned
    assert files(extract_checker(source, tmp_path / "out")[0]) == AS_PUBLISHED


def test_plain_files_are_taken_and_named_by_their_digest(repository, tmp_path):
    plain = tmp_path / "plain"
    (repository / "tools").rename(plain.joinpath("tools").parent.mkdir() or plain / "tools")
    source = open_source(plain)
    assert source.commit.startswith("files with sha256 ")
    assert files(extract_checker(source, tmp_path / "out")[0]) == AS_PUBLISHED


def test_a_checkout_of_another_commit_is_taken_when_its_checker_is_unchanged(repository):
    assert open_source(repository).commit == git(repository, "rev-parse", "HEAD")


def test_a_checkout_whose_checker_was_changed_is_refused(repository):
    (repository / "tools/submission/submission_checker/main.py").write_text("print('patched')\n")
    with pytest.raises(SourceUnavailable, match="was changed"):
        open_source(repository)


def test_a_bare_git_directory_without_the_commit_is_refused(repository, tmp_path):
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare")
    with pytest.raises(SourceUnavailable, match="does not hold commit"):
        open_source(tmp_path / "bare")


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_folder_without_a_checker_is_refused_with_a_remedy(tmp_path, name):
    with pytest.raises(SourceUnavailable) as refused:
        open_source(tmp_path / name)
    assert "--inference_src=DIR" in refused.value.remedy


def test_only_the_checkers_files_are_fetched(repository, pinned, tmp_path):
    git(repository, "config", "uploadpack.allowFilter", "true")
    source = fetch(tmp_path / "fetched", f"file://{repository}", pinned)
    assert not (tmp_path / "fetched" / "large.bin").exists()
    assert sum(file.stat().st_size for file in (tmp_path / "fetched").rglob("*")) < 500_000
    assert not (tmp_path / "fetched" / "tools/submission/notes.md").exists()
    assert files(extract_checker(source, tmp_path / "out")[0]) == AS_PUBLISHED
    assert fetch(tmp_path / "fetched", "file:///nowhere", pinned) == source


def test_a_failed_fetch_leaves_nothing_that_looks_fetched(pinned, tmp_path):
    with pytest.raises(SourceUnavailable, match="cannot be fetched"):
        fetch(tmp_path / "fetched", f"file://{tmp_path}/nowhere", pinned)
    assert not (tmp_path / "fetched").exists()


def test_without_network_the_failure_is_quick_and_names_the_remedy(tmp_path, monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(source, "URL", "https://no-such-host.invalid/inference")
    begin = time.monotonic()
    with pytest.raises(SourceUnavailable) as refused:
        fetch(tmp_path / "fetched", source.URL)
    assert time.monotonic() - begin < 30  # git itself waits for minutes
    assert "--inference_src=DIR" in refused.value.remedy


def test_the_pinned_commit_of_mlcommons_inference_has_both_checkers(inference, tmp_path):
    assert inference.commit == source.COMMIT
    tools, _ = extract_checker(inference, tmp_path)
    assert (tools / "submission_checker" / "main.py").is_file()
    assert (tools / "submission_checker_old.py").is_file()
