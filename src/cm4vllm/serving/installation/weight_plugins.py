"""Weights that vLLM serves with a plugin alone: those of bitsandbytes since 0.28 (vllm#43529)."""

import re
from collections.abc import Mapping
from pathlib import Path

from cm4vllm.common.errors import InstallError
from cm4vllm.records.vllm.given_options import OptionValue
from cm4vllm.records.weights.checkpoint import quantisation_method

_METHOD, _PLUGIN, _LEFT_CORE = "bitsandbytes", "vllm-bnb-plugin", (0, 28)
_RELEASE = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.|$)", re.ASCII)


def has_plugin_weights(model: Path, options: Mapping[str, OptionValue]) -> bool:
    """Return True where the weights in a model's folder, or those that a server's options ask for, need the plugin.

    Raises ModelError where the model's config.json cannot be read.
    """
    return _METHOD in (options.get("quantization"), options.get("load-format"), quantisation_method(model))


def require_plugin(packages: Mapping[str, str], environment: str) -> None:
    """Raise InstallError where vLLM is among the packages of an environment or image, but not the plugin it needs."""
    release = packages.get("vllm", "")
    parts = _RELEASE.match(release)
    if parts and tuple(map(int, parts.groups())) >= _LEFT_CORE and _PLUGIN not in packages:
        raise InstallError(
            f"vLLM {release} does not serve weights of {_METHOD}",
            cause=f"since 0.28 it needs the plugin {_PLUGIN} for them, which {environment} does not have",
            remedy=f"install it there: python -m pip --python={environment} install {_PLUGIN}; or take an earlier "
            "release: --vllm_version=0.27.1; or serve weights that are quantised otherwise",
        )
