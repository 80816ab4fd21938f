"""The training of stand-ins for a benchmark's model: training.py, run in vLLM's environment."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cm4vllm.assets.environment_worker import run_worker
from cm4vllm.common.errors import InstallError, ModelError
from cm4vllm.common.files import require_space, staged_folder, write_text
from cm4vllm.common.processes import exit_in_words
from cm4vllm.common.progress import step
from cm4vllm.common.temporary_folders import scratch_folder

__all__ = ["train_stand_in"]

_SPACE_BYTES = 64 * 2**20
_HERE = Path(__file__).parent
_PROGRESS = re.compile(r"step (\d+)/(\d+)")


def train_stand_in(
    python: Path, folder: Path, *, subject: str, data: object, seed: int, name: str, duration: str
) -> None:
    """Train a stand-in into `folder` with `python`, which must have torch, transformers and tokenizers.

    `subject` is the name of the module beside this one that training.py is given, `data` its data, a value for JSON.
    The folder appears when the model is whole. Raises InstallError where that Python lacks a package, ModelError where
    the training fails.
    """
    title = f"{name} ({duration} on one core)"
    words = [str(python), "-P", str(_HERE / "training.py"), f"--subject={_HERE / subject}.py"]
    require_space(folder, _SPACE_BYTES, title)
    with step(f"training {title}") as progress, staged_folder(folder) as staging, scratch_folder() as scratch:
        write_text(scratch / "data.json", json.dumps(data))
        words += [f"--data={scratch / 'data.json'}", f"--seed={seed}", f"--output={staging}"]
        _check(*run_worker(words, progress, _PROGRESS, r"step \1 of \2"), words[0], name)


def _check(status: int, lines: list[str], python: str, name: str) -> None:
    if status == 0:
        return
    missing = next((line for line in lines if "ModuleNotFoundError" in line), "")
    if missing:
        raise InstallError(
            f"{name} cannot be trained",
            cause=f"{python}: {missing}",
            remedy="renew vLLM's environment: cm run script --tags=install,vllm,_cpu --renew",
        )
    raise ModelError(
        f"the training of {name} failed",
        cause="\n".join([exit_in_words(status), *lines[-8:]]),
        remedy="a run of the same command starts it again",
    )
