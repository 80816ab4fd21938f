"""The first hour on a GPU: what can be held against nothing but its own output, and the parts on the CPU backend."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import gpu
from cm4vllm.records.machine import GpuFacts

H100 = GpuFacts(
    name="NVIDIA H100 80GB HBM3",
    uuid="GPU-1",
    memory_bytes=81559 * 2**20,
    max_sm_mhz=1980.0,
    pcie_generation=5,
    pcie_width=16,
    driver="570.86.15",
)
SAID = "NVIDIA H100 80GB HBM3, 81559, 570.86.15\n"


@pytest.mark.parametrize(
    ("gpus", "said", "share"),
    [
        ([H100], SAID, 1.0),
        ([H100, H100], SAID * 2, 1.0),
        ([H100], SAID * 2, 0.5),
        ([], SAID, 0.0),
        ([H100], SAID.replace("81559", "40960"), 0.0),
        ([H100], SAID.replace("H100", "H200"), 0.0),
        ([H100], SAID.replace("570", "580"), 0.0),
    ],
)
def test_what_is_detected_is_held_against_nvidia_smi(gpus, said, share):
    (figure,) = gpu.compared(gpus, said)
    assert (figure.value, figure.holds) == (share, share == 1)


def test_a_part_that_a_machine_cannot_run_says_why(capsys):
    hour = gpu.Hour(gpu.RealVllm(python="", model=Path(), samples=1), 1, 1, 0.8)
    assert list(gpu.parallel(hour)) == list(gpu.fp8(hour)) == []
    said = capsys.readouterr().err
    assert "two GPUs, 1 can be used" in said and "CPU backend" in said


def test_a_server_that_does_not_come_up_shows_its_last_lines(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'unrecognized arguments: --enable-scale-out' >&2\nexit 2\n")
    python.chmod(0o700)
    real = gpu.RealVllm(python=str(python), model=tmp_path, samples=1)
    with pytest.raises(RuntimeError, match="did not come up:\nunrecognized arguments"), real.served(real.settings()):
        pass


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.xdist_group("vllm-gpu")
def test_its_parts_run_on_the_cpu_backend(tmp_path, vllm_python):
    """Two replicas of one layer: minutes, and 6 GiB. The shares are not asked for: the machine is not a GPU."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            str(Path(gpu.__file__)),
            f"--vllm_python={vllm_python}",
            *(
                "--device=cpu --dummy_layers=1 --samples=4 --sequences=4 --rounds=1 --gpus=2 "
                "--only=offline,server,parallel"
            ).split(),
            f"--json={tmp_path / 'figures.json'}",
        ],
        capture_output=True,
        text=True,
        timeout=1500,
    )
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert "DUMMY WEIGHTS: llama-3.1-8b-instruct-dummy-1-layers" in done.stdout, done.stderr
    assert figures["Offline, through LoadGen / in process"]["limit"] == ">= 0.97"
    for name in (
        "Offline, in process",
        "Server, through LoadGen",
        "Server, in process, TTFT p99",
        "Offline, 2 replicas",
    ):
        assert figures[name]["value"] > 0, figures
