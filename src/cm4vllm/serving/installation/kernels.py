"""The compiled kernels of a vLLM for NVIDIA's GPUs that its wheel does not bring: those of FlashInfer.

`vllm download-kernels` installs wheels of exactly FlashInfer's version from that project's own index, without hashes;
PyPI's flashinfer-cubin ends at 0.6.13. Without them the first start of a server compiles what it needs, with nvcc, and
downloads the rest; where nvcc is not found, vLLM 0.32.0 leaves FlashInfer out (vllm/utils/flashinfer.py).
"""

import os
import sys
from pathlib import Path

from cm4vllm.common.programs.environments import resolution_failure
from cm4vllm.common.programs.processes import run
from cm4vllm.common.progress import step, warn
from cm4vllm.serving.installation.packages import packages_of

#: Where FlashInfer's command looks for them (flashinfer/__main__.py, 0.7.0).
_INDEX = "https://flashinfer.ai/whl"
_LIBRARY, _KERNELS = "flashinfer-python", ("flashinfer-cubin", "flashinfer-jit-cache")
#: What a record and a plan say of an environment without them.
MISSING = "kernels missing: the first start compiles, and needs nvcc or a network"


def fetched_kernels(python: Path, folder: Path) -> str:
    """Return in words which compiled kernels an environment has, after an attempt to get those that it lacks.

    Empty where its vLLM has no FlashInfer. Whatever fails is a warning: a server starts without them, too.
    """
    if kernels := _present(python):
        return "" if kernels == _LIBRARY else kernels
    reason = resolution_failure(_INDEX) or _download(python, folder / "kernels.log")
    if reason or not (kernels := _present(python)):
        warn(f"{MISSING} ({reason or 'they are of another version than FlashInfer'})")
        return MISSING
    return kernels


def _present(python: Path) -> str:
    """Return the kernels that fit FlashInfer, with their versions; empty where it lacks them.

    Only FlashInfer's own name stands for an environment that has none, and so needs no kernels.
    """
    versions = packages_of(python, {"PYTHONPATH": ""}, (_LIBRARY, *_KERNELS))
    if _LIBRARY not in versions:
        return _LIBRARY
    fitting = [name for name in _KERNELS if versions.get(name, "").partition("+")[0] == versions[_LIBRARY]]
    return ", ".join(f"{name} {versions[name]}" for name in fitting)


def _download(python: Path, log: Path) -> str:
    """Run vLLM's own command for them, and return why it failed; empty where it did not.

    It installs by uv or by the environment's pip, which has none: the uv beside our Python is put on its PATH.
    """
    folders = [str(python.parent), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    with step("compiled kernels of FlashInfer"):
        done = run(
            [python, "-P", "-m", "vllm.entrypoints.cli.main", "download-kernels"],
            log=log,
            env={"PYTHONPATH": "", "UV_NO_CONFIG": "1", "PATH": os.pathsep.join(folders)},
        )
    return "" if done.ok else f"vllm download-kernels failed: {log}"
