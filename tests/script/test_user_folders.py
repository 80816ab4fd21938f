"""Folders that a user names to a recipe: foreign files in them survive, and plan and start say why and what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CM = Path(sys.executable).with_name("cm")
FOREIGN = {"notes.txt": b"mine", "sub/thesis.tex": b"\\documentclass", ".git/HEAD": b"ref: refs/heads/main\n"}
OFFLINE = ("--scenario=Offline", "--mode=performance", "--target_qps=1")
RUN = "app,mlperf,inference,vllm"
#: Recipes that replace a folder, each with the flag that names it, and its other flags.
REPLACING = {
    RUN: ("--output_dir", *OFFLINE),
    "generate,mlperf,endpoints,bundle": ("--bundle_dir", "--input=points"),
    "run,mlperf,endpoints,point": ("--output_dir",),
    "run,mlperf,power,client": ("--log_dir", "--run_cmd=true", "--power_server=127.0.0.1", "--ntp_server=127.0.0.1"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The environment of a user whose CM home has no entry yet."""
    place = tmp_path_factory.mktemp("home")
    env = {"CM_REPOS": str(place / "cm"), "HOME": str(place)}
    subprocess.run([CM, "add", "repo", f"--path={ROOT}"], env={**os.environ, **env}, check=True, capture_output=True)
    return env


@pytest.fixture
def run(cm, home):
    """Return a function that runs a recipe in the folder of `cm`, and returns its exit code and what it printed."""
    cm.env = home
    cm.cwd /= "work"
    cm.cwd.mkdir()

    def run(tags, *flags):
        done = cm("run", "script", f"--tags={tags}", "--quiet", *flags)
        return done.code, done.output

    run.folder = cm.cwd
    return run


def fill(folder, files=FOREIGN):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def lying(folder):
    """Return the files and links below a folder, with the content of each."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("tags", REPLACING)
def test_plan_and_start_refuse_a_folder_of_foreign_files_and_leave_it_as_it_is(run, tags):
    flag, *others = REPLACING[tags]
    fill(run.folder / "out")
    before = lying(run.folder)
    for more in (["--plan"], []):
        status, said = run(tags, *others, f"{flag}=out", *more)
        assert status == 20, said
        assert f"{run.folder / 'out'}" in said and flag in said.partition("remedy:")[2]
        assert lying(run.folder) == before


@pytest.mark.parametrize("place", ["..", "file", "link"])
def test_a_run_refuses_what_is_no_folder_of_its_own(run, place):
    fill(run.folder / "other")
    (run.folder / "file").write_text("mine")
    (run.folder / "link").symlink_to("other")
    before = lying(run.folder)
    status, said = run(RUN, *OFFLINE, f"--output_dir={place}", *(["--plan"] if place != "file" else []))
    assert status == 20, said
    assert lying(run.folder) == before


@pytest.mark.parametrize("place", [".", "new", "empty"])
def test_a_run_is_planned_for_the_working_folder_and_for_new_and_empty_ones(run, place):
    fill(run.folder)
    (run.folder / "link").symlink_to("notes.txt")
    (run.folder / "empty").mkdir()
    before = lying(run.folder)
    status, said = run(RUN, *OFFLINE, f"--output_dir={place}", "--plan")
    assert status == 0, said
    assert lying(run.folder) == before


@pytest.mark.parametrize("files", [FOREIGN, {"closed/OtherOrg/results/r.txt": b"1"}])
def test_the_main_job_refuses_a_place_of_its_tree_that_holds_other_files(run, files):
    fill(run.folder / "out" / "test" / "submission", files)
    before = lying(run.folder)
    flags = ("--scenario=Offline", "--submitter=Nobody", "--output_dir=out")
    status, said = run("run-mlperf,inference,_vllm", *flags)
    assert status == 20, said
    assert "submission" in said
    assert {name: data for name, data in lying(run.folder).items() if name in before} == before
