"""The choice of another FP8 kernel for vLLM, and its effect in vLLM's processes."""

import json
from importlib import metadata
from pathlib import Path

import pytest

from cm4vllm.serving.options import arguments
from cm4vllm.serving.options.arguments import ServerSettings, server_env
from cm4vllm.serving.options.fp8 import fp8_env

WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel"}
FP8 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": WEIGHTS}}}
INT8 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {**WEIGHTS, "type": "int"}}}}
SAPPHIRE_RAPIDS = "fpu avx2 avx512_bf16 amx_bf16 avx512_fp16 amx_tile amx_int8"
GRANITE_RAPIDS = SAPPHIRE_RAPIDS + " amx_fp16"
EPYC = "fpu avx2 avx512f avx512_bf16"


@pytest.fixture
def model(tmp_path):
    """Make a model folder whose configuration says how it is quantised."""

    def make(quantised):
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"quantization_config": quantised}))
        return folder

    return make


def processor(root: Path, flags: str) -> Path:
    (root / "proc").mkdir()
    (root / "proc" / "cpuinfo").write_text(f"processor : 0\nmodel name : a processor\nflags : {flags}\n")
    return root


@pytest.mark.parametrize(
    ("flags", "quantised", "needed"),
    [
        (SAPPHIRE_RAPIDS, FP8, True),
        (SAPPHIRE_RAPIDS, INT8, False),
        (SAPPHIRE_RAPIDS, None, False),
        (GRANITE_RAPIDS, FP8, False),
        (EPYC, FP8, False),
    ],
)
def test_the_kernel_is_replaced_where_onednn_has_only_a_reference_one(model, tmp_path, flags, quantised, needed):
    assert bool(fp8_env(model(quantised), processor(tmp_path, flags))) == needed


def test_vllm_finds_the_plugin_on_the_path_that_it_is_given(model, tmp_path):
    env = fp8_env(model(FP8), processor(tmp_path, SAPPHIRE_RAPIDS))
    plugins = [
        point
        for distribution in metadata.distributions(path=[env["PYTHONPATH"]])
        for point in distribution.entry_points
    ]
    assert [(plugin.group, plugin.value) for plugin in plugins] == [("vllm.general_plugins", "cm4vllm_fp8:register")]
    assert (Path(env["PYTHONPATH"]) / f"{plugins[0].module}.py").is_file()


def test_what_the_user_disables_stays_disabled(model, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "TheirKernel")
    disabled = fp8_env(model(FP8), processor(tmp_path, SAPPHIRE_RAPIDS))["VLLM_DISABLED_KERNELS"].split(",")
    assert disabled == ["TheirKernel", "ChannelWiseTorchFP8ScaledMMLinearKernel"]


def test_only_a_server_on_a_cpu_is_given_it(model, monkeypatch):
    monkeypatch.setattr(arguments, "fp8_env", lambda folder: {"GIVEN": folder.name})
    folder = str(model(FP8))
    assert server_env(ServerSettings(model=folder, name="n"))["GIVEN"] == "model"
    assert "GIVEN" not in server_env(ServerSettings(model=folder, name="n", device="cuda"))
