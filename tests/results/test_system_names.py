"""Names of systems against descriptions, and types of weights against names: small submissions written by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from cm4vllm.results.checks import CHECKS
from cm4vllm.results.model import Result, Submission, System
from cm4vllm.results.submitted_names import accelerators_named, is_no_framework, shows_a_command

DESCRIBED = {
    "accelerators_per_node": "1",
    "number_of_nodes": "1",
    "accelerator_model_name": "NVIDIA GeForce RTX 4090",
    "other_software_stack": "CUDA 12.4",
}
RESULT = Result(
    round="v4.1",
    division="closed",
    submitter="Somebody",
    system="box",
    model="llama2-70b-99",
    benchmark="llama2-70b-99",
    scenario="Offline",
    folder="closed/Somebody/results/box/llama2-70b-99/Offline",
    performance=None,
    accuracy=None,
    files={"readme": "README.md", "measurements": "measurements.json"},
)


def submission(root=Path(), *, name="box", described=None, **result):
    system = System(name, DESCRIBED | (described or {}), f"systems/{name}.json")
    named = replace(RESULT, system=name, **result)
    return Submission(root, "v4.1", "closed", "Somebody", (system,), (named,))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("XE8640_4xH100_vLLM", {4}),
        ("ESC4000A_E12_4XH100_TRT", {4}),
        ("Dell PowerEdge R760xa (4x H100-PCIe-80GB, TensorRT)", {4}),
        ("H200-SXM-141GBx8_TRT", {8}),
        ("GB200-NVL72_GB200-186GB_aarch64x72_TRT", {72}),
        ("xd670_h200_x16_vllm_092", {16}),
        ("1-node-4x-BMG-B60", {4}),
        ("Supermicro (2x8x MI325X-256GB) and Supermicro (1x8x MI300X-192GB)", {24}),
        ("32xMI300X_2xEPYC_9534_16xMI325X_2xEPYC_9655", {48}),
        ("cm-demo-aws-g4dn.4xlarge-nvidia_original-gpu", set()),
        ("aws-g4dn-4xlarge", set()),
        ("R770_XEON6787Px2", set()),
        ("8xMI300X_2xPlatinum_8470", {8}),
        ("NVIDIA Jetson AGX Orin (TensorRT) + CTI Forge Carrier (AGX201)", set()),
        ("G894-SD3-AAX7", set()),
        ("linux-x86_64", set()),
        ("IBM_Cloud_gx3-48x240x2l40s_vLLM", set()),
        ("RTX4090", set()),
    ],
)
def test_a_name_states_a_number_of_accelerators(name, count):
    assert accelerators_named(name) == count


def test_each_name_is_compared_by_itself():
    described = {"system_name": "XE8640 (1xH100-SXM-80GB, vLLM)", "accelerator_model_name": "NVIDIA H100-SXM-80GB"}
    made = submission(name="XE8640_4xH100_vLLM", described=described)
    (finding,) = CHECKS["SYSTEM-ACCELERATORS"].findings(made)
    assert (finding.value, finding.expected) == ("1 in each of 1 nodes", "4, as 'XE8640_4xH100_vLLM' says")


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("DGX-H100_H100-SXM-80GBx8_TRT", "NVIDIA H100-SXM-80GB", ""),
        ("DGX-H100_H100-SXM-80GBx8_TRT", "NVIDIA A100-SXM-80GB", "H100, as 'DGX-H100_H100-SXM-80GBx8_TRT' says"),
        ("L4x1_TRT", "NVIDIA L40S", "L4, as 'L4x1_TRT' says"),
        ("GO_2xRTX4090", "NVIDIA GeForce RTX 4090", ""),
        ("8xMI300X_8xMI325X", "AMD Instinct MI325X", ""),
        ("GB200-NVL72_GB200-186GB_aarch64x72", "NVIDIA B200", "GB200, as 'GB200-NVL72_GB200-186GB_aarch64x72' says"),
        ("XE9680", "NVIDIA A100", ""),
        ("4xH100", "an accelerator that the table does not have", ""),
    ],
)
def test_a_name_states_the_accelerator_that_is_described(name, model, expected):
    made = submission(name=name, described={"accelerator_model_name": model})
    faults = [
        fault for fault in CHECKS["SYSTEM-ACCELERATORS"].findings(made) if fault.field == "accelerator_model_name"
    ]
    assert [fault.expected for fault in faults] == ([expected] if expected else [])


def test_a_count_of_one_node_is_right_too():
    described = {"accelerators_per_node": 8, "number_of_nodes": 2, "system_name": "XE9680 (8x MI300X)"}
    described |= {"accelerator_model_name": "AMD MI300X"}
    assert not list(CHECKS["SYSTEM-ACCELERATORS"].findings(submission(described=described)))


COMMAND = "```\ncm run script --tags=run-mlperf --vllm_model_name=org/Llama-2-7b\n```\n"


@pytest.mark.parametrize(
    ("name", "framework", "readme", "fault"),
    [
        ("box", "deepsparse v1.5.2", COMMAND, "the description names other software than the commands that were run"),
        ("box", "vLLM 0.5.2", COMMAND, ""),
        ("box", "CUDA 12.2", "", "the framework is not named, only what lies below it"),
        ("box_TRT", "CUDA 12.2, driver 535", "", "the framework is not named, only what lies below it"),
        ("box_TRT", "vLLM 0.5.2", "", "a name states software that the description does not"),
        ("box_TRT", "TensorRT 10.2, CUDA 12.4", "", ""),
        ("box_vLLM", "vllm-0.9.0, ROCm 6.4", "", ""),
        ("box", "PyTorch 2.3", "", ""),
    ],
)
def test_the_software_that_served_is_named(name, framework, readme, fault):
    made = submission(name=name, described={"framework": framework}, readme=readme)
    assert [finding.what for finding in CHECKS["SYSTEM-SOFTWARE"].findings(made)] == ([fault] if fault else [])


def test_what_lies_below_a_framework_is_none():
    assert is_no_framework("CUDA 12.2") and is_no_framework("ROCm 6.10.5, driver version 3")
    assert not any(map(is_no_framework, ("vLLM 0.5, CUDA 12.2", "TensorRT", "", "N/A")))


@pytest.mark.parametrize(
    ("stated", "readme", "expected"),
    [
        (("fp32", "none", "Official"), COMMAND.replace("7b", "7b-GPTQ"), "gptq, as in org/Llama-2-7b-GPTQ"),
        (("fp32", "none", "Official"), COMMAND, ""),
        (("fp32", "none", "Official"), COMMAND + COMMAND.replace("7b", "7b-GPTQ"), ""),
        (("int4", "quantization", "Llama-2-70B-Chat-GPTQ"), "", ""),
        (("fp32", "quantization", "Llama-NVFP4"), "", "nvfp4, as in Llama-NVFP4"),
        (("fp16", "pruning", "Llama"), "", ""),
    ],
)
def test_weights_are_of_the_type_that_their_names_say(stated, readme, expected):
    keys = ("weight_data_types", "weight_transformations", "starting_weights_filename")
    made = submission(measurements=dict(zip(keys, stated, strict=True)), readme=readme)
    assert [finding.expected for finding in CHECKS["WEIGHTS-TYPES"].findings(made)] == ([expected] if expected else [])


CALIBRATION = """# Calibration
Weights.
## Closed Division Submissions:
FP8 weights.
## {other} Submissions
### Int4
The GPTQ model.
{after}
"""


@pytest.mark.parametrize(
    ("other", "after", "expected"),
    [("Open Division", "", ["fp8"]), ("Open Division", "# Another page\nINT8\n", []), ("Further", "", [])],
)
def test_calibration_of_another_division_is_left_out(tmp_path, other, after, expected):
    page = tmp_path / "closed" / "Somebody" / "documentation" / "calibration.md"
    page.parent.mkdir(parents=True)
    page.write_text(CALIBRATION.format(other=other, after=after))
    stated = {"weight_data_types": "fp16", "weight_transformations": "none", "starting_weights_filename": "Llama-2"}
    faults = CHECKS["WEIGHTS-TYPES"].findings(submission(tmp_path, measurements=stated))
    assert [fault.expected for fault in faults] == expected


@pytest.mark.parametrize(
    ("round_name", "words"),
    [
        ("v4.1", ""),
        ("v5.1", "submission_checker at b66003e1 marks"),
        ("v6.0", "marks such a result as inferred"),
        ("", ""),
    ],
)
def test_what_is_said_of_a_scenario_in_lower_case_is_true_of_the_round(round_name, words):
    made = submission(folder=f"{RESULT.folder[:-7]}offline", round=round_name)
    (finding,) = CHECKS["SCENARIO-SPELLING"].findings(made)
    assert words in finding.what and ("inferred" in finding.what) is bool(words)


@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("```\nmake run\n```", True),
        ("    ./run.sh", True),
        ("make run_harness", True),
        ("Use `make run` for it.", True),
        ("deepseek", False),
        ("The `model` is licensed under MIT.", False),
    ],
)
def test_a_command_is_known_by_its_form(page, command):
    assert shows_a_command(page) is command
