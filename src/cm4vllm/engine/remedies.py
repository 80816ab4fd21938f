"""What to do about a shell command that failed: told from its exit status and its last lines."""

from __future__ import annotations

import re

__all__ = ["likely_remedy"]

# The first that matches is the one that is told; more special signs stand before more general ones.
_SIGNS: tuple[tuple[str, str], ...] = (
    (r"No space left on device|Disk quota exceeded", "free disk space where this script works, and run it again"),
    (r"Could not resolve host|Temporary failure in name resolution|Name or service not known|Network is unreachable"
     r"|Failed to connect to|Connection timed out|unable to access 'https?:",
     "the network did not answer: check the connection and the proxy settings (http_proxy, https_proxy)"),
    (r"401 Unauthorized|403 Forbidden|gated repo|Authentication failed|could not read Username",
     "access was refused: accept the licence of what is downloaded, and give a token by HF_TOKEN or CM_GH_TOKEN"),
    (r"externally-managed-environment", "run in a virtual environment: this Python belongs to the system"),
    (r"No module named '?([\w.]+)", r"this Python lacks the package \1: pip install it where the script runs"),
    (r"(?:^|[:\s])([\w.+/-]+): (?:command )?not found", r"install \1, or put it on PATH"),
    (r"sudo: .*password is required", "allow sudo without a password, or pass --skip_system_deps and install by hand"),
    (r"[Pp]ermission denied", "check who owns the files that the last lines name"),
    (r"CUDA out of memory|std::bad_alloc|Cannot allocate memory|MemoryError",
     "there was too little memory: choose a smaller batch or model, or end other programs"),
    (r"No such file or directory", "check that the path in the last lines exists, and that the script made it"),
)
_STATUSES = {
    -9: "the system killed it, mostly for lack of memory (dmesg tells): end other programs or use a smaller setting",
    126: "make the file that it calls executable",
    127: "install the command that the last lines name, or put it on PATH",
}


def likely_remedy(status: int, tail: str) -> str:
    """Return one likely remedy; empty when nothing known fits. `status` is negative for a signal."""
    if status == -9:
        return _STATUSES[status]
    for sign, remedy in _SIGNS:
        found = re.search(sign, tail, re.MULTILINE)
        if found:
            return found.expand(remedy)
    return _STATUSES.get(status, "")
