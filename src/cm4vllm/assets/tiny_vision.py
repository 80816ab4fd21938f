"""The tiny vision-language model: a Qwen3-VL of half a million parameters, trained here in three to five minutes.

It makes every part of a run of pictures real on a machine without GPU and without a model hub: the colour in its
answers is right only where the picture has arrived. It is no benchmark's model.
"""

from __future__ import annotations

import json
from pathlib import Path

from cm4vllm.assets import product_pictures
from cm4vllm.assets.stand_in_training import train_stand_in
from cm4vllm.common.files import write_text
from cm4vllm.common.temporary_folders import scratch_folder
from cm4vllm.rules import chat_prompts

__all__ = ["RECIPE", "train"]

SEED = 0
#: What the model depends on beside the code: stands in its record.
RECIPE = {"task": "categories of products by title and picture", "seed": str(SEED)}


def train(python: Path, folder: Path) -> None:
    """Train the tiny model, which knows the prompts of all rounds. Raises what train_stand_in raises."""
    prompts = [[prompt.system, prompt.user, prompt.lists] for prompt in chat_prompts()]
    with scratch_folder() as scratch:
        data = scratch / "products.json"
        write_text(data, json.dumps({"products": product_pictures.__file__, "prompts": prompts}))
        train_stand_in(
            python,
            folder,
            subject="vision_training",
            data=data,
            seed=SEED,
            name="the tiny vision-language model",
            duration="three to five minutes",
        )
