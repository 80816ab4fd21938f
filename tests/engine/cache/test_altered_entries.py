"""Entries of the cache that were altered, and recipes that were edited: made again, by their content."""

import json
import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

MAKE = 'echo run >> "$CM_LOG"; mkdir -p d; echo one > d/file; echo two > top; echo "CM_DIR=$PWD/d" > tmp-run-env.out\n'


def made(home, **given):
    result = home.run("make", env={"CM_LOG": str(home.work / "log")}, **given)
    assert result["return"] == 0, result
    return len((home.work / "log").read_text().split())


@pytest.mark.parametrize(
    "alter",
    [
        lambda entry: (entry / "top").write_text("2wo\n"),
        lambda entry: (entry / "d" / "file").write_text("0ne\n"),
        lambda entry: (entry / "d" / "file").unlink(),
        lambda entry: (entry / "top").write_text(""),
    ],
)
def test_an_altered_entry_is_found_out_and_made_again(home, alter):
    home.script("make", {"cache": True, "new_env_keys": ["CM_DIR"]}, run=MAKE)
    assert made(home) == 1
    assert made(home) == 1
    alter(home.entries()[0])
    assert made(home) == 2
    assert made(home) == 2
    assert (home.entries()[0] / "d" / "file").read_text() == "one\n"


def test_touched_and_added_files_alter_nothing(home):
    home.script("make", {"cache": True, "new_env_keys": ["CM_DIR"]}, run=MAKE)
    made(home)
    os.utime(home.entries()[0] / "top", (1, 1))
    (home.entries()[0] / "d" / "added").write_text("new")
    assert made(home) == 1


def test_an_edited_recipe_makes_an_entry_of_its_own_and_texts_for_people_do_not(home):
    folder = home.script("make", {"cache": True, "new_env_keys": ["CM_DIR"]}, run=MAKE)
    assert made(home) == 1
    (folder / "README.md").write_text("more words")
    text = (folder / "_cm.yaml").read_text()
    (folder / "_cm.yaml").write_text(text + "variations: {unused: {env: {CM_Z: z}}}\ntags_help: words\n")
    assert made(home) == 1
    (folder / "run.sh").write_text(MAKE + "# another way\n")
    assert made(home) == 2
    (folder / "run.sh").write_text(MAKE)
    assert made(home) == 2
    (folder / "_cm.yaml").write_text(text + "env: {CM_NEW: '1'}\n")
    assert made(home) == 3


def test_state_that_cannot_be_kept_is_told_and_leaves_no_entry(home):
    home.script(
        "one",
        {"cache": True, "new_state_keys": ["s"]},
        customize="def preprocess(i): i['state']['s'] = {1, 2}; return {'return': 0}\n",
    )
    assert home.run("one")["return"] == 3
    assert home.entries() == []


def copy_of_package(folder):
    """Copy the package with its bytecode, but for what another process is just writing, under another name."""
    shutil.copytree(ROOT / "src" / "cm4vllm", folder, ignore=shutil.ignore_patterns("*.pyc.*"))


def test_an_entry_is_not_used_once_the_code_that_made_it_was_mended(home, tmp_path):
    package = tmp_path / "package" / "cm4vllm"
    copy_of_package(package)
    module = package / "common" / "units.py"
    right = module.read_text()
    home.script(
        "one",
        {"cache": True, "new_env_keys": ["CM_MADE"], "made_by": ["cm4vllm.common.units"]},
        customize="from cm4vllm.common import units\n\n\ndef postprocess(i):\n"
        "    i['env']['CM_MADE'] = units.MADE\n    return {'return': 0}\n",
    )

    def made(text):
        module.write_text(f"{right}\n{text}\n")
        done = home.cli("run", "script", "--tags=one", "-j", PYTHONPATH=str(package.parent))
        result = json.loads(done.stdout[done.stdout.index("{") :])  # cmind says first that it indexes a new home
        return result["new_env"]["CM_MADE"], len(home.entries())

    assert made("MADE = 'wrong'") == ("wrong", 1)
    assert made("MADE = 'right'") == ("right", 2)
    assert made("# why\n\nMADE = 'right'") == ("right", 2)
    assert made("MADE = 'wrong'") == ("wrong", 2)


def test_nor_once_the_data_that_it_was_made_from_changed(home, tmp_path):
    package = tmp_path / "package" / "cm4vllm"
    copy_of_package(package)
    data = package / "common" / "data.yaml"
    home.script(
        "one",
        {"cache": True, "new_env_keys": ["CM_MADE"], "made_by": ["common/data.yaml"]},
        customize="def postprocess(i):\n    i['env']['CM_MADE'] = 'yes'\n    return {'return': 0}\n",
    )

    def entries(text):
        data.write_text(text, encoding="utf-8")
        home.cli("run", "script", "--tags=one", "-j", PYTHONPATH=str(package.parent))
        return len(home.entries())

    assert entries("preset: A\n") == 1
    assert entries("# why\npreset: A\n") == 1
    assert entries("preset: B\n") == 2
