"""The tiny whisper: a quarter of a million parameters, trained here in about a minute on words as tones.

It makes every part of a run of speech real on a machine without GPU and without a model hub: its transcripts are right
only where the clip has arrived. It is no benchmark's model.
"""

from __future__ import annotations

from pathlib import Path

from cm4vllm.assets.tiny_model import run_training

__all__ = ["RECIPE", "train"]

SEED = 0
#: What the model depends on beside the code: stands in its record.
RECIPE = {"task": "transcripts of words as tones", "seed": str(SEED)}
_TRAINING = Path(__file__).with_name("speech_training.py")
_SPEECH = Path(__file__).with_name("tone_speech.py")


def train(python: Path, folder: Path) -> None:
    """Train the tiny whisper into `folder` with `python`, which must have torch, transformers and tokenizers.

    Raises InstallError where that Python lacks a package, ModelError where the training fails.
    """
    words = [str(python), "-P", str(_TRAINING), f"--speech={_SPEECH}", f"--seed={SEED}"]
    run_training(words, folder, "the tiny whisper (about a minute on one core)")
