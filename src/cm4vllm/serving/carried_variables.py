"""Variables of this environment that a server elsewhere gets, too: on another node, or in a container."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["carried_variables"]

_CARRIED = re.compile(
    r"(VLLM|NCCL|RCCL|GLOO|UCX|FI|HF|HUGGING_FACE|OMP|TORCH|PYTORCH|TRANSFORMERS|SAFETENSORS)_\w+|https?_proxy|no_proxy"
)


def carried_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect a server, except those that choose devices."""
    return {
        key: value for key, value in environ.items() if _CARRIED.fullmatch(key) and not key.endswith("_VISIBLE_DEVICES")
    }
