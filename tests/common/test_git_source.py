import subprocess

import pytest

from cm4vllm.common.errors import SourceUnavailable
from cm4vllm.common.git.git_source import extract


def git(folder, *words, text=""):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, input=text.encode())
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path):
    """A function: makes a commit of entries {name: (mode, content)}, also such as git itself does not write."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "--bare")

    def commit(entries):
        trees = ""
        for name, (mode, content) in entries.items():
            if isinstance(content, dict):
                kind, named = "tree", tree(content)
            else:
                kind, named = "blob", git(folder, "hash-object", "-w", "--stdin", text=content)
            trees += f"{mode} {kind} {named}\t{name}\n"
        return git(folder, "mktree", text=trees)

    tree = commit
    return folder, lambda entries: git(folder, "commit-tree", "-m", "one", tree(entries))


def test_files_come_with_their_bytes_and_may_be_executed_where_they_may(repository, tmp_path):
    folder, commit = repository
    made = commit(
        {
            "run.sh": ("100755", "#!/bin/sh\r\necho as published\n"),
            "deep": ("040000", {"ünï code.py": ("100644", "print('é')\n"), "empty": ("100644", "")}),
            "left": ("100644", "not asked for"),
        }
    )
    extract(folder, made, ["run.sh", "deep"], tmp_path / "out")
    written = {path.relative_to(tmp_path / "out").as_posix(): path for path in (tmp_path / "out").rglob("*")}
    assert sorted(written) == ["deep", "deep/empty", "deep/ünï code.py", "run.sh"]
    assert written["run.sh"].read_bytes() == b"#!/bin/sh\r\necho as published\n"
    assert written["deep/ünï code.py"].read_text() == "print('é')\n"
    assert {name: oct(path.stat().st_mode) for name, path in written.items() if path.is_file()} == {
        "run.sh": "0o100755",
        "deep/empty": "0o100644",
        "deep/ünï code.py": "0o100644",
    }


@pytest.mark.parametrize(
    "entries",
    [
        {"code": ("040000", {"out": ("120000", "../..")})},
        {"code": ("040000", {"out": ("120000", "/etc")})},
        {"code": ("040000", {"..": ("040000", {"taken.py": ("100644", "")})})},
    ],
    ids=["link", "absolute link", "name"],
)
def test_nothing_leads_out_of_the_folder(entries, repository, tmp_path):
    folder, commit = repository
    with pytest.raises(SourceUnavailable, match=r"code/out|an entry .\.\."):
        extract(folder, commit(entries), ["code"], tmp_path / "deep" / "out")
    assert not list(tmp_path.glob("**/taken.py"))
    assert not [path for path in (tmp_path / "deep").rglob("*") if path.is_symlink()]
