"""Presets, against the command lines that were published with results."""

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.serving.options.presets import option_words, preset_for, preset_named, presets

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
