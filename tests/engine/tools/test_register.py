import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.engine.automation import _other_checkout
from cm4vllm.engine.tools.register import engines_before, main, register, warning_about_engines

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def other(tmp_path):
    folder = tmp_path / "other" / "prefixed" / "automation" / "script"
    folder.mkdir(parents=True)
    (tmp_path / "other" / "cmr.yaml").write_text('alias: other\nuid: "00000000000000f3"\nprefix: prefixed\n')
    (folder / "module.py").touch()
    (folder / "_cm.json").write_text(json.dumps({"alias": "script", "uid": "5b4e0237da074764"}))
    return tmp_path / "other"


def test_register_adds_a_checkout_once_and_keeps_what_is_there(tmp_path, other):
    home = tmp_path / "CM"
    home.mkdir()
    (home / "repos.json").write_text(json.dumps([str(other)]))
    (home / "index.json").write_text("{}")
    assert register(ROOT, home) is True
    assert register(ROOT, home) is False
    assert json.loads((home / "repos.json").read_text()) == [str(other), str(ROOT)]
    assert not (home / "index.json").exists()


def test_a_home_is_whole_before_two_commands_at_once_would_make_it(tmp_path, monkeypatch):
    home = tmp_path / "CM"
    monkeypatch.setenv("CM_REPOS", str(home))
    assert main([str(ROOT)]) == 0
    assert (home / "repos" / "local" / "cmr.yaml").is_file()
    assert (home / "index.json").is_file()


def test_register_refuses_what_is_no_repository(tmp_path):
    with pytest.raises(UsageError, match="not a CM repository"):
        register(tmp_path, tmp_path / "CM")


def test_engine_that_comes_first_is_told(tmp_path, other):
    home = tmp_path / "CM"
    home.mkdir()
    (home / "repos.json").write_text(json.dumps([str(other), str(ROOT)]))
    assert engines_before(ROOT, home) == [other]
    warning = warning_about_engines(ROOT, home)
    assert str(other) in warning
    assert "cm run cm4vllm:script" in warning
    (home / "repos.json").write_text(json.dumps([str(ROOT), str(other)]))
    assert warning_about_engines(ROOT, home) == ""


def test_installed_repositories_come_before_registered_ones(tmp_path, other, monkeypatch):
    package = tmp_path / "site" / "cmother"
    package.parent.mkdir()
    (other / "prefixed").rename(package)
    (package / "__init__.py").touch()
    (package / "cmr.yaml").write_text('alias: installed\nuid: "00000000000000f4"\n')
    monkeypatch.syspath_prepend(str(package.parent))
    assert engines_before(ROOT, tmp_path / "CM") == [package]


def test_command_registers_and_warns(tmp_path, other):
    (tmp_path / "CM").mkdir()
    (tmp_path / "CM" / "repos.json").write_text(json.dumps([str(other)]))
    env = {"CM_REPOS": str(tmp_path / "CM"), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "cm4vllm.engine.tools.register", str(ROOT)],
        capture_output=True,
        text=True,
        env=env,
        check=True,
    )
    assert f"registered {ROOT}" in done.stdout
    assert "WARNING" in done.stderr


def test_home_after_registration_works_with_cm(tmp_path):
    register(ROOT, tmp_path / "CM")
    done = subprocess.run(
        [sys.executable, "-m", "cmind.cli", "run", "script", "--tags=get,python3"],
        text=True,
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env={"CM_REPOS": str(tmp_path / "CM"), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert f"Python: {sys.executable}" in done.stdout


@pytest.fixture
def two(tmp_path):
    """Two checkouts of one repository, each with the engine of this one."""
    checkouts = [tmp_path / name for name in ("first", "second")]
    for checkout in checkouts:
        checkout.mkdir()
        (checkout / "cmr.yaml").write_text((ROOT / "cmr.yaml").read_text())
        (checkout / "automation").symlink_to(ROOT / "automation")
    return checkouts


@pytest.mark.parametrize("home", ["first/.cm", "elsewhere", "first/deep/home"])
def test_a_home_of_another_checkout_is_refused_with_both_paths(two, tmp_path, home, monkeypatch, capsys):
    first, second = two
    monkeypatch.setenv("CM_REPOS", str(tmp_path / home))
    assert main([str(first)]) == 0
    before = (tmp_path / home / "repos.json").read_bytes()
    assert main([str(second)]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert str(first) in said and str(second) in said and "unset CM_REPOS" in said
    assert (tmp_path / home / "repos.json").read_bytes() == before


def test_a_home_that_was_copied_with_its_checkout_leads_to_the_copy(two, tmp_path, other, monkeypatch, capsys):
    first, second = two
    monkeypatch.setenv("CM_REPOS", str(first / ".cm"))
    register(other, first / ".cm")
    assert main([str(first)]) == 0
    shutil.copytree(first / ".cm", second / ".cm")
    monkeypatch.setenv("CM_REPOS", str(second / ".cm"))
    assert main([str(second)]) == 0
    assert f"{second / '.cm'} was copied with {first}" in capsys.readouterr().out
    listed = json.loads((second / ".cm" / "repos.json").read_text())
    assert str(second) in listed and str(other) in listed and not [path for path in listed if str(first) in path]
    assert str(first) in json.loads((first / ".cm" / "repos.json").read_text())


@pytest.mark.parametrize("kind", ["file", "file above it", "link to nothing"])
def test_a_home_that_is_no_folder_is_named(tmp_path, kind, monkeypatch, capsys):
    home = tmp_path / "home"
    if kind == "link to nothing":
        home.symlink_to("/proc/nothing")
    else:
        home.write_text("")
    monkeypatch.setenv("CM_REPOS", str(home / "CM" if kind == "file above it" else home))
    assert main([str(ROOT)])
    said = capsys.readouterr().err
    assert f"cannot write to {tmp_path}" in said and "CM_REPOS" in said


def test_two_at_once_make_one_home(two, tmp_path):
    words = [sys.executable, "-m", "cm4vllm.engine.tools.register", str(two[0])]
    env = {**os.environ, "CM_REPOS": str(tmp_path / "CM"), "PYTHONPATH": str(ROOT / "src")}
    both = [subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert b"".join(said).count(b"registered") == 1


def test_recipes_of_another_checkout_than_the_package_are_named(two):
    recipes = str(two[0] / "automation" / "script")
    assert _other_checkout(str(ROOT / "automation" / "script")) == ""
    (two[0] / "automation").unlink()
    (two[0] / "automation" / "script").mkdir(parents=True)
    warning = _other_checkout(recipes)
    assert str(two[0]) in warning and str(ROOT) in warning
