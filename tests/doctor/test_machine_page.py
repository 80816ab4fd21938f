"""The page of the benchmarks that a machine can run: its rows, its commands, and the names of missing parts."""

import json
import shlex
from pathlib import Path

import pytest
from cmind.cli import parse
from msgspec.structs import replace

from builders import job_of
from cm4vllm.campaign.job_checks.capabilities import runnable_benchmarks
from cm4vllm.common.checking.findings import Finding
from cm4vllm.common.errors import UsageError
from cm4vllm.common.settings import env_keys
from cm4vllm.doctor import machine_page
from cm4vllm.doctor.machine_page import Device, MachineSettings, benchmark_rows, report_machine
from cm4vllm.hardware.gpus.vendors import nvml
from cm4vllm.rules import catalogue, round_names
from cm4vllm.serving.fit.layout import GIB
from cm4vllm.serving.installation import vllm_choice
from cm4vllm.serving.options.arguments import ServerSettings
from gpu_replay import Replay

CPU = Device("cpu", 0, 24.0 * GIB)
GPUS = Device("cuda", 8, 80.0 * GIB)


@pytest.fixture(scope="module")
def rows():
    return {(row.benchmark, row.device): row for row in benchmark_rows("v6.1", [CPU, GPUS])}


def test_every_benchmark_that_can_be_run_is_listed_for_every_device(rows):
    assert rows.keys() == {(name, device) for name in runnable_benchmarks("v6.1") for device in ("cpu", "cuda")}


@pytest.mark.parametrize(
    ("key", "fits", "words"),
    [
        (("llama3.1-8b", "cpu"), True, "GiB of 24.0 GiB free"),
        (("llama2-70b-99.9", "cpu"), False, "its weights are 128 GiB, 24.0 GiB free"),
        (("llama2-70b-99.9", "cuda"), True, "tensor 4 x pipeline 1 x data 2"),
        (("deepseek-r1", "cuda"), False, "its weights are 627 GiB, 8 x 80.0 GiB"),
    ],
)
def test_whether_a_model_fits_says_the_advisor(rows, key, fits, words):
    assert rows[key].fits is fits
    assert words in rows[key].why


@pytest.mark.parametrize(("gib", "model"), [(80, "llama-2-70b-chat-fp8"), (48, "llama-2-70b-chat-gptq")])
def test_a_published_quantised_model_is_named_where_the_benchmarks_own_is_too_large(gib, model):
    rows = {row.benchmark: row for row in benchmark_rows("v6.1", [Device("cuda", 1, gib * GIB)])}
    row = rows["llama2-70b-99.9"]
    assert (row.model, row.fits) == (model, True)
    assert f"--vllm_model_name={catalogue().model(model).hub}" in row.command


@pytest.mark.parametrize("round_name", round_names())
def test_the_command_of_a_row_that_fits_is_a_job(round_name):
    for row in benchmark_rows(round_name, [CPU, GPUS]):
        given = parse(shlex.split(row.command)[1:])["cm_input"]
        if row.fits:
            assert given["plan"]
            asked = {flag: given[flag] for flag in ("model", "vllm_model_name", "device")}
            job = job_of(round=round_name, **asked)
            assert job.benchmark.name == row.benchmark
            assert given.keys() & {"tp_size", "pp_size", "dp_size"} <= env_keys(ServerSettings).keys()
        else:
            assert given["tags"] == "advise,vllm-fit"


def test_the_page_fits_100_columns_and_names_what_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    report = report_machine(
        MachineSettings(), tmp_path, [Finding(field="compiler", what="no C compiler on PATH", remedy="install gcc")]
    )
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 100
    assert "  compiler: no C compiler on PATH\n      install gcc\n" in page
    assert len(report["benchmarks"]) == len(runnable_benchmarks("v6.1")) * len(report["devices"])
    assert all(lack["remedy"] for lack in report["missing"])


def test_the_page_names_the_engines_for_containers_and_what_they_lack(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert report_machine(MachineSettings(), tmp_path, [])["container_engines"] == []
    assert "engines for containers: none of podman, docker, apptainer can be used" in capsys.readouterr().out
    for name, text in (("podman", "echo podman version 4.3.1"), ("docker", "echo no daemon; exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(machine_page, "usable_devices", lambda: ([GPUS], []))
    report = report_machine(MachineSettings(), tmp_path, [])
    page = capsys.readouterr().out
    assert report["container_engines"] == ["podman 4.3.1"]
    assert "engines for containers: podman 4.3.1" in page
    lacking = {lack["subject"]: lack for lack in report["missing"]}
    assert "no daemon" in lacking["docker"]["text"]
    assert "nvidia-ctk cdi generate" in lacking["device cuda in containers"]["remedy"]


def test_the_page_of_a_machine_with_eight_gpus_says_what_each_model_takes_of_each(tmp_path, capsys, monkeypatch):
    recording = Path(__file__).parents[1] / "hardware/recordings/h100-sxm-x4.json"
    gpus = [*nvml.VENDOR.gpus(Replay(json.loads(recording.read_text()))) * 2]
    gib = gpus[0].memory_bytes / GIB
    monkeypatch.setattr(machine_page, "detect_gpus", lambda: gpus)
    monkeypatch.setattr(machine_page, "require_device", lambda name: None)
    report = report_machine(MachineSettings(), tmp_path, [])
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 100
    assert "GPU: 8x NVIDIA H100 80GB HBM3" in page
    assert f"cuda, 8 x {gib:.1f} GiB" in page
    (row,) = (
        listed
        for listed in report["benchmarks"]
        if (listed["benchmark"], listed["device"]) == ("llama2-70b-99.9", "cuda")
    )
    assert f"of {gib:.1f} GiB on each of 8 GPUs, tensor 4 x pipeline 1 x data 2" in row["why"]
    assert "--device=cuda --tp_size=4 --dp_size=2 --plan" in " ".join(page.replace("\\", "").split())


def test_an_old_driver_is_missing_with_the_release_that_runs_with_it(tmp_path, capsys, monkeypatch):
    recording = Path(__file__).parents[1] / "hardware/recordings/h100-sxm-x4.json"
    gpus = [replace(gpu, driver="570.26") for gpu in nvml.VENDOR.gpus(Replay(json.loads(recording.read_text())))]
    monkeypatch.setattr(vllm_choice, "detect_gpus", lambda: gpus)
    report = report_machine(MachineSettings(), tmp_path, [])
    page = " ".join(capsys.readouterr().out.split())
    assert "builds of vLLM: cpu 0.32.0; cuda 0.32.0 (CUDA 13.0, NVIDIA driver 580.65.06 or newer); rocm" in page
    (lack,) = (lack for lack in report["missing"] if lack["subject"] == "device cuda")
    assert "driver 570.26 is too old for vLLM 0.32.0" in lack["text"] and "--vllm_version=0.19.1" in lack["remedy"]


def test_a_round_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"v9\.9"):
        report_machine(MachineSettings(round="v9.9"), tmp_path, [])
