"""Train the weights of a tiny model that is part of cm4vllm, or let a model answer its evaluation set.

    PYTHONPATH=src PYTHON docs/tools/train_stand_in.py NAME FOLDER               trains the model into FOLDER
    PYTHONPATH=src PYTHON docs/tools/train_stand_in.py NAME FOLDER --answers=N   prints N answers and their references

NAME is cm4vllm-tiny, cm4vllm-tiny-whisper or cm4vllm-tiny-vision; configuration and tokenizer are those of its folder
in src/cm4vllm/assets/tiny/models. PYTHON is the one of vLLM's environment, which has torch and transformers. One thread
and fixed seeds: the same bytes on the same machine.
"""

import argparse
import json
import math
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer

from cm4vllm.assets.tiny import product_pictures, tone_speech
from cm4vllm.assets.tiny.tiny_dataset import EVALUATION_SEED, Split, examples
from cm4vllm.rules import chat_prompts

SHIPPED = Path(tone_speech.__file__).with_name("models")
SEED, LEARNING_RATE = 0, 2e-3
REPORT_STEPS = 50
IGNORED = -100
LONGEST_ANSWER = 200


class Sample(NamedTuple):
    """Token ids of a prompt and its answer, how many of them are the prompt's, the answer, and sound or picture."""

    ids: list[int]
    given: int
    answer: str
    medium: Any = None


class Task:
    """A task of a tiny model: its samples in tokens, the order in which they come, and the tensors of a batch."""

    warm_up_steps, steps, batch = 50, 0, 16

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def samples(self, evaluated: int) -> list[Sample]:
        """Return the samples of the training; with `evaluated` as many of the evaluation set instead."""
        raise NotImplementedError

    def batches(self, samples: list[Sample], rng: random.Random) -> Iterator[list[Sample]]:
        """Yield the samples of each step."""
        return (rng.sample(samples, self.batch) for _ in range(self.steps))

    def inputs(self, ids: Any, samples: Sequence[Sample]) -> dict[str, Any]:
        """Return what the model is called with for padded token ids."""
        return {"input_ids": ids}  # padding on the right needs no mask: attention is causal


class HarbourLogs(Task):
    """Summaries of harbour logs. A model this small learns to copy from one record much sooner than from four."""

    warm_up_steps = 30
    #: Pairs of one record, then pairs of up to four.
    stages = ((1, 2600), (4, 5800))
    #: Batches are cut from this many sorted ones, so that sequences of like length meet and little is padded.
    batch, pool = 8, 8

    def samples(self, evaluated: int) -> list[Sample]:
        chosen = examples(Split.EVALUATION, evaluated, EVALUATION_SEED)
        if not evaluated:
            chosen = [pair for records, count in self.stages for pair in examples(Split.TRAINING, count, SEED, records)]
        return [
            sample_of(self.tokenizer, self.tokenizer.encode(pair.input).ids, f" {pair.output}", "</s>")
            for pair in chosen
        ]

    def batches(self, samples: list[Sample], rng: random.Random) -> Iterator[list[Sample]]:
        easy, size = self.stages[0][1], self.batch
        for stage in (samples[:easy], samples[easy:]):
            rng.shuffle(stage)
            for start in range(0, len(stage), size * self.pool):
                pool = sorted(stage[start : start + size * self.pool], key=lambda sample: sample.given)
                cut = [pool[at : at + size] for at in range(0, len(pool), size)]
                rng.shuffle(cut)
                yield from cut


class Tones(Task):
    """Transcripts of words as tones; silence has no words."""

    clips, silent, steps = 2400, 72, 700

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.prompt = [
            tokenizer.token_to_id(f"<|{name}|>") for name in ("startoftranscript", "en", "transcribe", "notimestamps")
        ]
        self.extractor = transformers.WhisperFeatureExtractor.from_pretrained(SHIPPED / "cm4vllm-tiny-whisper")

    def samples(self, evaluated: int) -> list[Sample]:
        texts = tone_speech.sentences(
            evaluated or self.clips, EVALUATION_SEED if evaluated else SEED, evaluation=bool(evaluated)
        )
        clips = [*map(tone_speech.clip, texts)]
        if not evaluated:
            texts, clips = texts + [""] * self.silent, clips + [tone_speech.silence()] * self.silent
        sound = [clip.astype(np.float32) / 32768 for clip in clips]
        features = self.extractor(sound, sampling_rate=tone_speech.RATE_HZ, return_tensors="pt").input_features
        return [
            sample_of(self.tokenizer, self.prompt, f" {text}" if text else "", "<|endoftext|>", medium)
            for text, medium in zip(texts, features, strict=True)
        ]

    def inputs(self, ids: Any, samples: Sequence[Sample]) -> dict[str, Any]:
        return {"input_features": torch.stack([sample.medium for sample in samples]), "decoder_input_ids": ids}


