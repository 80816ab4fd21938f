"""Training of a very small Llama on pairs of prompt and answer: a subject of training.py.

The data are a JSON list of stages, each a list of [prompt, answer] that is passed through once; easy stages come first,
because a model this small learns to copy from one record much sooner than from four. Nothing of cm4vllm is imported,
because the environment that has torch is vLLM's, not ours.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

BEGIN, END, PAD = "<s>", "</s>", "<pad>"
VOCABULARY = 768
BATCH = 8
#: Batches are cut from this many sorted ones, so that sequences of like length meet and little is padded.
POOL = 8
ARCHITECTURE = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "max_position_embeddings": 65536,
    "tie_word_embeddings": False,
}

Sequence_ = tuple[list[int], int]  # token ids, and how many of them are the prompt


def make_tokenizer(training: Any, pairs: list[tuple[str, str]]) -> Any:
    """Train a tokenizer on the texts; it puts BEGIN before every text, as Llama's does."""
    from tokenizers import processors

    texts = (text for prompt, answer in pairs for text in (prompt, " " + answer))
    tokenizer = training.byte_level_bpe(texts, VOCABULARY, [BEGIN, END, PAD])
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
    """Yield batches of sequences of like length, each sequence once, in a shuffled order."""
    order = list(range(len(sequences)))
    rng.shuffle(order)
    for start in range(0, len(order), BATCH * POOL):
        pool = sorted(order[start : start + BATCH * POOL], key=lambda i: len(sequences[i][0]))
        cut = [pool[k : k + BATCH] for k in range(0, len(pool), BATCH)]
        rng.shuffle(cut)
        for chosen in cut:
            yield [sequences[i] for i in chosen]


class Subject:
    """A small Llama, what it learns from, and how it is written."""

    warm_up_steps = 30

    def __init__(self, data: list[list[list[str]]], seed: int, training: Any) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        texts = [[(prompt, answer) for prompt, answer in stage] for stage in data]
        self.tokenizer = make_tokenizer(training, [pair for stage in texts for pair in stage])
        rng = random.Random(seed)  # noqa: S311 - reproducible order, not a secret
        self.batches = [batch for stage in texts for batch in batches(encode(self.tokenizer, stage), rng)]
        ids = {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD}
        self.model = LlamaForCausalLM(
            LlamaConfig(
                **ARCHITECTURE,
                vocab_size=self.tokenizer.get_vocab_size(),
                dtype="float32",
                **{key: self.tokenizer.token_to_id(word) for key, word in ids.items()},
            )
        )

    def loss_of(self, batch: list[Sequence_]) -> Any:
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
        hidden = self.model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        logits = self.model.lm_head(hidden[answers[:, 1:]])
        return torch.nn.functional.cross_entropy(logits, ids[:, 1:][answers[:, 1:]])

    def files(self) -> dict[str, Any]:
        """Return the settings of the tokenizer."""
        return {
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": BEGIN,
                "eos_token": END,
                "pad_token": PAD,
                "model_max_length": ARCHITECTURE["max_position_embeddings"],
                "clean_up_tokenization_spaces": False,
            }
        }
