"""The choice of the vLLM package: for the detected device, or for the requested one where a package exists."""

import json
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.hardware.gpus.gpu import detect_gpus
from cm4vllm.hardware.gpus.vendors import amd, nvml
from cm4vllm.hardware.machine_facts import gpu_env
from cm4vllm.serving.installation.install import VARIANTS
from cm4vllm.serving.installation.vllm_choice import Choice, choose, require_device
from gpu_replay import Replay

RECORDINGS = Path(__file__).parents[1] / "hardware" / "recordings"


@pytest.fixture
def without_gpus(monkeypatch, tmp_path):
    @contextmanager
    def opened():
        yield None

    monkeypatch.setattr(nvml, "opened", opened)
    monkeypatch.setattr(amd, "KFD", tmp_path / "kfd")


@pytest.fixture
def with_h100(monkeypatch, tmp_path):
    """The answers of a driver with four H100."""

    @contextmanager
    def opened():
        yield Replay(json.loads((RECORDINGS / "h100-sxm-x4.json").read_text()))

    monkeypatch.setattr(nvml, "opened", opened)
    monkeypatch.setattr(amd, "KFD", tmp_path / "kfd")


def test_a_device_that_is_there_is_accepted(with_h100):
    require_device("cuda", {})
    require_device("cpu", {})
    choice = Choice.of(gpu_env(detect_gpus()))
    assert choose(choice) == {"CM_VLLM_CHOSEN_VARIANT": "cuda"}
    assert choose(Choice(variant="cpu", vendor="NVIDIA")) == {}
    with pytest.raises(UsageError, match="no AMD GPU") as caught:
        require_device("rocm", {})
    assert "amdgpu" in caught.value.cause
    with pytest.raises(UsageError, match="no NVIDIA GPU") as caught:
        require_device("cuda", {"CUDA_VISIBLE_DEVICES": ""})
    assert "CUDA_VISIBLE_DEVICES" in caught.value.cause


def test_rocm_is_accepted_by_its_kernel_driver(without_gpus, tmp_path):
    (tmp_path / "kfd").write_text("")
    require_device("rocm", {})
    assert choose(Choice()) == {"CM_VLLM_CHOSEN_VARIANT": "rocm"}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "libnvidia-ml.so.1"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "does not respond"),
        (None, "shows no GPU"),
    ],
)
def test_what_is_missing_is_named(without_gpus, monkeypatch, code, words):
    def init():
        if code is not None:
            raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", init)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    with pytest.raises(UsageError, match="--device=cuda") as caught:
        require_device("cuda", {})
    assert words in caught.value.cause
    require_device("cpu", {})
    assert choose(Choice()) == {"CM_VLLM_CHOSEN_VARIANT": "cpu"}
    named = choose(Choice(version=VARIANTS["cpu"].release))
    assert named == {"CM_VLLM_CHOSEN_VARIANT": "cpu", "CM_VLLM_WANTED_VERSION": ""}
    assert choose(Choice(version="0.31.0")) == {"CM_VLLM_CHOSEN_VARIANT": "cpu"}