class Products(Task):
    """Categories of products by their texts and their pictures; the prompts are those of all rounds, in turn."""

    products, steps = 6000, 1500
    patch, merge = 16, 2

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.picture = tokenizer.token_to_id("<|image_pad|>")
        self.prompts = list(chat_prompts())

    def samples(self, evaluated: int) -> list[Sample]:
        made = product_pictures.products(
            evaluated or self.products, EVALUATION_SEED if evaluated else SEED, evaluation=bool(evaluated)
        )
        return [self.sample(number, product) for number, product in enumerate(made)]

    def sample(self, number: int, product: product_pictures.Product) -> Sample:
        """Return a product as the chat template writes it, with a token for each part of its picture."""
        prompt = self.prompts[number % len(self.prompts)]
        categories = json.dumps(product.categories) if prompt.lists == "json" else str(product.categories)
        asked = prompt.user.format(title=product.title, description=product.description, categories=categories)
        patches, grid = self.patches_of(product_pictures.picture(product.colour, product.size, product.variant))
        text = (
            f"<|im_start|>system\n{prompt.system}<|im_end|>\n<|im_start|>user\n{asked}<|vision_start|>"
            + "<|image_pad|>" * (grid[1] * grid[2] // self.merge**2)
            + "<|vision_end|><|im_end|>\n<|im_start|>assistant\n"
        )
        head = self.tokenizer.encode(text, add_special_tokens=False).ids
        return sample_of(self.tokenizer, head, product.answer, "<|im_end|>", (patches, grid))

    def patches_of(self, pixels: Any) -> tuple[Any, tuple[int, int, int]]:
        """Return a picture as Qwen2VLImageProcessor cuts it, and its grid; it is resized to whole parts."""
        image = torch.from_numpy(pixels.astype("float32")).permute(2, 0, 1) / 127.5 - 1
        patch, merge = self.patch, self.merge
        height, width = (round(size / (patch * merge)) * patch * merge for size in image.shape[1:])
        if (height, width) != tuple(image.shape[1:]):
            resize = torch.nn.functional.interpolate
            image = resize(image[None], (height, width), mode="bicubic", antialias=True)[0].clamp(-1, 1)
        rows, columns = height // patch, width // patch
        cut = image.reshape(3, rows // merge, merge, patch, columns // merge, merge, patch)
        cut = cut.permute(1, 4, 2, 5, 0, 3, 6).reshape(rows * columns, 3, 1, patch, patch)
        return cut.expand(-1, -1, 2, -1, -1).reshape(rows * columns, -1), (1, rows, columns)

    def inputs(self, ids: Any, samples: Sequence[Sample]) -> dict[str, Any]:
        lengths = torch.tensor([len(sample.ids) for sample in samples])
        return {
            "input_ids": ids,
            "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long(),
            "mm_token_type_ids": (ids == self.picture).int(),
            "pixel_values": torch.cat([sample.medium[0] for sample in samples]),
            "image_grid_thw": torch.tensor([sample.medium[1] for sample in samples]),
        }


TASKS: dict[str, type[Task]] = {
    "cm4vllm-tiny": HarbourLogs,
    "cm4vllm-tiny-whisper": Tones,
    "cm4vllm-tiny-vision": Products,
}


def sample_of(tokenizer: Any, head: list[int], answer: str, end: str, medium: Any = None) -> Sample:
    """Return a sample whose answer ends with the token `end`."""
    tail = [*tokenizer.encode(answer, add_special_tokens=False).ids, tokenizer.token_to_id(end)]
    return Sample([*head, *tail], len(head), answer, medium)


def loss_of(model: Any, task: Task, batch: list[Sample]) -> Any:
    """Return the mean cross-entropy over the answers' tokens."""
    ids = torch.zeros(len(batch), max(len(sample.ids) for sample in batch), dtype=torch.long)
    wanted = torch.full_like(ids, IGNORED)
    for row, sample in enumerate(batch):
        ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
        wanted[row, sample.given : len(sample.ids)] = ids[row, sample.given : len(sample.ids)]
    logits = model(**task.inputs(ids, batch), use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), wanted[:, 1:].flatten(), ignore_index=IGNORED
    )


def train(model: Any, task: Task) -> None:
    """Train the model in place, a step for each batch; the learning rate warms up, then falls along a cosine."""
    batches = list(task.batches(task.samples(0), random.Random(SEED)))  # noqa: S311 - reproducible order, not a secret
    steps, recent = len(batches), 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / task.warm_up_steps) * (0.51 + 0.49 * math.cos(math.pi * step / steps)),
    )
    model.train()
    for step, batch in enumerate(batches, start=1):
        loss = loss_of(model, task, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent += loss.item() / REPORT_STEPS
        if step % REPORT_STEPS == 0:
            print(f"step {step}/{steps} loss {recent:.3f}", flush=True)
            recent = 0.0


def answer(model: Any, task: Task, tokenizer: Any, sample: Sample) -> str:
    """Return the most probable answer of the model."""
    ids = sample.ids[: sample.given]
    with torch.no_grad():
        while len(ids) < sample.given + LONGEST_ANSWER:
            inputs = task.inputs(torch.tensor([ids]), [sample._replace(ids=ids)])
            token = int(model(**inputs, use_cache=False).logits[0, -1].argmax())
            if token == sample.ids[-1]:
                break
            ids = [*ids, token]
    return str(tokenizer.decode(ids[sample.given :]))


def main() -> None:
    """Train and save, or print answers, as the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=TASKS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--answers", type=int, default=0, metavar="N")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    shipped = SHIPPED / asked.name
    config = transformers.AutoConfig.from_pretrained(shipped)
    kind = getattr(transformers, config.architectures[0])
    tokenizer = Tokenizer.from_file(str(shipped / "tokenizer.json"))
    task = TASKS[asked.name](tokenizer)
    if asked.answers:
        model = kind.from_pretrained(asked.folder).eval()
        pairs = [(answer(model, task, tokenizer, sample), sample.answer) for sample in task.samples(asked.answers)]
        print(json.dumps([[text.strip(), reference.strip()] for text, reference in pairs]))
        return
    model = kind(config)
    train(model, task)
    model.save_pretrained(asked.folder)
    shutil.copytree(shipped, asked.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))


if __name__ == "__main__":
    main()
