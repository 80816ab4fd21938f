"""The tiny vision-language model: a Qwen3-VL of half a million parameters, trained here in three to five minutes.

It makes every part of a run of pictures real on a machine without GPU and without a model hub: the colour in its
answers is right only where the picture has arrived. It is no benchmark's model.
"""

from __future__ import annotations

from cm4vllm.assets.tiny import product_pictures
from cm4vllm.rules import chat_prompts

#: What the model depends on beside the code: stands in its record.
RECIPE = {"task": "categories of products by title and picture", "seed": "0"}


def training_data() -> dict[str, object]:
    """Return the path of the module that makes the products, and the prompts of all rounds, which the model knows."""
    prompts = [[prompt.system, prompt.user, prompt.lists] for prompt in chat_prompts()]
    return {"products": product_pictures.__file__, "prompts": prompts}
