"""The server's command line and environment, from settings and from what is known of the model."""

import json
import os
import shlex
import struct
from importlib import metadata
from pathlib import Path

import pytest
from msgspec.structs import replace

from cm4vllm.common.errors import ModelError, UsageError
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.server import Api
from cm4vllm.records.vllm.options import stored_options
from cm4vllm.serving.options import arguments
from cm4vllm.serving.options.arguments import (
    ServerSettings,
    fit_to_model,
    fp8_env,
    niceness,
    preset_options,
    secret_env,
    server_argv,
    server_env,
    with_extra_options,
)
from cm4vllm.serving.options.fixed_options import refuse_fixed, speculative_options
from cm4vllm.serving.options.presets import Preset, option_words, preset_for, preset_named, presets

NONE = ServerSettings()


def argv(**more) -> list[str]:
    return server_argv(Path("/venv/bin/python"), ServerSettings(model="/m", name="n", **more), 8000)


#: Bytes of a value.
WIDTH = {"F32": 4, "BF16": 2}


@pytest.fixture
def model(tmp_path):
    """Make a model folder of a data type and a context; give its record."""

    def make(data_type="F32", context=4096):
        tensor = {"dtype": data_type, "shape": [8 // WIDTH[data_type]], "data_offsets": [0, 8]}
        header = json.dumps({"w": tensor}).encode()
        (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
        (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": context}))
        (tmp_path / "tokenizer.json").write_text("{}")
        return ModelRecord(name="my-model", path=str(tmp_path), source="made by the test", sha256="")

    return make


def test_vllms_cpu_build_reads_pictures_with_packages_beside_its_own():
    settings = ServerSettings(
        model="m", name="n", api=Api.PICTURES, vision_packages="/vision", speech_packages="/speech"
    )
    folders = server_env(settings)["PYTHONPATH"].split(os.pathsep)
    assert folders[0] == "/vision"
    (plugin,) = [
        point for distribution in metadata.distributions(path=folders[1:]) for point in distribution.entry_points
    ]
    assert (plugin.group, plugin.value) == ("vllm.general_plugins", "cm4vllm_vision:register")
    assert (Path(folders[1]) / f"{plugin.module}.py").is_file()
    assert "PYTHONPATH" not in server_env(replace(settings, device="cuda"))
    assert server_env(replace(settings, api=Api.TRANSCRIPTIONS))["PYTHONPATH"] == "/speech"
    assert "PYTHONPATH" not in server_env(replace(settings, api=Api.GENERATE))


def test_what_the_rules_and_the_measurement_rest_on_is_always_said():
    words = argv()
    assert words[:6] == ["/venv/bin/python", "-P", "-m", "vllm.entrypoints.cli.main", "serve", "/m"]
    assert "--no-enable-prefix-caching" in words
    for option, value in (("--generation-config", "vllm"), ("--host", "127.0.0.1"), ("--port", "8000")):
        assert words[words.index(option) + 1] == value


def test_only_what_is_set_is_said():
    assert not {"--dtype", "--enable-scale-out", "--enable-chunked-prefill"} & set(argv())
    words = argv(
        dtype="float32",
        max_model_len=128,
        tp_size=2,
        enforce_eager=False,
        enable_chunked_prefill=True,
        api=Api.GENERATE,
    )
    for option, value in (("--dtype", "float32"), ("--max-model-len", "128"), ("--tensor-parallel-size", "2")):
        assert words[words.index(option) + 1] == value
    assert "--enforce-eager" not in words
    assert {"--enable-scale-out", "--enable-chunked-prefill"} <= set(words)
    assert "--no-enable-chunked-prefill" in argv(enable_chunked_prefill=False)


def test_what_is_set_wins_over_the_preset():
    settings = ServerSettings(model="/m", name="n", max_num_seqs=8, enforce_eager=False, extra="--seed=3")
    preset = Preset(
        name="p",
        device="cpu",
        source="made by the test",
        options={"max-num-seqs": 256, "enforce-eager": True, "seed": 1, "block-size": 16},
    )
    words = server_argv(Path("/venv/bin/python"), settings, preset=preset)
    assert words[-5:] == ["--max-num-seqs", "8", "--block-size", "16", "--seed=3"]
    assert "--enforce-eager" not in words
    assert preset_options(preset, settings) == {"block-size": 16}


def test_what_is_of_the_cpu_backend_and_of_a_local_model_is_of_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    cpu = ServerSettings(model=str(tmp_path), name="n")
    cuda = ServerSettings(model="owner/name", name="n", device="cuda")
    assert {"VLLM_CPU_KVCACHE_SPACE", "HF_HUB_OFFLINE"} <= set(server_env(cpu))
    assert not {"VLLM_CPU_KVCACHE_SPACE", "HF_HUB_OFFLINE"} & set(server_env(cuda))
    assert "hf_secret" not in json.dumps(server_env(cuda))
    assert (niceness(cpu), niceness(cuda)) == (10, 0)


def test_further_words_are_split_as_a_shell_does_and_run_by_none():
    words = argv(extra="--block-size=16 --hf-overrides '{\"a\": 1}' $(touch x)")
    assert words[-5:] == ["--block-size=16", "--hf-overrides", '{"a": 1}', "$(touch", "x)"]


@pytest.mark.parametrize(
    "extra", ["--hf-token s3cret-1 --seed 3", "--hf_token=s3cret-1 --seed 3", "--hf-tok s3cret-1 --seed 3"]
)
def test_a_token_goes_to_the_server_in_its_environment_and_in_no_command_line(extra):
    settings = ServerSettings(model="/m", name="n", extra=extra)
    words = server_argv(Path("python"), settings)
    assert words[-2:] == ["--seed", "3"]
    assert not any("s3cret" in word or "hf" in word for word in words)
    assert secret_env(settings) == {"HF_TOKEN": "s3cret-1"}
    assert "s3cret" not in str(server_env(settings))


@pytest.mark.parametrize(
    "extra",
    [
        "--some-api-key s3cret-1",
        '--hf-overrides \'{"auth_token": "s3cret-1"}\'',
        "--hf-overrides=hf_" + "s3cret1" * 5,
        "--log-url https://u:s3cret-1@host/",
        "--hf-token s3cret-1 'unclosed",
    ],
)
def test_no_other_secret_goes_into_the_servers_command_line(extra):
    with pytest.raises(UsageError) as caught:
        argv(extra=extra)
    assert "extra_args" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_an_option_among_the_further_words_is_the_setting_of_its_own():
    given = ServerSettings(model="m", name="n", max_num_seqs=8, max_model_len=4096)
    extra = "--max_num_seqs=64 -tp 2 --pipeline_parallel_size=2 --no-enforce-eager --max-model-len 1k"
    settings = with_extra_options(replace(given, extra=extra))
    assert (settings.max_num_seqs, settings.workers, settings.enforce_eager) == (64, 4, False)
    assert settings.max_model_len == 1000
    words = server_argv(Path("python"), settings)
    assert words[-len(extra.split()) :] == extra.split()
    assert "8" not in words
    assert "4096" not in words


def test_the_models_path_name_and_data_type_are_filled_in_where_the_user_says_none(model, tmp_path):
    assert fit_to_model(NONE, model(), 0) == ServerSettings(model=str(tmp_path), name="my-model", dtype="float32")
    assert fit_to_model(NONE, model("BF16"), 0).dtype == ""
    given = fit_to_model(ServerSettings(name="mine", dtype="bfloat16", max_model_len=300), model(), 200)
    assert (given.name, given.dtype, given.max_model_len) == ("mine", "bfloat16", 300)
    other = ServerSettings(model="owner/other")
    assert fit_to_model(other, model(), 0) == other


@pytest.mark.parametrize(
    ("context", "longest", "expected"),
    [
        (131072, 0, None),
        (131072, 500, 2048),
        (131072, 2048, 2048),
        (131072, 2049, 4096),
        (2048, 500, None),
        (3000, 2500, None),
    ],
)
def test_a_long_context_is_cut_to_what_the_dataset_needs(model, context, longest, expected):
    assert fit_to_model(NONE, model(context=context), longest).max_model_len == expected


def test_a_dataset_that_is_longer_than_the_models_context_is_refused(model):
    with pytest.raises(ModelError, match="does not fit") as caught:
        fit_to_model(NONE, model(context=512), 513)
    assert "512" in caught.value.cause
    assert "513" in caught.value.cause


@pytest.mark.parametrize("given", [{"model": "--speculative-config={}"}, {"name": "-sc"}])
def test_a_name_that_vllm_would_take_for_an_option_is_refused(given):
    with pytest.raises(UsageError, match="not the name of a model"):
        server_argv(Path("/venv/bin/python"), ServerSettings(**{"model": "/m", "name": "n", **given}), 8000)


# --- options that nobody may give, in every form in which vLLM 0.32.0's own parser takes them (it was asked)


FORMS = [
    """-sc '{"method": "ngram"}'""",
    "-sc.method=ngram",
    "--speculative-config.eagle_config.x+ 1",
    "--spec-meth ngram",
    *"--spec_model=x --enable-prefix-caching --mm-proc=4 --enable_prefix_c --api_key=k".split(),
    "--gen auto",
    "--override-gen.temperature=1",
    "--conf options.yaml",
    "--po 9",
    "--kv_transfer_config.kv_connector=LMCacheConnectorV1",
]


@pytest.mark.parametrize("extra", FORMS)
def test_no_form_of_a_fixed_option_is_taken(extra):
    with pytest.raises(UsageError, match="cannot be given in --extra_args") as caught:
        argv(extra=f"--seed 3 {extra}")
    assert caught.value.cause
    assert shlex.split(extra)[0].partition("=")[0] in caught.value.what


FIXED = set(
    (
        "--enable-prefix-caching --mm-processor-cache-gb --kv-transfer-config --kv-offloading-size "
        "--kv-offloading-backend --generation-config --override-generation-config --logits-processors "
        "--watermark-config --speculative-config -sc --spec-method --spec-model --spec-tokens "
        "--api-key --config --model --served-model-name --host --port --uds"
    ).split()
)


def test_all_other_options_of_vllm_may_be_given():
    refused = set()
    for option in stored_options():
        try:
            refuse_fixed([option])
        except UsageError:
            refused.add(option)
    assert refused == FIXED


@pytest.mark.parametrize("word", ["-", "--", "7", "ngram", "-1", "-tp", "--no-enable-prefix-caching"])
def test_other_words_are_no_fixed_option(word):
    refuse_fixed([word])
    assert speculative_options([word]) == []


@pytest.mark.parametrize("extra", ["--load_format=dummy", "--load-f dummy"])
def test_random_weights_are_not_asked_for_past_their_notice(extra):
    with pytest.raises(UsageError, match="--load-format dummy cannot be given") as caught:
        server_argv(Path("python"), ServerSettings(model="/m", name="n", extra=extra))
    assert "_dummy" in caught.value.remedy
    refuse_fixed(["--load-format", "pt"])


# --- the choice of another FP8 kernel for vLLM, and its effect in vLLM's processes


WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel"}
FP8 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": WEIGHTS}}}
INT8 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {**WEIGHTS, "type": "int"}}}}
SAPPHIRE_RAPIDS = "fpu avx2 avx512_bf16 amx_bf16 avx512_fp16 amx_tile amx_int8"
GRANITE_RAPIDS = SAPPHIRE_RAPIDS + " amx_fp16"
EPYC = "fpu avx2 avx512f avx512_bf16"


@pytest.fixture
def fp8(tmp_path):
    """Return the variables for a model folder that is quantised so, on a processor of these flags."""

    def env(flags=SAPPHIRE_RAPIDS, quantised=FP8):
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / "cpuinfo").write_text(f"processor : 0\nmodel name : a processor\nflags : {flags}\n")
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": quantised}))
        return fp8_env(tmp_path, tmp_path)

    return env


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
def test_the_kernel_is_replaced_where_onednn_has_only_a_reference_one(fp8, flags, quantised, needed):
    assert bool(fp8(flags, quantised)) == needed


