"""Train a very small Llama on pairs of prompt and answer; run by path in the environment that has torch.

    python training.py --stages=FILE --output=FOLDER [--seed=N]

FILE is a JSON list of stages, each a list of [prompt, answer] that is passed through once; easy stages come first,
because a model this small learns to copy from one record much sooner than from four. FOLDER receives config.json,
generation_config.json, model.safetensors (fp32), tokenizer.json and tokenizer_config.json. One thread and fixed seeds:
the same input gives the same bytes on the same machine. Nothing of cm4vllm is imported, because that environment is
vLLM's, not ours.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(
    TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error"
)

BEGIN, END, PAD = "<s>", "</s>", "<pad>"
VOCABULARY = 768
BATCH = 8
#: Batches are cut from this many sorted ones, so that sequences of like length meet and little is padded.
POOL = 8
LEARNING_RATE = 2e-3
REPORT_STEPS = 100
WARM_UP_STEPS = 30
ARCHITECTURE = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "max_position_embeddings": 65536,
    "tie_word_embeddings": False,
}
#: Stands in config.json, so that the model is known for what it is under any name and in any folder.
STAND_IN = {"cm4vllm_stand_in": True}

Sequence_ = tuple[list[int], int]  # token ids, and how many of them are the prompt


def make_tokenizer(pairs: list[tuple[str, str]]) -> Any:
    """Train a byte-level BPE tokenizer on the texts; it puts BEGIN before every text, as Llama's does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END, PAD],
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator((text for prompt, answer in pairs for text in (prompt, " " + answer)), trainer)
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, begin)]
    )
    return tokenizer


def encode(tokenizer: Any, pairs: list[tuple[str, str]]) -> list[Sequence_]:
    """Return each pair as one sequence: BEGIN, the prompt, a space and the answer, END."""
    end = tokenizer.token_to_id(END)
    sequences = []
    for prompt, answer in pairs:
        head = tokenizer.encode(prompt).ids
        tail = tokenizer.encode(" " + answer, add_special_tokens=False).ids
        sequences.append((head + tail + [end], len(head)))
    return sequences


def batches(sequences: list[Sequence_], rng: random.Random) -> Iterator[list[Sequence_]]:
    """Give batches of sequences of like length, each sequence once, in a shuffled order."""
    order = list(range(len(sequences)))
    rng.shuffle(order)
    for start in range(0, len(order), BATCH * POOL):
        pool = sorted(order[start : start + BATCH * POOL], key=lambda i: len(sequences[i][0]))
        cut = [pool[k : k + BATCH] for k in range(0, len(pool), BATCH)]
        rng.shuffle(cut)
        for chosen in cut:
            yield [sequences[i] for i in chosen]


def loss_of(model: Any, batch: list[Sequence_]) -> Any:
    """Return the mean cross-entropy over the answers' tokens.

    Padding on the right needs no mask: attention is causal.
    """
    import torch

    width = max(len(ids) for ids, _ in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    answers = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, (sequence, prompt_length) in enumerate(batch):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        answers[row, prompt_length : len(sequence)] = True
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[answers[:, 1:]])
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][answers[:, 1:]])


def train(model: Any, stages: list[list[Sequence_]], seed: int) -> None:
    """Train `model` in place, once through each stage; the learning rate warms up, then falls along a cosine."""
    import torch

    rng = random.Random(seed)  # noqa: S311 - reproducible order, not a secret
    work = [batch for stage in stages for batch in batches(stage, rng)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / WARM_UP_STEPS) * (0.51 + 0.49 * math.cos(math.pi * step / len(work))),
    )
    begin, recent = time.monotonic(), 0.0
    model.train()
    for step, batch in enumerate(work, start=1):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent += loss.item()
        if step % REPORT_STEPS == 0:
            elapsed = time.monotonic() - begin
            print(f"step {step}/{len(work)} loss {recent / REPORT_STEPS:.3f} {elapsed:.0f} s", flush=True)
            recent = 0.0


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the model and its tokenizer as transformers and vLLM read them."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": ARCHITECTURE["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Train and save, as the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    texts = [[(prompt, answer) for prompt, answer in stage] for stage in json.loads(arguments.stages.read_text())]
    tokenizer = make_tokenizer([pair for stage in texts for pair in stage])
    stages = [encode(tokenizer, stage) for stage in texts]
    ids = {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD}
    model = LlamaForCausalLM(
        LlamaConfig(
            **ARCHITECTURE,
            vocab_size=tokenizer.get_vocab_size(),
            dtype="float32",
            **{key: tokenizer.token_to_id(word) for key, word in ids.items()},
            **STAND_IN,
        )
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters} parameters, {sum(map(len, stages))} pairs", flush=True)
    train(model, stages, arguments.seed)
    save(model, tokenizer, arguments.output)


if __name__ == "__main__":
    main()
