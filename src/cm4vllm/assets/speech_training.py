"""Train a very small whisper on words as tones; run by path in the environment that has torch.

    python speech_training.py --speech=tone_speech.py --output=FOLDER [--seed=N]

FOLDER receives config.json, generation_config.json, model.safetensors (fp32), the tokenizer and the feature extractor.
One thread and fixed seeds. Nothing of cm4vllm is imported, because that environment is vLLM's, not ours.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any

os.environ.update(
    TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error"
)

END, START, ENGLISH, TASK, NO_TIMES = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|transcribe|>",
    "<|notimestamps|>",
)
#: What Whisper's own tokenizer has beside these; vLLM looks some of them up.
OTHERS = ("<|translate|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>")
PROMPT = (START, ENGLISH, TASK, NO_TIMES)
VOCABULARY = 384
MEL_BINS = 80
BATCH = 16
CLIPS, STEPS = 2400, 700
LEARNING_RATE = 2e-3
REPORT_STEPS = 50
WARM_UP_STEPS = 50
#: Parts of the batches with silence, which has no words.
SILENT_SHARE = 0.03
ARCHITECTURE = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_target_positions": 448,
    "num_mel_bins": MEL_BINS,
    "dropout": 0.0,
}
#: Stands in config.json, so that the model is known for what it is under any name and in any folder.
STAND_IN = {"cm4vllm_stand_in": True}


def make_tokenizer(texts: list[str]) -> Any:
    """Train a byte-level BPE tokenizer with Whisper's special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(PROMPT) - len(OTHERS) - 1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator((" " + text for text in texts), trainer)
    tokenizer.add_special_tokens([END, *PROMPT, *OTHERS])
    return tokenizer


def features_of(extractor: Any, clips: list[Any]) -> Any:
    """Return the mel spectrograms of clips of 16-bit samples."""
    import numpy as np

    sound = [clip.astype(np.float32) / 32768 for clip in clips]
    return extractor(sound, sampling_rate=extractor.sampling_rate, return_tensors="pt").input_features


def train(model: Any, features: Any, labels: Any, start: list[int], seed: int) -> None:
    """Train `model` in place; the learning rate warms up, then falls along a cosine."""
    import torch

    rng = random.Random(seed)  # noqa: S311 - reproducible order, not a secret
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP_STEPS) * (0.51 + 0.49 * math.cos(math.pi * step / STEPS))
    )
    begin, recent = time.monotonic(), 0.0
    model.train()
    for step in range(1, STEPS + 1):
        chosen = torch.tensor(rng.sample(range(len(features)), BATCH))
        ids = labels[chosen]
        ids = ids[:, : int((ids != -100).sum(1).max())]
        inputs = ids.clone()
        inputs[inputs == -100] = start[0]
        logits = model(input_features=features[chosen], decoder_input_ids=inputs[:, :-1], use_cache=False).logits
        # The prompt is given, never generated.
        wanted = ids[:, 1:].clone()
        wanted[:, : len(start) - 1] = -100
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent += loss.item()
        if step % REPORT_STEPS == 0:
            elapsed = time.monotonic() - begin
            print(f"step {step}/{STEPS} loss {recent / REPORT_STEPS:.4f} {elapsed:.0f} s", flush=True)
            recent = 0.0


def save(model: Any, tokenizer: Any, extractor: Any, folder: Path) -> None:
    """Write the model, its tokenizer and its feature extractor as transformers and vLLM read them."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    extractor.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    inner = json.loads(tokenizer.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(inner["vocab"]) + "\n", encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(" ".join(pair) for pair in inner["merges"]) + "\n", encoding="utf-8")
    settings = {
        "tokenizer_class": "WhisperTokenizer",
        "processor_class": "WhisperProcessor",
        "bos_token": END,
        "eos_token": END,
        "pad_token": END,
        "unk_token": END,
        "additional_special_tokens": [*PROMPT, *OTHERS],
        "model_max_length": ARCHITECTURE["max_target_positions"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train and save, as the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    import torch
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    spec = importlib.util.spec_from_file_location("tone_speech", arguments.speech)
    speech: Any = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(speech)  # type: ignore[union-attr]
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    texts = speech.sentences(CLIPS, arguments.seed, evaluation=False)
    tokenizer = make_tokenizer(texts)
    extractor = WhisperFeatureExtractor(feature_size=MEL_BINS, chunk_length=speech.CLIP_S, sampling_rate=speech.RATE_HZ)
    silent = round(CLIPS * SILENT_SHARE)
    features = features_of(extractor, [*map(speech.clip, texts), *[speech.silence()] * silent])
    start, end = [tokenizer.token_to_id(word) for word in PROMPT], tokenizer.token_to_id(END)
    rows = [start + tokenizer.encode(" " + text).ids + [end] for text in texts] + [[*start, end]] * silent
    labels = torch.full((len(rows), max(map(len, rows))), -100)
    for row, ids in enumerate(rows):
        labels[row, : len(ids)] = torch.tensor(ids)
    config = WhisperConfig(
        **ARCHITECTURE,
        vocab_size=tokenizer.get_vocab_size(),
        max_source_positions=speech.CLIP_S * 50,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start[0],
        dtype="float32",
        **STAND_IN,
    )
    model = WhisperForConditionalGeneration(config)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(rows)} clips", flush=True)
    train(model, features, labels, start, arguments.seed)
    model.generation_config.suppress_tokens = None
    model.generation_config.begin_suppress_tokens = None
    model.generation_config.forced_decoder_ids = None
    save(model, tokenizer, extractor, arguments.output)


if __name__ == "__main__":
    main()
