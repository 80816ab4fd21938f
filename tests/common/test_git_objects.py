"""Git directories of strangers: their objects are read, and nothing that their configuration names is run."""

import os
import subprocess
import zlib
from pathlib import Path

import pytest
from tests.common.conftest import CHECKER, commit_of, committed, git

from cm4vllm.common.errors import InstallError, SourceUnavailable
from cm4vllm.common.git.git_objects import borrowed, digest_of, objects_of, run_git
from cm4vllm.common.git.git_source import copy_checkout, extract, git_directory
from cm4vllm.common.programs import own_program
from cm4vllm.endpoints.client import ClientInstallation, require_unmodified
from cm4vllm.submission.checker import source


def head_of(repository):
    """Return the commit of a repository's only branch without git, which a configuration may mislead."""
    return next((repository / ".git/refs/heads").iterdir()).read_text().strip()


#: A configuration of a git directory that names commands, each run by some command of git.
TRAPS = {
    "core.fsmonitor": "{trap}",
    "filter.trap.smudge": "{trap}",
    "filter.trap.clean": "{trap}",
    "filter.trap.required": "true",
    "core.repositoryformatversion": "1",
    "extensions.partialClone": "origin",
    "remote.origin.url": "ssh://nobody@example.invalid/x",
    "remote.origin.promisor": "true",
    "core.sshCommand": "{trap}",
    "core.pager": "{trap}",
    "alias.archive": "!{trap}",
    "pager.config": "true",
    "core.hooksPath": "{hooks}",
    "include.path": "{included}",
    "diff.external": "{trap}",
    "diff.trap.textconv": "{trap}",
}


@pytest.fixture(params=["filter", "filter process"])
def trapped(request, repository, tmp_path):
    """The repository with a configuration that runs commands, and the file that these make."""
    trap, sprung, hooks = tmp_path / "trap", tmp_path / "sprung", tmp_path / "hooks"
    trap.write_text(f"#!/bin/sh\ntouch {sprung}\ncat\n")
    trap.chmod(0o755)
    hooks.mkdir()
    for name in ("post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc"):
        (hooks / name).symlink_to(trap)
    included = tmp_path / "included"
    included.write_text(f"[core]\n\tfsmonitor = {trap}\n")
    process = {"filter.trap.process": "{trap}"} if request.param == "filter process" else {}
    for key, value in {**TRAPS, **process}.items():
        git(repository, "config", key, value.format(trap=trap, hooks=hooks, included=included))
    os.utime(repository / CHECKER, (1, 1))  # git looks into a file whose time has changed
    return repository, sprung


def every_use(repository, folder):
    """Use a stranger's repository in every way in which the package uses one."""
    commit = head_of(repository)
    extract(repository / ".git", commit, ["tools"], folder / "extracted")
    source.extract_checker(source.open_source(repository), folder / "checker")
    copied = copy_checkout(repository / ".git", commit, folder / "copied", title="it")
    require_unmodified(ClientInstallation(python="", checkout=str(copied), commit=commit))
    require_unmodified(ClientInstallation(python="", checkout=str(repository), commit=commit))


def test_no_command_of_a_configuration_is_run(trapped, tmp_path, monkeypatch):
    repository, sprung = trapped
    every_use(repository, tmp_path / "out")
    assert (tmp_path / "out/extracted" / CHECKER).read_text() == "print('as published')\n"
    (repository / "cmr.yaml").write_text("alias: x\n")
    monkeypatch.setattr(own_program, "_root", lambda: repository)
    assert own_program.commit_of_this_repository() == head_of(repository)
    own_program.url_of_this_repository()
    with pytest.raises(Exception, match=r"cmr\.yaml"):  # not added: git does not list it
        own_program.program_files()
    assert not sprung.exists()


