"""A very small Qwen3-VL that learns products with pictures: a subject of training.py.

Its data is a JSON object: `products` is the path of product_pictures.py, `prompts` a list of [system, user, lists]
(rules.ChatPrompt), by which the model will be asked. Nothing of cm4vllm is imported, because the environment is vLLM's,
not ours. The fixed parts of prompts and answers are single tokens of the tokenizer: what is learnt is in the rest.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

END, BEGIN_MESSAGE, END_MESSAGE = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
BEGIN_PICTURE, END_PICTURE, PICTURE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
SPECIAL = (END, BEGIN_MESSAGE, END_MESSAGE, BEGIN_PICTURE, END_PICTURE, PICTURE, VIDEO)
#: The parts of an answer that are the same in each.
ANSWER_PARTS = ('{"category": "', '", "brand": "', '", "is_secondhand": true}', '", "is_secondhand": false}')
#: As Qwen3-VL's, of messages that are a text, or a list of texts and images.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif 'text' in part -%}{{- part.text -}}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
VOCABULARY = 480
POSITIONS = 2048
PATCH, MERGE = 16, 2
LEAST_PIXELS, MOST_PIXELS = 32 * 32, 512 * 512
BATCH = 16
EXAMPLES, STEPS = 6000, 1500
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": POSITIONS,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
}
VISION = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0],
}


def conversation(prompt: list[str], product: Any) -> str:
    """Return the prompt of a product as the chat template writes it, with one PICTURE."""
    system, user, lists = prompt
    categories = json.dumps(product.categories) if lists == "json" else str(product.categories)
    asked = user.format(title=product.title, description=product.description, categories=categories)
    return (
        f"{BEGIN_MESSAGE}system\n{system}{END_MESSAGE}\n{BEGIN_MESSAGE}user\n{asked}"
        f"{BEGIN_PICTURE}{PICTURE}{END_PICTURE}{END_MESSAGE}\n{BEGIN_MESSAGE}assistant\n"
    )


def fixed_parts(prompts: list[list[str]]) -> list[str]:
    """Return the parts of prompts and answers that are the same in each."""
    parts = [part for system, user, _ in prompts for part in (system, *re.split(r"\{\w+\}", user))]
    return [*dict.fromkeys(parts), *ANSWER_PARTS]


def make_tokenizer(training: Any, texts: list[str], fixed: list[str]) -> Any:
    """Train a tokenizer on texts; the fixed parts and Qwen's special tokens are tokens of their own."""
    from tokenizers import AddedToken

    tokenizer = training.byte_level_bpe(texts, VOCABULARY - len(SPECIAL) - len(fixed))
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    tokenizer.add_tokens([AddedToken(part, normalized=False) for part in fixed])
    return tokenizer


