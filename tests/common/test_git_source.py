"""Checkouts of a commit are the same whatever a user has configured of git, but for the way to the repository."""

import pytest
from tests.common.conftest import commit_of, git

from cm4vllm.common.errors import SourceUnavailable
from cm4vllm.common.git.git_source import copy_checkout, fetch_checkout
from cm4vllm.endpoints.client import ClientInstallation, require_unmodified

#: What a user has configured for their own repositories, and a commit for its own files.
CONFIGURED = """\
[filter "lfs"]
\tsmudge = echo smudged
\tclean = cat
\tprocess = false
\trequired = true
[core]
\tautocrlf = true
\teol = crlf
\tattributesFile = {attributes}
\thooksPath = {hooks}
[init]
\ttemplateDir = {template}
[submodule]
\trecurse = true
[url "file://{mirror}"]
\tinsteadOf = https://github.example.invalid/x
"""


@pytest.fixture
def configured(repository, tmp_path, monkeypatch):
    """A user with a configuration of git; returns the address and the commit of a repository, fetched by it alone."""
    (repository / "lines.txt").write_text("one\n$Id$\ntwo\n")
    (repository / "wide.txt").write_text("ü\n")
    (repository / "large.parquet").write_text("version https://git-lfs.github.com/spec/v1\n")
    (repository / ".gitattributes").write_text(
        "*.txt text eol=crlf ident\n*.parquet filter=lfs diff=lfs merge=lfs -text\n"
    )
    git(repository, "add", ".")
    (repository / ".gitattributes").write_text("*.txt text eol=crlf ident\nwide.txt working-tree-encoding=UTF-16\n")
    blob = git(repository, "hash-object", "-w", ".gitattributes")
    git(repository, "update-index", "--add", "--cacheinfo", "100644", blob, ".gitattributes")
    git(repository, "commit", "-q", "-m", "two")
    mirror, home, hooks, template = (tmp_path / name for name in ("mirror", "home", "hooks", "template"))
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(mirror))
    for folder in (home, hooks, template / "info", template / "hooks"):
        folder.mkdir(parents=True)
    for hook in (hooks / "post-checkout", template / "hooks" / "post-checkout"):
        hook.write_text("#!/bin/sh\necho changed >> lines.txt\n")
        hook.chmod(0o755)
    (template / "info/attributes").write_text("*.txt eol=crlf\n")
    attributes = tmp_path / "attributes"
    attributes.write_text("* text=auto eol=crlf\n*.parquet filter=lfs\n")
    (home / ".gitconfig").write_text(
        CONFIGURED.format(mirror=mirror, hooks=hooks, template=template, attributes=attributes)
    )
    monkeypatch.setenv("HOME", str(home))
    return "https://github.example.invalid/x", commit_of(repository)


@pytest.mark.parametrize("way", ["fetched", "copied"])
def test_a_checkout_is_that_of_its_commit_whatever_a_user_has_configured(configured, repository, tmp_path, way):
    url, commit = configured
    if way == "fetched":
        place = fetch_checkout(tmp_path / "out", url, commit, ["/*"])
    else:
        place = copy_checkout(repository / ".git", commit, tmp_path / "out", title="it")
    require_unmodified(ClientInstallation(python="", checkout=str(place), commit=commit))
    assert (place / "lines.txt").read_bytes() == b"one\n$Id$\ntwo\n"
    assert (place / "wide.txt").read_bytes() == "ü\n".encode()
    assert (place / "large.parquet").read_text().startswith("version https://git-lfs")


def test_the_way_may_be_configured_in_the_environment(configured, repository, tmp_path, monkeypatch):
    _, commit = configured
    way = f"url.file://{tmp_path / 'mirror'}.insteadOf"
    pairs = [(way, "https://gitlab.example.invalid/y"), ("core.worktree", str(repository))]
    monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
    for number, (key, value) in enumerate(pairs):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'core.worktree'='{repository}'")
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    before = {path: path.read_bytes() for path in repository.glob("*") if path.is_file()}
    place = fetch_checkout(tmp_path / "out", "https://gitlab.example.invalid/y", commit, ["/*"])
    require_unmodified(ClientInstallation(python="", checkout=str(place), commit=commit))
    assert {path: path.read_bytes() for path in repository.glob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("configuration", "message", "cause"),
    [
        ("[http]\n\tproxy = http://127.0.0.1:9\n", "fetched from", "127.0.0.1"),
        ("[http\n", "cannot read its config", ".gitconfig"),
    ],
    ids=["a proxy that nothing listens at", "not readable"],
)
def test_what_the_users_configuration_of_git_says_is_named(tmp_path, monkeypatch, configuration, message, cause):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text(configuration)
    with pytest.raises(SourceUnavailable, match=message) as refused:
        fetch_checkout(tmp_path / "out", "https://github.example.invalid/x", "0" * 40, ["/*"])
    assert cause in refused.value.cause
