"""Train a stand-in for a benchmark's model; run by path in the environment that has torch.

    python training.py --subject=MODULE.py --data=FILE --output=FOLDER [--seed=N]

The subject is a module with a class `Subject`: a very small model and its batches, made from the JSON in FILE.
FOLDER receives config.json, model.safetensors (fp32), tokenizer.json and the subject's further files. One thread and
fixed seeds: the same input gives the same bytes on the same machine. Nothing of cm4vllm is imported, because that
environment is vLLM's, not ours; so a subject is given this module, for the functions that all subjects use.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

os.environ.update(
    TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error"
)

LEARNING_RATE = 2e-3
REPORT_STEPS = 50
#: Stands in config.json, so that the model is known for what it is under any name and in any folder.
STAND_IN = {"cm4vllm_stand_in": True}


class Subject(Protocol):
    """The subject of a training, made from the data, the seed and this module: a model, and a batch for each step."""

    model: Any
    tokenizer: Any
    batches: Sequence[Any]
    warm_up_steps: int

    def loss_of(self, batch: Any) -> Any:
        """Return the loss of the model on a batch."""

    def files(self) -> Mapping[str, Any]:
        """Return the files beside the weights and tokenizer.json, by their names: texts, or values for JSON."""


def byte_level_bpe(texts: Iterable[str], size: int, first: Sequence[str] = ()) -> Any:
    """Train a byte-level BPE tokenizer of `size` tokens on texts; the special tokens `first` have the lowest ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(first),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train(subject: Subject) -> None:
    """Train the model in place, a step for each batch; the learning rate warms up, then falls along a cosine."""
    import torch

    model, steps = subject.model, len(subject.batches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / subject.warm_up_steps) * (0.51 + 0.49 * math.cos(math.pi * step / steps)),
    )
    begin, recent = time.monotonic(), 0.0
    model.train()
    for step, batch in enumerate(subject.batches, start=1):
        loss = subject.loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent += loss.item()
        if step % REPORT_STEPS == 0:
            elapsed = time.monotonic() - begin
            print(f"step {step}/{steps} loss {recent / REPORT_STEPS:.3f} {elapsed:.0f} s", flush=True)
            recent = 0.0


def save(subject: Subject, folder: Path) -> None:
    """Write the model, its tokenizer and further files as transformers and vLLM read them."""
    folder.mkdir(parents=True, exist_ok=True)
    subject.model.config.update(STAND_IN)
    subject.model.save_pretrained(folder)
    subject.tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in subject.files().items():
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def module_at(path: Path) -> Any:
    """Return a module, imported by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Train and save, as the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    data = json.loads(arguments.data.read_text(encoding="utf-8"))
    made = module_at(arguments.subject).Subject(data, arguments.seed, sys.modules[__name__])
    subject = cast(Subject, made)
    parameters = sum(parameter.numel() for parameter in subject.model.parameters())
    print(f"{parameters} parameters, {len(subject.batches)} batches", flush=True)
    train(subject)
    save(subject, arguments.output)


if __name__ == "__main__":
    main()
