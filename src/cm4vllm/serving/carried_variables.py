"""Variables of this environment that affect a server: which of them one elsewhere gets, and which none gets."""

import re
from collections.abc import Mapping

from cm4vllm.common.host_addresses import PROXY_VARIABLES

_AFFECTS = re.compile(
    r"(VLLM|NCCL|RCCL|GLOO|UCX|FI|HF|HUGGING_FACE|OMP|TORCH|PYTORCH|TRANSFORMERS|SAFETENSORS)_\w+"
    rf"|{'|'.join(PROXY_VARIABLES)}"
)
#: The variables that Kubernetes, and Docker's --link, set for a Service: one that is named `vllm` gives VLLM_PORT with
#: the value tcp://10.0.0.7:8000, where vLLM expects a number (kubernetes.io, Accessing the Service).
_LINK_NAME = re.compile(r"\w+_SERVICE_(HOST|PORT)(_\w+)?|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://\S*")


def carried_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect a server and go to other nodes and containers: not those that choose devices."""
    return {
        key: value
        for key, value in without_service_links(environ).items()
        if _AFFECTS.fullmatch(key) and not key.endswith("_VISIBLE_DEVICES")
    }


def without_service_links(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what a Service's name makes of the variables that affect a server."""
    return {key: value for key, value in environ.items() if not (_AFFECTS.fullmatch(key) and _is_link(key, value))}


def _is_link(key: str, value: str) -> bool:
    return bool(_LINK_NAME.fullmatch(key) or (key.endswith("_PORT") and _LINK_VALUE.fullmatch(value)))
