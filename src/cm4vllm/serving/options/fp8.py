"""FP8 models on vLLM's CPU backend: where its own way to a product takes far longer than fp32, and what is done.

vLLM 0.32.0 multiplies FP8 weights per channel with torch._scaled_mm. PyTorch 2.13 gives that to oneDNN on every
processor whose AMX has INT8 (_scaled_mm_out_cpu), and computes in fp32 on all others. But oneDNN 3.12 has no FP8 kernel
for an AMX without FP16, and takes its reference one (ONEDNN_VERBOSE=all: "datatype configuration not supported on this
isa", then "ref:any"). There vLLM loads our kernel, as one of its plugins: it computes in fp32, as PyTorch
does elsewhere (fp8_plugin/cm4vllm_fp8.py). Weights and activations are FP8 all the same.
"""

import os
from pathlib import Path

from cm4vllm.hardware.cpu import detect_cpu
from cm4vllm.records.weights.checkpoint import quantised_to

#: The note to the user where `fp8_env` is not empty.
FP8_NOTE = "FP8 products are computed in fp32: oneDNN has no fast FP8 kernel for this processor's AMX"

_PLUGIN = Path(__file__).with_name("fp8_plugin")
#: The kernel that is replaced, by its name in vLLM.
_REPLACED = "ChannelWiseTorchFP8ScaledMMLinearKernel"
_DISABLED = "VLLM_DISABLED_KERNELS"


def fp8_env(model: Path, root: Path = Path("/")) -> dict[str, str]:
    """Return the variables that a CPU server of `model` needs for FP8; none for other models and processors.

    The processor is the one whose /proc is under `root`.
    """
    flags = detect_cpu(root).flags
    if "amx_int8" not in flags or "amx_fp16" in flags or quantised_to(model) != "fp8":
        return {}
    disabled = [os.environ.get(_DISABLED, ""), _REPLACED]
    return {_DISABLED: ",".join(filter(None, disabled)), "PYTHONPATH": str(_PLUGIN)}
