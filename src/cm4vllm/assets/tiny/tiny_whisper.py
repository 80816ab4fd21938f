"""The tiny whisper: a quarter of a million parameters, trained here in about a minute on words as tones.

It makes every part of a run of speech real on a machine without GPU and without a model hub: its transcripts are right
only where the clip has arrived. It is no benchmark's model.
"""

from __future__ import annotations

from cm4vllm.assets.tiny import tone_speech

#: The inputs of the training beside the code; they are in the model's record.
RECIPE = {"task": "transcripts of words as tones", "seed": "0"}


def training_data() -> dict[str, str]:
    """Return the path of the module that makes the clips."""
    return {"speech": tone_speech.__file__}
