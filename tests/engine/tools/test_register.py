import json
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.common.errors import UsageError
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
