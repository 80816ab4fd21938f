"""The tiny model: a Llama of half a million parameters, trained here in less than a minute on the harbour log.

It makes every part of a run real on a machine without GPU and without a model hub. It is no benchmark's model.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from cm4vllm.assets.environment_worker import run_worker
from cm4vllm.assets.tiny_dataset import Split, examples
from cm4vllm.common.errors import InstallError, ModelError
from cm4vllm.common.files import require_space, staged_folder, write_text
from cm4vllm.common.processes import exit_in_words
from cm4vllm.common.progress import step
from cm4vllm.common.temporary_folders import scratch_folder

__all__ = ["RECIPE", "run_training", "train"]

SEED = 0
#: Pairs of one record, then pairs of up to four.
STAGES = ((1, 2600), (4, 5800))
#: What the model depends on beside the code: stands in its record.
RECIPE = {
    "task": "harbour log summaries",
    "seed": str(SEED),
    "training_pairs": " then ".join(f"{count} of up to {records} records" for records, count in STAGES),
}
_SPACE_BYTES = 64 * 2**20
_TRAINING = Path(__file__).with_name("training.py")
_PROGRESS = re.compile(r"step (\d+)/(\d+)")


def train(python: Path, folder: Path) -> None:
    """Train the tiny model into `folder` with `python`, which must have torch, transformers and tokenizers.

    About 45 s on one core. The folder appears when the model is whole. Raises InstallError where that Python lacks a
    package, ModelError where the training fails.
    """
    with scratch_folder() as scratch:
        stages = scratch / "stages.json"
        write_text(stages, json.dumps(training_stages()))
        words = [str(python), "-P", str(_TRAINING), f"--stages={stages}", f"--seed={SEED}"]
        run_training(words, folder, "the tiny model (about 45 s on one core)")


def run_training(words: list[str], folder: Path, what: str) -> None:
    """Run a training, which gets the folder that it writes into as --output; `folder` appears when it is whole.

    Raises InstallError where its Python, the first of the words, lacks a package, ModelError where it fails.
    """
    require_space(folder, _SPACE_BYTES, what)
    with step(f"training {what}") as progress, staged_folder(folder) as staging:

        def tell(line: str) -> None:
            if found := _PROGRESS.search(line):
                progress.update(f"step {found[1]} of {found[2]}")

        _check(*run_worker([*words, f"--output={staging}"], tell), words[0])


def training_stages() -> list[list[tuple[str, str]]]:
    """Return the pairs of prompt and answer of each stage of the training; none is in the evaluation set."""
    return [
        [(example.input, example.output) for example in examples(Split.TRAINING, count, SEED, records)]
        for records, count in STAGES
    ]


def _check(status: int, lines: list[str], python: str) -> None:
    if status == 0:
        return
    missing = next((line for line in lines if "ModuleNotFoundError" in line), "")
    if missing:
        raise InstallError(
            "the tiny model cannot be trained",
            cause=f"{python}: {missing}",
            remedy="renew vLLM's environment: cm run script --tags=install,vllm,_cpu --renew",
        )
    raise ModelError(
        "the training of the tiny model failed",
        cause="\n".join([exit_in_words(status), *lines[-8:]]),
        remedy="a run of the same command starts it again",
    )
