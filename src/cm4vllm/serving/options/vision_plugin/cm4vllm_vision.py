"""Loaded by vLLM as one of its plugins (vllm.general_plugins): torchvision beside PyTorch's CPU build.

The torchvision of the package index is built for CUDA: its library of operators does not load beside a CPU build of
PyTorch, and then its import fails at the first operator that it describes. Declared here, none of them is there to be
called, and none is: pictures are resized by PyTorch itself. Nothing of the package can be imported here.
"""

import torch

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_library = torch.library.Library("torchvision", "FRAGMENT")


def register() -> None:
    """Declare the operators that torchvision describes when it is imported, where its library has not done so."""
    for schema in _OPERATORS:
        if not hasattr(torch.ops.torchvision, schema.partition("(")[0]):
            _library.define(schema)
