"""Any submission tree checked as a user checks it."""

import json
import shutil
import socket

import pytest

from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.results.capsule import Capsule, CapsuleServer
from cm4vllm.submission.capsule.rerun_file import write_capsule


@pytest.fixture
def tree(neural_magic, tmp_path):
    home = tmp_path / "open" / neural_magic.name
    shutil.copytree(neural_magic, home, copy_function=shutil.copyfile)
    for path in [home, *home.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    next(home.glob("results/*/*/*/accuracy/mlperf_log_detail.txt")).unlink()
    return tmp_path


def recipe(cm, tags, *flags):
    return cm("run", "script", f"--tags={tags}", "--quiet", *flags)


def answer_of(done):
    """Return what --out=json prints after the lines of the command."""
    return json.loads(done.output[done.output.index("{\n") : done.output.rindex("}") + 1])


def test_findings_are_printed_and_errors_end_with_60(cm, tree):
    done = recipe(cm, "check,mlperf,results", f"--input={tree}")
    words = ("error FILE-MISSING", "mlperf_log_detail.txt: is missing", "docs/checks.md")
    done.refused_with(SubmissionError.exit_code, *words)


@pytest.mark.parametrize("tags", ["check,mlperf,results", "check,mlperf,endpoints"])
def test_the_removed_log_is_refused_with_what_takes_its_place(cm, tree, tags):
    done = recipe(cm, tags, f"--input={tree}", "--sarif=found.sarif")
    done.refused_with(UsageError.exit_code, "--sarif", "--out=json")


def test_json_has_all_findings_whatever_the_exit_code(cm, tree):
    done = recipe(cm, "check,mlperf,results", f"--input={tree}", "--out=json")
    assert done.code == SubmissionError.exit_code
    answer = answer_of(done)
    assert answer["return"] == SubmissionError.exit_code
    state = answer["new_state"]
    assert "FILE-MISSING" in {entry["code"] for entry in state["findings"]}
    assert [entry["rules_of"] for entry in state["checked"]] == ["v4.1"]
    assert state["not_checked"]
    assert state["coverage"]["results"] == state["coverage"]["rules_applied"] == 10


def test_filters_are_flags(cm, tree):
    codes = "--code=MODEL-NOT-VERIFIABLE,FILE-MISSING"
    filters = ("--submitter=open/NeuralMagic", "--severity=note", codes)
    done = recipe(cm, "check,mlperf,results", f"--input={tree}", *filters)
    assert done.code == SubmissionError.exit_code
    assert "note MODEL-NOT-VERIFIABLE" in done.output and "FILE-MISSING" not in done.output


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--code=MODEL-NOT-VERIFIABL"], ["MODEL-NOT-VERIFIABLE", "--code"]),
        (["--results_round=v9.9"], ["unknown round 'v9.9'", "v6.1"]),
    ],
)
def test_a_code_and_a_round_that_do_not_exist_are_refused(cm, tree, flags, words):
    recipe(cm, "check,mlperf,results", f"--input={tree}", *flags).refused_with(UsageError.exit_code, *words)


# --- results compared as a user compares them, and explored


def test_two_published_systems_side_by_side(cm, neural_magic, tmp_path):
    systems = ",".join(str(path) for path in sorted((neural_magic / "results").glob("4xH100*")))
    page = f"--comparison_page={tmp_path}/page.html"
    done = recipe(cm, "compare,mlperf,results", f"--input={systems}", "--out=json", page)
    assert done.code == 0, done.output
    assert [side["name"] for side in answer_of(done)["new_state"]["comparison"]["sides"]] == ["A", "B"]
    assert "weight data types" in (tmp_path / "page.html").read_text()


def test_a_page_is_made_of_a_repository(cm, neural_magic, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    page = f"--explorer_page={tmp_path}/page.html"
    done = recipe(cm, "explore,mlperf,results", f"--input={neural_magic.parents[1]}", page)
    assert done.code == 0, done.output
    assert "results: 10; submitters: 1; folders of submitters read now: 1, kept from an earlier run: 0" in done.output
    assert (tmp_path / "page.html").read_text().count('<tr><th scope="row">') == 10
    assert len(list((tmp_path / "cache" / "cm4vllm" / "published").iterdir())) == 1
    (tmp_path / "empty").mkdir()
    none = recipe(cm, "explore,mlperf,results", f"--input={tmp_path / 'empty'}")
    none.refused_with(SubmissionError.exit_code, "no published results")


# --- a capsule of a stranger at the command line: nothing of it is asked, fetched or run before the user agreed


REPLAY = ("run", "script", "--tags=replay,mlperf", "--capsule=rerun.yaml")


@pytest.fixture
def host():
    """A host of a stranger: a socket that listens; a request to it could be accepted."""
    with socket.create_server(("127.0.0.2", 0)) as listening:
        listening.settimeout(0.2)
        yield listening


def asked(listening):
    try:
        listening.accept()[0].close()
    except TimeoutError:
        return False
    return True


def stranger(folder, *flags):
    names = {"round": "v6.1", "division": "open", "submitter": "Stranger", "system": "box", "benchmark": "llama3.1-8b"}
    nothing = {name: {} for name in ("program", "packages", "contents", "dataset", "machine")}
    command = ["cm", "run", "script", "--tags=run-mlperf,inference,_vllm", *flags]
    parts = {"model": {"name": "tiny-llama"}, "server": CapsuleServer(), "scripts": [], "results": []}
    capsule = Capsule(made_from="run records", rehearsal=True, command=command, **names, **nothing, **parts)
    write_capsule(folder / "rerun.yaml", capsule)


@pytest.mark.parametrize("way", [(), ("--plan",)])
def test_a_package_index_of_a_stranger_is_refused_with_the_line_to_type(cm, host, way):
    address = "http://{}:{}/simple/".format(*host.getsockname())
    stranger(cm.cwd, f"--vllm_index_url={address}")
    done = cm(*REPLAY, *way)
    done.refused_with(UsageError.exit_code, f"--vllm_index_url={address}: the only package index")
    assert "--accept=vllm_index_url" in done.output and "running:" not in done.output
    assert not asked(host)


def test_a_secret_of_the_environment_is_not_sent(cm, host, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret-4711")
    address = "http://{}:{}".format(*host.getsockname())
    stranger(cm.cwd, f"--api_server={address}/${{AWS_SECRET_ACCESS_KEY:?}}")
    for way in ((), ("--fill=AWS_SECRET_ACCESS_KEY", "--accept=api_server")):
        done = cm(*REPLAY, *way)
        done.refused_with(UsageError.exit_code, "AWS_SECRET_ACCESS_KEY is not filled into")
        assert "4711" not in done.output and not asked(host)


def test_the_plan_of_a_replay_is_that_of_its_job(cm):
    stranger(cm.cwd, "--scenario=Offline", "--extra_args=--middleware=evil.M")
    done = cm(*REPLAY, "--plan", "--accept=extra_args")
    assert done.code == 0, done.output
    assert "step Offline performance" in done.output and "Server performance" not in done.output
    cm(*REPLAY, "--plan").refused_with(UsageError.exit_code, "--accept=extra_args")


def test_a_capsule_that_is_compared_runs_nothing(cm, host):
    address = "http://{}:{}/simple/".format(*host.getsockname())
    stranger(cm.cwd, f"--vllm_index_url={address}", f"--api_server={address}")
    done = cm("run", "script", "--tags=verify,mlperf", "--capsule=rerun.yaml", "--other=rerun.yaml")
    assert done.code == 0, done.output
    assert not asked(host)
