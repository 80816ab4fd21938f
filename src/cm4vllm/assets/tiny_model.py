"""The tiny model: a Llama of half a million parameters, trained here in less than a minute on the harbour log.

It makes every part of a run real on a machine without GPU and without a model hub. It is no benchmark's model.
"""

from __future__ import annotations

import json
from pathlib import Path

from cm4vllm.assets.stand_in_training import train_stand_in
from cm4vllm.assets.tiny_dataset import Split, examples
from cm4vllm.common.files import write_text
from cm4vllm.common.temporary_folders import scratch_folder

__all__ = ["RECIPE", "train"]

SEED = 0
#: Pairs of one record, then pairs of up to four.
STAGES = ((1, 2600), (4, 5800))
#: The inputs of the training beside the code; they are in the model's record.
RECIPE = {
    "task": "harbour log summaries",
    "seed": str(SEED),
    "training_pairs": " then ".join(f"{count} of up to {records} records" for records, count in STAGES),
}


def train(python: Path, folder: Path) -> None:
    """Train the tiny model into `folder` with `python`. Raises what train_stand_in raises."""
    with scratch_folder() as scratch:
        stages = scratch / "stages.json"
        write_text(stages, json.dumps(training_stages()))
        train_stand_in(
            python,
            folder,
            subject="text_training",
            data=stages,
            seed=SEED,
            name="the tiny model",
            duration="about 45 s",
        )


def training_stages() -> list[list[tuple[str, str]]]:
    """Return the pairs of prompt and answer of each stage of the training; none is in the evaluation set."""
    return [
        [(example.input, example.output) for example in examples(Split.TRAINING, count, SEED, records)]
        for records, count in STAGES
    ]
