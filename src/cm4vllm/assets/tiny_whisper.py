"""The tiny whisper: a quarter of a million parameters, trained here in about a minute on words as tones.

It makes every part of a run of speech real on a machine without GPU and without a model hub: its transcripts are right
only where the clip has arrived. It is no benchmark's model.
"""

from __future__ import annotations

from pathlib import Path

from cm4vllm.assets import tone_speech
from cm4vllm.assets.stand_in_training import train_stand_in

__all__ = ["RECIPE", "train"]

SEED = 0
#: The inputs of the training beside the code; they are in the model's record.
RECIPE = {"task": "transcripts of words as tones", "seed": str(SEED)}


def train(python: Path, folder: Path) -> None:
    """Train the tiny whisper into `folder` with `python`. Raises what train_stand_in raises."""
    train_stand_in(
        python,
        folder,
        subject="speech_training",
        data=Path(tone_speech.__file__),
        seed=SEED,
        name="the tiny whisper",
        duration="about a minute",
    )