def test_a_missing_object_is_not_fetched(trapped, tmp_path):
    repository, sprung = trapped
    commit = head_of(repository)
    with objects_of(repository / ".git") as objects:
        blob = objects.files(commit, [CHECKER])[CHECKER].blob
    (repository / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(SourceUnavailable, match=blob):
        extract(repository / ".git", commit, ["tools"], tmp_path / "out")
    with pytest.raises(SourceUnavailable, match="does not hold it"):
        copy_checkout(repository / ".git", commit, tmp_path / "copied", title="it")
    assert not sprung.exists()


def test_files_are_those_of_the_commit_byte_for_byte(repository, tmp_path):
    out = tmp_path / "out"
    extract(repository / ".git", commit_of(repository), ["."], out)
    assert (out / "with space" / "größe.txt").read_bytes() == b"$Format:%H$\r\n"
    assert os.access(out / "run.sh", os.X_OK) and not os.access(out / CHECKER, os.X_OK)
    assert (out / "link").readlink() == Path("run.sh")


@pytest.mark.parametrize("kind", ["blob", "tree", "commit"])
def test_an_object_replaced_under_its_old_name_is_refused(repository, tmp_path, kind):
    commit = commit_of(repository)
    name = git(repository, "rev-parse", {"blob": f"HEAD:{CHECKER}", "tree": "HEAD:tools", "commit": "HEAD"}[kind])
    content = subprocess.run(["git", "cat-file", kind, name], cwd=repository, check=True, capture_output=True).stdout
    forged = content.replace(b"submission\0", b"submissiom\0") if kind == "tree" else content + b"more\n"
    loose = repository / ".git/objects" / name[:2] / name[2:]
    loose.chmod(0o644)
    loose.write_bytes(zlib.compress(f"{kind} {len(forged)}\0".encode() + forged))
    with pytest.raises(SourceUnavailable, match="another object|does not hold"):
        extract(repository / ".git", commit, ["tools/submission"], tmp_path / "out")
    with pytest.raises(SourceUnavailable):
        copy_checkout(repository / ".git", commit, tmp_path / "copied", title="it")


@pytest.mark.parametrize("target", ["../../../etc", "/etc"])
def test_a_link_out_of_the_repository_is_refused(repository, tmp_path, target):
    (repository / "tools/outside").symlink_to(target)
    committed(repository)
    with pytest.raises(SourceUnavailable, match="tools/outside"):
        extract(repository / ".git", commit_of(repository), ["tools"], tmp_path / "out")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]


@pytest.mark.parametrize("name", [b"..", b".git", b"a/b"])
def test_a_name_that_no_folder_can_have_is_refused(repository, tmp_path, name):
    blob = git(repository, "rev-parse", f"HEAD:{CHECKER}")
    tree = written(repository, "tree", b"100644 " + name + b"\0" + bytes.fromhex(blob))
    commit = commit_with(repository, tree)
    with pytest.raises(SourceUnavailable, match="which no folder can have"):
        extract(repository / ".git", commit, ["."], tmp_path / "out")


def commit_with(repository, tree):
    text = f"tree {tree}\nauthor a <a> 1 +0\ncommitter a <a> 1 +0\n\nx\n"
    return written(repository, "commit", text.encode())


