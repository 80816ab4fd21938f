"""What to do about a failure: a shell command's, by its exit status and last lines; and by which flags."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cm4vllm.engine.format.meta import ScriptMeta
from cm4vllm.engine.run.request import ENGINE_FLAGS

__all__ = ["likely_remedy", "with_usable_flags"]

_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9_]*)(?![\w-])")

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


def with_usable_flags(text: str, scripts: Sequence[ScriptMeta]) -> str:
    """Return the text of an error in which every flag is one that the script that was asked for accepts.

    `scripts` are those under way, from that one to the one that failed. A flag of the latter becomes the environment
    key that it stands for, which dependencies inherit. Lines that name a command of their own stay as they are.
    """
    asked, *below = scripts
    known = {*asked.input_mapping, *asked.input_description, *ENGINE_FLAGS}
    keys = {flag: key for script in below for flag, key in script.input_mapping.items()}

    def usable(found: re.Match[str]) -> str:
        flag = found[1]
        return found[0] if flag in known or flag not in keys else f"--env.{keys[flag]}"

    return "\n".join(line if "cm run script" in line else _FLAG.sub(usable, line) for line in text.splitlines())
