"""Loaded by vLLM as one of its plugins (vllm.general_plugins): FP8 layers whose products are computed in fp32.

cm4vllm.serving.options.arguments says on which processors it is loaded, and why. Nothing of the package can be
imported here.
"""

import torch
from vllm.model_executor.kernels.linear import register_linear_kernel  # type: ignore[import-not-found]
from vllm.model_executor.kernels.linear.scaled_mm.pytorch import ChannelWiseTorchFP8ScaledMMLinearKernel  # type: ignore[import-not-found]
from vllm.platforms import PlatformEnum  # type: ignore[import-not-found]


class Fp32ProductFP8LinearKernel(ChannelWiseTorchFP8ScaledMMLinearKernel):  # type: ignore[misc]
    """vLLM's own kernel (FP8 weights per channel, FP8 activations per token) with another way to the same product.

    fp32 holds each FP8 value exactly, and is what either way adds up in. The weights stay FP8 in memory.
    """

    def get_output_padding(self) -> int | None:
        return None

    def apply_scaled_mm(
        self,
        *,
        A: torch.Tensor,
        B: torch.Tensor,
        As: torch.Tensor,
        Bs: torch.Tensor,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype,
        output_shape: list[int],
    ) -> torch.Tensor:
        """Return (As x A) (B x Bs) + bias in `out_dtype`: A is tokens x K, B K x N, As tokens x 1, Bs N x 1."""
        output = torch.mm(A.to(torch.float32), B.to(torch.float32)) * As * Bs.t()
        if bias is not None:
            output = output + bias
        return output.to(out_dtype).view(*output_shape)


def register() -> None:
    """Offer the kernel to vLLM, after its own ones: VLLM_DISABLED_KERNELS takes away the one that it replaces."""
    register_linear_kernel(Fp32ProductFP8LinearKernel, PlatformEnum.CPU, "fp8")
