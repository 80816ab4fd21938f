"""The GPUs of this machine that a server uses, by UUID."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cm4vllm.common.errors import CmError
from cm4vllm.hardware.records import GpuFacts, MigFacts

__all__ = ["VISIBLE", "UsedGpu", "visible_gpus"]

#: The variables that choose the GPUs that a program sees; the first that is set counts.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True)
class UsedGpu:
    """A GPU that serves, or a part of one that MIG gives away."""

    gpu: GpuFacts
    part: MigFacts | None = None

    @property
    def uuid(self) -> str:
        return self.part.uuid if self.part else self.gpu.uuid


def visible_gpus(gpus: Sequence[GpuFacts], visible: str | None, order: str = "") -> list[UsedGpu]:
    """Return the GPUs that CUDA shows a program that has `visible` as CUDA_VISIBLE_DEVICES; None is unset: all.

    As CUDA reads it (CUDA C++ programming guide, environment variables): numbers, beginnings of GPU-... UUIDs, MIG-...
    UUIDs; what stands behind the first that names no device does not count. ROCm's HIP_VISIBLE_DEVICES has the same
    forms. `order` is CUDA_DEVICE_ORDER: without PCI_BUS_ID, numbers follow speed. Raises CmError where numbers then
    cannot be matched, since the GPUs differ.
    """
    whole = [UsedGpu(gpu, gpu.mig_devices[0] if gpu.mig_devices else None) for gpu in gpus]
    if visible is None:
        return whole
    words = [word.strip() for word in visible.split(",")]
    if any(word.isdigit() for word in words) and order != "PCI_BUS_ID" and len({gpu.name for gpu in gpus}) > 1:
        raise CmError(
            f"it is not known which GPUs CUDA_VISIBLE_DEVICES={visible} means",
            cause="the machine's GPUs differ, and without CUDA_DEVICE_ORDER CUDA counts the fastest first",
            remedy="set CUDA_DEVICE_ORDER=PCI_BUS_ID for the server, or name the GPUs by their UUIDs",
        )
    used: list[UsedGpu] = []
    for word in words:
        named = _named(word, whole)
        if named is None or named in used:  # CUDA stops at the first one that is wrong, a repeated one too
            break
        used.append(named)
    return used


def _named(word: str, whole: list[UsedGpu]) -> UsedGpu | None:
    if word.isdigit():
        return whole[int(word)] if int(word) < len(whole) else None
    if word.startswith("MIG-"):  # MIG-<UUID>; before driver 470 MIG-<GPU's UUID>/<GPU instance>/<compute instance>
        return next(
            (UsedGpu(used.gpu, part) for used in whole for part in used.gpu.mig_devices if part.uuid.startswith(word)),
            None,
        )
    matching = [used for used in whole if word and used.gpu.uuid.lower().startswith(word.lower())]
    return matching[0] if len(matching) == 1 else None
