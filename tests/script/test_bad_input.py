"""Bad input: a message with cause and remedy, an exit code of its own, no traceback, nothing left over."""

import http.server
import json
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from cm4vllm.common.errors import (
    DatasetError,
    DiskFull,
    NotWritable,
    PortInUse,
    ServerUnreachable,
    ServerUnsuitable,
    UsageError,
)
from listing_server import listing_url


@pytest.mark.parametrize(
    ("flag", "tags", "words"),
    [
        ("--modell=llama3.1-8b", "", ["modell", "model"]),
        ("--server_target_qps=fast", "", ["--server_target_qps='fast'", "must be a number"]),
        ("--quiet", ",_vlm", ["vlm", "vllm"]),
        ("--quiet", ",_r3.1", ["known: r4.1, r5.0, r5.1, r6.0, r6.1"]),
        ("--round=v6.0", "", ["--round", "among the tags", "_r6.0"]),
        ("--find_performance", "", ["among the tags", "_find-performance"]),
        ("--gpu_memory_utilization=95", "", ["above 0, and 1 at most", "give --gpu_memory_utilization=0.95"]),
    ],
)
def test_a_flag_a_variation_or_a_value_nobody_defined_names_the_nearest(cm, flag, tags, words):
    done = cm.main_job(flag, tags=tags)
    done.refused_with(UsageError.exit_code, *words)
    assert not (cm.cwd / "mlperf-results").exists()
    assert "processors" not in done.output and "operating system" not in done.output, "facts about the machine"


@pytest.mark.parametrize(
    "words", [("--scenario", "Offline"), ("--env.CM_MLPERF_DEVICE", "cpu", "--plan"), ("-offline_target_qps", "-.5")]
)
def test_a_value_that_is_not_joined_to_its_flag_is_refused_with_the_right_form(cm, words):
    cm.main_job(*words).refused_with(UsageError.exit_code, " ".join(words[:2]), "=".join(words[:2]))


@pytest.mark.parametrize(
    ("words", "example"),
    [
        (("--vllm_model_name", "--plan"), "--vllm_model_name=Qwen/Qwen3-8B"),
        (("--plan", "-output_dir"), "--output_dir=VALUE"),
    ],
)
def test_a_flag_that_needs_a_value_is_refused_without_one(cm, words, example):
    cm.main_job(*words).refused_with(UsageError.exit_code, "is given without a value", example)


def test_a_value_that_begins_with_dashes_is_quoted_in_the_right_form(cm):
    done = cm.main_job("--extra_args", "--max-num-seqs 64", "--plan")
    done.refused_with(UsageError.exit_code, "'--extra_args=--max-num-seqs 64'", "a flag of its own")


def test_words_that_cm_does_not_read_are_refused(cm):
    done = cm.main_job("--plan", "--", "--scenario=Offline")
    done.refused_with(UsageError.exit_code, "-- --scenario=Offline", "leave the -- out")


def test_switches_and_texts_that_take_yes_need_no_value(cm):
    done = cm.main_job("--plan", "--rerun", "-find_target_qps", "--quiet")
    assert done.code == 0, done.output


def test_a_switch_of_the_engine_may_stand_before_the_name_of_a_script(cm):
    done = cm("run", "script", "--quiet", "detect-os")
    assert done.code == 0, done.output


@pytest.mark.parametrize(
    ("tags", "flags", "words"),
    [
        ("replay,mlperf", ["--capsule=nope.yaml"], ["nope.yaml does not exist", "rerun.yaml"]),
        ("verify,mlperf", ["--capsule=nope", "--other=nope"], ["nope does not exist", "rerun.yaml"]),
        ("check,mlperf,results", ["--input=cm.txt"], ["cm.txt is a file, not a folder"]),
        ("verify,mlperf", ["--capsule=a", "--other=b", "--accuracy_tolerance=5"], ["--accuracy_tolerance=0.05"]),
    ],
)
def test_paths_and_parts_are_named_as_what_they_are(cm, tags, flags, words):
    (cm.cwd / "cm.txt").touch()
    cm("run", "script", f"--tags={tags}", *flags).refused_with(UsageError.exit_code, *words)


