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


def test_findings_are_printed_and_errors_end_with_60(cm, tree):
    done = cm("run", "script", "--tags=check,mlperf,results", f"--input={tree}", "--quiet")
    done.refused_with(
        SubmissionError.exit_code, "error FILE-MISSING", "mlperf_log_detail.txt: is missing", "docs/checks.md"
    )


@pytest.mark.parametrize("tags", ["check,mlperf,results", "check,mlperf,endpoints"])
def test_the_removed_log_is_refused_with_what_takes_its_place(cm, tree, tags):
    done = cm("run", "script", f"--tags={tags}", f"--input={tree}", "--quiet", "--sarif=found.sarif")
    done.refused_with(UsageError.exit_code, "--sarif", "--out=json")


def test_json_has_all_findings_whatever_the_exit_code(cm, tree, tmp_path):
    done = cm("run", "script", "--tags=check,mlperf,results", f"--input={tree}", "--out=json", "--quiet")
    assert done.code == SubmissionError.exit_code
    answer = json.loads(done.output[done.output.index("{\n") : done.output.rindex("}") + 1])
    assert answer["return"] == SubmissionError.exit_code
    assert "FILE-MISSING" in {entry["code"] for entry in answer["new_state"]["findings"]}
    assert [entry["rules_of"] for entry in answer["new_state"]["checked"]] == ["v4.1"]
    assert answer["new_state"]["not_checked"]
    counted = answer["new_state"]["coverage"]
    assert counted["results"] == counted["rules_applied"] == 10


def test_filters_are_flags(cm, tree):
    done = cm(
        "run",
        "script",
        "--tags=check,mlperf,results",
        f"--input={tree}",
        "--quiet",
        "--submitter=open/NeuralMagic",
        "--severity=note",
        "--code=MODEL-NOT-VERIFIABLE,FILE-MISSING",
    )
    assert done.code == SubmissionError.exit_code
    assert "note MODEL-NOT-VERIFIABLE" in done.output and "FILE-MISSING" not in done.output
    cm(
        "run", "script", "--tags=check,mlperf,results", f"--input={tree}", "--quiet", "--code=MODEL-NOT-VERIFIABL"
    ).refused_with(UsageError.exit_code, "MODEL-NOT-VERIFIABLE", "--code")


def test_a_round_that_does_not_exist_is_refused(cm, tree):
    done = cm("run", "script", "--tags=check,mlperf,results", f"--input={tree}", "--results_round=v9.9", "--quiet")
    done.refused_with(UsageError.exit_code, "unknown round 'v9.9'", "v6.1")


def test_a_missing_input_is_asked_for(cm):
    cm("run", "script", "--tags=check,mlperf,results", "--quiet").refused_with(UsageError.exit_code, "--input=")


# --- results compared as a user compares them


def test_two_published_systems_side_by_side(cm, neural_magic, tmp_path):
    systems = [str(path) for path in sorted((neural_magic / "results").glob("4xH100*"))]
    done = cm(
        "run",
        "script",
        "--tags=compare,mlperf,results",
        f"--input={','.join(systems)}",
        "--out=json",
        "--quiet",
        f"--comparison_page={tmp_path}/page.html",
    )
    assert done.code == 0, done.output
    answer = json.loads(done.output[done.output.index("{\n") : done.output.rindex("}") + 1])
    assert [side["name"] for side in answer["new_state"]["comparison"]["sides"]] == ["A", "B"]
    assert "weight data types" in (tmp_path / "page.html").read_text()


def test_a_missing_input_is_asked_for_compare_results(cm):
    cm("run", "script", "--tags=compare,mlperf,results", "--quiet").refused_with(UsageError.exit_code, "--input=")


# --- published results explored as a user explores them


def test_a_page_is_made_of_a_repository(cm, neural_magic, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = cm(
        "run",
        "script",
        "--tags=explore,mlperf,results",
        f"--input={neural_magic.parents[1]}",
        "--quiet",
        f"--explorer_page={tmp_path}/page.html",
    )
    assert done.code == 0, done.output
    assert "results: 10; submitters: 1; folders of submitters read now: 1, kept from an earlier run: 0" in done.output
    assert (tmp_path / "page.html").read_text().count('<tr><th scope="row">') == 10
    assert len(list((tmp_path / "cache" / "cm4vllm" / "published").iterdir())) == 1


def test_wrong_inputs_are_refused(cm, tmp_path):
    cm("run", "script", "--tags=explore,mlperf,results", "--quiet").refused_with(UsageError.exit_code, "--input=")
    cm("run", "script", "--tags=explore,mlperf,results", f"--input={tmp_path}", "--quiet").refused_with(
        SubmissionError.exit_code, "no published results"
    )


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
    write_capsule(
        folder / "rerun.yaml",
        Capsule(
            made_from="run records",
            round="v6.1",
            division="open",
            submitter="Stranger",
            system="box",
            benchmark="llama3.1-8b",
            rehearsal=True,
            program={},
            command=["cm", "run", "script", "--tags=run-mlperf,inference,_vllm", *flags],
            scripts=[],
            packages={},
            contents={},
            model={"name": "tiny-llama"},
            dataset={},
            server=CapsuleServer(),
            machine={},
            results=[],
        ),
    )


@pytest.mark.parametrize("way", [(), ("--quiet",), ("--plan",)])
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