def patches_of(pixels: Any) -> tuple[Any, tuple[int, int]]:
    """Return a picture as Qwen2VLImageProcessor cuts it, and its grid; sizes are rounded as bicubic resizing does."""
    import torch

    image = torch.from_numpy(pixels.astype("float32")).permute(2, 0, 1) / 127.5 - 1
    factor = PATCH * MERGE
    height, width = (round(size / factor) * factor for size in image.shape[1:])
    if (height, width) != tuple(image.shape[1:]):
        resize = torch.nn.functional.interpolate
        image = resize(image[None], (height, width), mode="bicubic", antialias=True)[0].clamp(-1, 1)
    rows, columns = height // PATCH, width // PATCH
    cut = image.reshape(3, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
    cut = cut.permute(1, 4, 2, 5, 0, 3, 6).reshape(rows * columns, 3, 1, PATCH, PATCH)
    return cut.expand(-1, -1, 2, -1, -1).reshape(rows * columns, -1), (rows, columns)


def example_of(tokenizer: Any, prompt: list[str], product: Any, pixels: Any) -> dict[str, Any]:
    """Return a sample of the training: token ids with a PICTURE for each token of the picture, and what is learnt."""
    patches, (rows, columns) = patches_of(pixels)
    tokens = rows * columns // MERGE**2
    text = conversation(prompt, product).replace(PICTURE, PICTURE * tokens)
    head = tokenizer.encode(text, add_special_tokens=False).ids
    tail = [*tokenizer.encode(product.answer, add_special_tokens=False).ids, tokenizer.token_to_id(END_MESSAGE)]
    return {"ids": head + tail, "given": len(head), "patches": patches, "grid": (1, rows, columns)}


class Subject:
    """A small Qwen3-VL, the products that it learns from, and how it is written."""

    warm_up_steps = 50

    def __init__(self, data: dict[str, Any], seed: int, training: Any) -> None:
        from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

        made, prompts = training.module_at(Path(data["products"])), data["prompts"]
        products = list(made.products(EXAMPLES, seed, evaluation=False))
        texts = [
            f"{product.title}\n{product.description}\n{product.categories}\n{json.dumps(product.categories)}"
            for product in products
        ]
        texts += [f"{role}\n" for role in ("system", "user", "assistant")]
        self.tokenizer = make_tokenizer(training, texts, fixed_parts(prompts))
        pictures = {
            key: made.picture(*key) for key in {(product.colour, product.size, product.variant) for product in products}
        }
        self.examples = [
            example_of(
                self.tokenizer,
                prompts[number % len(prompts)],
                product,
                pictures[product.colour, product.size, product.variant],
            )
            for number, product in enumerate(products)
        ]
        rng = random.Random(seed)  # noqa: S311 - reproducible order, not a secret
        self.batches = [rng.sample(range(len(products)), BATCH) for _ in range(STEPS)]
        ids = {word: self.tokenizer.token_to_id(word) for word in SPECIAL}
        self.picture_id = ids[PICTURE]
        self.model = Qwen3VLForConditionalGeneration(
            Qwen3VLConfig(
                text_config={**TEXT, "vocab_size": self.tokenizer.get_vocab_size(), "tie_word_embeddings": False},
                vision_config=VISION,
                image_token_id=ids[PICTURE],
                video_token_id=ids[VIDEO],
                vision_start_token_id=ids[BEGIN_PICTURE],
                vision_end_token_id=ids[END_PICTURE],
                eos_token_id=ids[END_MESSAGE],
                pad_token_id=ids[END],
                dtype="float32",
            )
        )

    def loss_of(self, batch: list[int]) -> Any:
        """Return the mean cross-entropy over the answers' tokens."""
        import torch

        chosen = [self.examples[number] for number in batch]
        width = max(len(example["ids"]) for example in chosen)
        ids = torch.zeros(len(chosen), width, dtype=torch.long)
        mask, wanted = torch.zeros_like(ids), torch.full_like(ids, -100)
        for row, example in enumerate(chosen):
            length = len(example["ids"])
            ids[row, :length] = torch.tensor(example["ids"])
            mask[row, :length] = 1
            wanted[row, example["given"] : length] = ids[row, example["given"] : length]
        logits = self.model(
            input_ids=ids,
            attention_mask=mask,
            mm_token_type_ids=(ids == self.picture_id).int(),
            pixel_values=torch.cat([example["patches"] for example in chosen]),
            image_grid_thw=torch.tensor([example["grid"] for example in chosen]),
            use_cache=False,
        ).logits
        return torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), wanted[:, 1:].flatten(), ignore_index=-100
        )

    def files(self) -> dict[str, Any]:
        """Return the chat template, and the settings of tokenizer and processors."""
        sizes = {"size": {"shortest_edge": LEAST_PIXELS, "longest_edge": MOST_PIXELS}, "patch_size": PATCH}
        sizes |= {"merge_size": MERGE, "temporal_patch_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        processor = {**sizes, "processor_class": "Qwen3VLProcessor"}
        return {
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "processor_class": "Qwen3VLProcessor",
                "eos_token": END_MESSAGE,
                "pad_token": END,
                "additional_special_tokens": list(SPECIAL),
                "model_max_length": POSITIONS,
                "clean_up_tokenization_spaces": False,
            },
            "preprocessor_config.json": {**processor, "image_processor_type": "Qwen2VLImageProcessor"},
            "video_preprocessor_config.json": {**processor, "video_processor_type": "Qwen3VLVideoProcessor"},
            "chat_template.jinja": CHAT_TEMPLATE,
        }