@pytest.mark.parametrize(
    ("tags", "named"),
    [
        ("install,vllm,_cuda,_version.0.30.0", "vLLM 0.30.0, CUDA build"),
        ("install,vllm,_cpu", "(default), CPU build"),
        ("run-mlperf,inference,_vllm", "vLLM 0.31.0, CPU build"),
    ],
)
def test_a_plan_names_the_version_that_was_asked_for(cm, tags, named):
    # --new: one of them may be in this CM home already, from the tests of the real vLLM.
    version = () if "install," in tags else ("--vllm_version=0.31.0", "--device=cpu")
    done = cm("run", "script", f"--tags={tags}", "--plan", "--new", *version)
    lines = [line for line in done.output.splitlines() if " build" in line]
    assert len(lines) == 2, "once beside the script and once in the sum"
    assert all(named in line for line in lines), lines


@pytest.mark.parametrize(
    ("tags", "flags"),
    [
        ("compare,mlperf,results", "--input"),
        ("explore,mlperf,results", "--input"),
        ("verify,mlperf", "--capsule and --other"),
    ],
)
def test_a_recipe_names_the_inputs_that_it_cannot_do_without(cm, tags, flags):
    cm("run", "script", f"--tags={tags}").refused_with(UsageError.exit_code, f"is not given {flags}")


def test_an_error_ends_with_its_own_text(cm):
    done = cm.start_main_job("--vllm_model_name=/nowhere", "--dataset_path=/nowhere/data.json").finish(120)
    done.refused_with(DatasetError.exit_code, "/nowhere/data.json")
    assert not done.output.rstrip().endswith("!")


def test_adr_reaches_the_recipes_that_the_job_runs(cm):
    done = cm.main_job("--adr.inference-src-fetched.tags=_nonsense")
    done.refused_with(UsageError.exit_code, "fetch,mlperf,inference,src has no variation 'nonsense'")
    assert "has no effect" not in done.output


def test_what_later_steps_would_refuse_is_refused_before_anything_is_installed(cm):
    done = cm.main_job("--output_dir=/proc/results")
    done.refused_with(NotWritable.exit_code, "/proc/results", "--output_dir")
    assert "install,vllm" not in done.output and "get,ml-model" not in done.output


ROOT = Path(__file__).parents[2]
PUBLISHED = json.loads((ROOT / "benchmarks" / "published_lines.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("words", [line["words"] for line in PUBLISHED], ids=[line["name"] for line in PUBLISHED])
def test_the_published_command_lines_are_planned_to_their_end(cm, words):
    served = [word.replace("http://localhost:8000", listing_url()) for word in words]
    done = cm("run", "script", *served, "--plan")
    assert done.code == 0, done.output
    for step in (
        "get,mlperf,inference,loadgen,_r4.1",
        "get,dataset,_mlcommons",
        "Offline performance",
        "Server accuracy",
        "generate,mlperf,inference,submission",
        "run,mlperf,inference,submission,checker",
    ):
        assert step in done.output
    assert "tiny" not in done.output


def test_an_unreachable_server(cm):
    with socket.socket() as silent:  # which does not listen, and keeps the port from others
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        done = cm.main_job(f"--api_server=http://127.0.0.1:{port}")
    done.refused_with(ServerUnreachable.exit_code, str(port), "remedy")


def test_a_server_that_is_not_vllm(cm):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = cm.main_job(f"--api_server=http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    done.refused_with(ServerUnsuitable.exit_code, "remedy")


@pytest.mark.e2e
@pytest.mark.xdist_group("vllm-2")
def test_a_port_in_use(cm):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cm.main_job(f"--port={port}", timeout_s=900)  # vLLM may have to be installed first
    done.refused_with(PortInUse.exit_code, str(port), "remedy")


@pytest.mark.parametrize(
    ("option", "code", "words"),
    [
        ("ro", NotWritable.exit_code, ["the file system of {disk} is mounted read-only", "--output_dir"]),
        ("size=1M", DiskFull.exit_code, ["MiB free", "remedy"]),
    ],
)
def test_a_file_system_without_room_for_results(cm, option, code, words):
    mount, disk = shutil.which("mount"), cm.cwd / "disk"
    disk.mkdir()
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", option, "none", disk], check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        done = cm.main_job(f"--output_dir={disk / 'results'}")
        done.refused_with(code, *(word.format(disk=disk) for word in words))
        assert not any(disk.rglob("run.json"))
    finally:
        subprocess.run(["umount", disk], check=True)