def test_vllm_finds_the_plugin_on_the_path_that_it_is_given_and_the_users_choice_stays(fp8, monkeypatch):
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "TheirKernel")
    env = fp8()
    distributions = metadata.distributions(path=[env["PYTHONPATH"]])
    (plugin,) = [point for distribution in distributions for point in distribution.entry_points]
    assert (plugin.group, plugin.value) == ("vllm.general_plugins", "cm4vllm_fp8:register")
    assert (Path(env["PYTHONPATH"]) / f"{plugin.module}.py").is_file()
    assert env["VLLM_DISABLED_KERNELS"] == "TheirKernel,ChannelWiseTorchFP8ScaledMMLinearKernel"


def test_only_a_server_on_a_cpu_is_given_it(tmp_path, monkeypatch):
    monkeypatch.setattr(arguments, "fp8_env", lambda folder: {"GIVEN": folder.name})
    assert server_env(ServerSettings(model=str(tmp_path), name="n"))["GIVEN"] == tmp_path.name
    assert "GIVEN" not in server_env(ServerSettings(model=str(tmp_path), name="n", device="cuda"))


# --- presets, against the command lines that were published with results


#: From the README of Neural Magic's submission to MLPerf Inference v4.1.
PUBLISHED = {
    "nm-testing/Llama-2-70b-chat-hf-FP8": "vllm serve nm-testing/Llama-2-70b-chat-hf-FP8 --tensor-parallel-size=4 "
    "--max-num-seqs=1024 --max-model-len=2048 --enable-chunked-prefill --max-num-batched-tokens=2048 "
    "--gpu-memory-utilization=0.95 --disable-log-requests",
    "nm-testing/Llama-2-70B-Chat-GPTQ": "vllm serve nm-testing/Llama-2-70B-Chat-GPTQ --tensor-parallel-size=4 "
    "--max-num-seqs=1024 --max-model-len=2048 --enable-chunked-prefill --max-num-batched-tokens=2048 "
    "--gpu-memory-utilization=0.95 --disable-log-requests",
}
H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("model", PUBLISHED)
def test_the_published_command_comes_out_of_the_preset_for_that_machine(model):
    preset = preset_for("cuda", model, H100, 4)
    assert " ".join(["vllm", "serve", model, *option_words(preset.options)]) == PUBLISHED[model]


def test_a_folder_of_the_models_name_is_that_model():
    assert preset_for("cuda", "/models/Llama-2-70b-chat-hf-FP8", H100, 4).precision == "fp8"


@pytest.mark.parametrize(("gpu", "gpus"), [("NVIDIA L40S", 4), (H100, 8), ("", 0)])
def test_another_machine_has_no_preset_that_was_not_made_for_it(gpu, gpus):
    assert preset_for("cuda", next(iter(PUBLISHED)), gpu, gpus) is None


def test_any_model_on_the_cpu_has_the_cpus_preset():
    assert preset_for("cpu", "some/model").options["enforce-eager"] is True


def test_a_preset_is_taken_by_name_and_a_wrong_name_told_with_the_nearest():
    assert preset_named("cpu").device == "cpu"
    with pytest.raises(UsageError) as caught:
        preset_named("llama2-70b-fp8-4xh10")
    assert "llama2-70b-fp8-4xh100" in caught.value.remedy


def test_every_preset_states_its_source_and_has_a_name_of_its_own():
    assert all(preset.source for preset in presets())
    assert len({preset.name for preset in presets()}) == len(presets())
