"""What a server's log tells: the lines that say why it failed, what to do, and how far a start is."""

from __future__ import annotations

import re
from pathlib import Path

from cm4vllm.common.processes import last_lines

__all__ = ["advice", "progress_line", "telling_lines"]

_READ_LINES = 400
_SHOWN = 6
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
#: (EngineCore pid=12) ERROR 11-21 01:22:33 [core.py:1] what is said
_PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\)\s*)?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s*)?")
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Exit|Interrupt)\b(?::|$)")
_USAGE = re.compile(r"error: (?:unrecognized arguments|argument|the following)")
#: vLLM's outer processes only repeat that an inner one failed.
_REPEATED = ("Engine core initialization failed", "See root cause above", "Worker failed with error", "WorkerProc init")

#: What a log says, and what to do then; the first that is found counts.
_ADVICE = (
    (r"No space left on device", "free space on the disk, or set TMPDIR to another one"),
    (r"unrecognized arguments|invalid choice|error: argument",
     "correct --extra_args: this vLLM does not know them; `vllm serve --help=all` lists what it knows"),
    (r"Model architectures? .* (?:are|is) not supported", "use a model whose architecture this vLLM supports"),
    (r"maximum (?:model|sequence) len|max_model_len .* greater than|max seq len .* larger than the maximum number",
     "lower --max_model_len"),
    (r"KV cache|kv cache memory|VLLM_CPU_KVCACHE_SPACE",
     "lower --max_model_len, or give keys and values more memory: --kv_cache_space=<GiB>"),
    (r"MemoryError|Cannot allocate memory|can't allocate memory|out of memory|OutOfMemory",
     "free memory, serve a smaller model, or lower --kv_cache_space"),
    (r"trust.remote.code", "add --trust_remote_code if you trust the model's own code"),
    (r"gated repo|401 Client Error|403 Client Error", "accept the model's licence on its hub and set HF_TOKEN"),
    (r"Not enough allowed NUMA nodes|CPU affinity|omp.*bind",
     "bind by hand: --cpu_binding=nobind, or core numbers such as 0-3"),
    (r"ModuleNotFoundError|ImportError|cannot open shared object|undefined symbol",
     "install vLLM again: cm run script --tags=install,vllm,_cpu --renew"),
    (r"Illegal instruction", "this vLLM needs AVX2 or AVX-512, which this processor lacks"),
)  # fmt: skip


def telling_lines(log: Path) -> str:
    """Return the lines of a log that say why the server failed, else its last lines; empty when there are none."""
    lines = [_plain(line) for line in last_lines(log, _READ_LINES).splitlines()]
    told = [line for line in lines if _EXCEPTION.match(line) or _USAGE.search(line)]
    root = [line for line in told if not any(phrase in line for phrase in _REPEATED)] or told
    shown = list(dict.fromkeys(root))[-_SHOWN:] or [line for line in lines if line.strip()][-_SHOWN:]
    return "\n".join(line[:400] for line in shown)


def advice(text: str) -> str:
    """Return what to do about a failure that a log's text names, empty when it names none that is known."""
    return next((remedy for pattern, remedy in _ADVICE if re.search(pattern, text, re.IGNORECASE)), "")


def progress_line(log: Path) -> str:
    """Return what the server did last, in short."""
    for line in reversed(last_lines(log, 8).splitlines()):
        text = _plain(line).strip()
        if text:
            return text[:80]
    return "its process starts"


def _plain(line: str) -> str:
    return _PREFIX.sub("", _ANSI.sub("", line))