def written(repository, kind, data):
    name = digest_of(data, kind)
    path = repository / ".git/objects" / name[:2] / name[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zlib.compress(f"{kind} {len(data)}\0".encode() + data))
    return name


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_changed_file_is_found_whatever_git_notes_of_it(repository, flag):
    """Its size and its time are those of the commit's."""
    before = (repository / CHECKER).stat()
    git(repository, "update-index", flag, CHECKER)
    (repository / CHECKER).write_text("print('as PUBLISHED')\n")
    os.utime(repository / CHECKER, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert git(repository, "status", "--porcelain") == ""
    with pytest.raises(SourceUnavailable, match="was changed"):
        source.open_source(repository)
    with pytest.raises(InstallError, match="was changed") as refused:
        require_unmodified(ClientInstallation(python="", checkout=str(repository), commit=commit_of(repository)))
    assert CHECKER in str(refused.value)


ADDED = {
    "excluded by the repository": {".git/info/exclude": "sitecustomize.py\n", "sitecustomize.py": ""},
    "excluded in a new folder": {"src/.gitignore": "*\n", "src/sitecustomize.py": ""},
    "excluded by the commit": {"tools/sitecustomize.pyc": ""},
    "compiled of no module": {"tools/__pycache__/sitecustomize.cpython-311.pyc": ""},
    "of another repository": {"src/.git/HEAD": "ref: refs/heads/main\n", "src/sitecustomize.py": ""},
}


@pytest.mark.parametrize("kind", ADDED)
def test_an_added_file_is_found_whatever_git_is_to_ignore(repository, kind):
    client = ClientInstallation(python="", checkout=str(repository), commit=commit_of(repository))
    compiled = (repository / CHECKER).parent / "__pycache__"
    compiled.mkdir()
    for name in ("main.cpython-311.pyc", "main.cpython-312.opt-1.pyc", "main.cpython-312.pyc.140229"):
        (compiled / name).write_text("")
    require_unmodified(client)
    for name, content in ADDED[kind].items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(content)
    with pytest.raises(InstallError, match=r"was changed") as refused:
        require_unmodified(client)
    assert list(ADDED[kind])[-1] in refused.value.cause


def test_an_added_link_to_a_folder_is_found(repository, tmp_path):
    client = ClientInstallation(python="", checkout=str(repository), commit=commit_of(repository))
    (repository / "package").symlink_to(tmp_path)
    with pytest.raises(InstallError, match=r"was changed") as refused:
        require_unmodified(client)
    assert refused.value.cause == "package"


@pytest.fixture
def foreign(repository):
    """The repository as another user's."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    subprocess.run(["chown", "-R", "65534:65534", repository], check=True)
    return repository


def test_another_users_directory_gives_a_pinned_commit_alone(foreign, tmp_path, monkeypatch):
    commit = head_of(foreign)
    extract(foreign / ".git", commit, ["tools"], tmp_path / "out")
    with pytest.raises(SourceUnavailable, match="belongs to another user"):
        source.open_source(foreign)  # it lacks the pinned commit, so that its own would be taken
    monkeypatch.setattr(source, "COMMIT", commit)
    assert source.open_source(foreign).commit == commit
    (foreign / ".git").rename(foreign / "no-git")
    with pytest.raises(SourceUnavailable, match="belongs to another user"):
        source.open_source(foreign)


def test_variables_of_another_repository_do_not_matter(repository, tmp_path, monkeypatch):
    """A hook of git hands them down: `make test` of a pre-commit hook, for one."""
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "file").write_text("x\n")
    committed(other)
    before = {path: path.read_bytes() for path in sorted((other / ".git").rglob("*")) if path.is_file()}
    commit = commit_of(repository)
    for name, place in (("DIR", ""), ("WORK_TREE", ".."), ("INDEX_FILE", "index"), ("OBJECT_DIRECTORY", "objects")):
        monkeypatch.setenv(f"GIT_{name}", str(other / ".git" / place))
    every_use(repository, tmp_path / "out")
    monkeypatch.setattr(own_program, "_root", lambda: repository)
    assert own_program.commit_of_this_repository() == commit
    bare = tmp_path / "bare"
    subprocess.run(
        ["git", "clone", "-q", "--bare", str(repository), str(bare)],
        check=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
    )
    source.fetch_checkout(tmp_path / "fetched", f"file://{bare}", commit, ["/tools/**"])
    assert (tmp_path / "fetched" / CHECKER).is_file()
    assert {path: path.read_bytes() for path in sorted((other / ".git").rglob("*")) if path.is_file()} == before


def test_a_worktree_is_read(repository, tmp_path):
    git(repository, "worktree", "add", "-q", "--detach", str(tmp_path / "worktree"))
    directory = git_directory(tmp_path / "worktree")
    with objects_of(directory) as objects:
        assert objects.commit("HEAD") == commit_of(repository)
    (tmp_path / "worktree" / "new.txt").write_text("x\n")
    with borrowed(directory) as own:
        listed = run_git(["ls-files", "--others", "--exclude-standard"], own, work_tree=tmp_path / "worktree")
    assert listed.output == "new.txt\n"


def linked(text):
    return lambda place: place.write_text(text)


NO_DIRECTORY = {
    "target gone": linked("gitdir: /nowhere/.git/worktrees/x\n"),
    "of zeros": linked("gitdir: a\0b\n"),
    "large": lambda place: place.touch() or os.truncate(place, 5 * 2**30),
    "a pipe": os.mkfifo,
    "an empty folder": Path.mkdir,
    "a link to itself": lambda place: place.symlink_to(place),
    "without objects": lambda place: place.mkdir() or (place / "HEAD").write_text("ref: refs/heads/x\n"),
    "a large head": lambda place: place.mkdir() or (place / "HEAD").touch() or os.truncate(place / "HEAD", 2**40),
}


@pytest.mark.parametrize("kind", NO_DIRECTORY)
def test_what_is_no_git_directory_is_refused_in_words(repository, kind):
    """A copied worktree or submodule names a directory that is not there."""
    (repository / ".git").rename(repository / "moved")
    NO_DIRECTORY[kind](repository / ".git")
    with pytest.raises(SourceUnavailable, match="is not a git directory") as refused, objects_of(repository / ".git"):
        pass
    assert refused.value.cause
    if (repository / ".git").exists():
        with pytest.raises(SourceUnavailable) as refused:
            source.open_source(repository)
        assert "--inference_src" in refused.value.remedy


def numbered(repository, levels, entries, leaf):
    """Return a commit of folders inside one another, each with the same entries, in the folder of the checker."""
    tree = leaf
    for _ in range(levels):
        lines = b"".join(b"40000 %06d\0" % number + bytes.fromhex(tree) for number in range(entries))
        tree = written(repository, "tree", lines)
    for name in (b"submission", b"tools"):
        tree = written(repository, "tree", b"40000 " + name + b"\0" + bytes.fromhex(tree))
    return commit_with(repository, tree)


@pytest.mark.parametrize(
    ("levels", "entries", "leaf"), [(10, 10, "file"), (1200, 1, "file"), (5, 100, "empty"), (60, 2, "file")]
)
def test_folders_that_stand_for_too_many_files_are_refused(repository, monkeypatch, levels, entries, leaf):
    monkeypatch.setattr("cm4vllm.common.git.git_objects._MOST_ENTRIES", 2_000)  # 100,000 take half a minute to read
    blob = git(repository, "rev-parse", f"HEAD:{CHECKER}")
    content = b"" if leaf == "empty" else b"100644 main.py\0" + bytes.fromhex(blob)
    commit = numbered(repository, levels, entries, written(repository, "tree", content))
    (repository / ".git/HEAD").write_text(f"{commit}\n")
    with pytest.raises(SourceUnavailable, match="too large"):
        source.open_source(repository)


def test_folders_of_usual_depth_are_read(repository):
    blob = git(repository, "rev-parse", f"HEAD:{CHECKER}")
    commit = numbered(repository, 30, 1, written(repository, "tree", b"100644 main.py\0" + bytes.fromhex(blob)))
    with objects_of(repository / ".git") as objects:
        assert [name.count("/") for name in objects.files(commit, ["tools"])] == [32]


def test_one_large_file_under_many_names_is_not_written(repository, tmp_path, monkeypatch):
    monkeypatch.setattr("cm4vllm.common.git.git_source.MOST_ALTOGETHER", 10_000)
    blob = written(repository, "blob", b"x" * 1000)
    tree = written(
        repository, "tree", b"".join(b"100644 %03d\0" % number + bytes.fromhex(blob) for number in range(100))
    )
    commit = commit_with(repository, tree)
    with pytest.raises(SourceUnavailable, match="too large"):
        extract(repository / ".git", commit, [], tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) == 10


@pytest.mark.parametrize("first", [b"tree \xff\n", b"tree " + b"0" * 40 + b"\n"])
def test_a_commit_that_names_no_folder_is_refused(repository, first):
    commit = written(repository, "commit", first + b"author a <a> 1 +0\n\nx\n")
    with objects_of(repository / ".git") as objects, pytest.raises(SourceUnavailable):
        objects.files(commit)


def test_a_directory_without_the_path_says_so(repository, tmp_path):
    with pytest.raises(SourceUnavailable, match="does not hold absent at"):
        extract(repository / ".git", commit_of(repository), ["tools", "absent"], tmp_path / "out")


def test_a_commit_is_copied_by_the_beginning_of_its_name(repository, tmp_path):
    commit = commit_of(repository)
    copied = copy_checkout(repository / ".git", commit[:7], tmp_path / "copied", title="it")
    assert (copied / CHECKER).read_text() == "print('as published')\n"
    require_unmodified(ClientInstallation(python="", checkout=str(copied), commit=commit[:7]))


def test_a_commit_without_files_has_none(tmp_path):
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message=empty")
    with objects_of(tmp_path / ".git") as objects:
        commit = objects.commit("HEAD")
        assert objects.files(commit) == {}
        with pytest.raises(SourceUnavailable, match="does not hold tools"):
            objects.files(commit, ["tools"])
