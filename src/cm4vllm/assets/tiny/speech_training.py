"""Training of a very small whisper on words as tones: a subject of training.py.

Its data is a JSON object: `speech` is the path of tone_speech.py, which makes texts and their clips. Nothing of cm4vllm
is imported, because the environment that has torch is vLLM's, not ours.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

END, START, ENGLISH, TASK, NO_TIMES = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|transcribe|>",
    "<|notimestamps|>",
)
#: Further tokens of Whisper's own tokenizer; vLLM needs some of them.
OTHERS = ("<|translate|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>")
PROMPT = (START, ENGLISH, TASK, NO_TIMES)
VOCABULARY = 384
MEL_BINS = 80
BATCH = 16
CLIPS, STEPS = 2400, 700
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


def make_tokenizer(training: Any, texts: list[str]) -> Any:
    """Train a tokenizer with Whisper's special tokens."""
    special = [END, *PROMPT, *OTHERS]
    tokenizer = training.byte_level_bpe((" " + text for text in texts), VOCABULARY - len(special))
    tokenizer.add_special_tokens(special)
    return tokenizer


def features_of(extractor: Any, clips: list[Any]) -> Any:
    """Return the mel spectrograms of clips of 16-bit samples."""
    import numpy as np

    sound = [clip.astype(np.float32) / 32768 for clip in clips]
    return extractor(sound, sampling_rate=extractor.sampling_rate, return_tensors="pt").input_features


class Subject:
    """A small whisper, the clips that it learns from, and how it is written."""

    warm_up_steps = 50

    def __init__(self, data: dict[str, str], seed: int, training: Any) -> None:
        import torch
        from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

        speech = training.module_at(Path(data["speech"]))
        texts = speech.sentences(CLIPS, seed, evaluation=False)
        self.tokenizer = make_tokenizer(training, texts)
        self.extractor = WhisperFeatureExtractor(
            feature_size=MEL_BINS, chunk_length=speech.CLIP_S, sampling_rate=speech.RATE_HZ
        )
        silent = round(CLIPS * SILENT_SHARE)
        self.features = features_of(self.extractor, [*map(speech.clip, texts), *[speech.silence()] * silent])
        self.start, end = [self.tokenizer.token_to_id(word) for word in PROMPT], self.tokenizer.token_to_id(END)
        rows = [self.start + self.tokenizer.encode(" " + text).ids + [end] for text in texts]
        rows += [[*self.start, end]] * silent
        self.labels = torch.full((len(rows), max(map(len, rows))), -100)
        for row, ids in enumerate(rows):
            self.labels[row, : len(ids)] = torch.tensor(ids)
        rng = random.Random(seed)  # noqa: S311 - reproducible order, not a secret
        self.batches = [rng.sample(range(len(rows)), BATCH) for _ in range(STEPS)]
        self.model = WhisperForConditionalGeneration(
            WhisperConfig(
                **ARCHITECTURE,
                vocab_size=self.tokenizer.get_vocab_size(),
                max_source_positions=speech.CLIP_S * 50,
                bos_token_id=end,
                eos_token_id=end,
                pad_token_id=end,
                decoder_start_token_id=self.start[0],
                dtype="float32",
            )
        )
        for name in ("suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids"):
            setattr(self.model.generation_config, name, None)

    def loss_of(self, batch: list[int]) -> Any:
        """Return the mean cross-entropy over the transcripts' tokens. The prompt is given, never generated."""
        import torch

        chosen = torch.tensor(batch)
        ids = self.labels[chosen]
        ids = ids[:, : int((ids != -100).sum(1).max())]
        inputs = ids.clone()
        inputs[inputs == -100] = self.start[0]
        logits = self.model(
            input_features=self.features[chosen], decoder_input_ids=inputs[:, :-1], use_cache=False
        ).logits
        wanted = ids[:, 1:].clone()
        wanted[:, : len(self.start) - 1] = -100
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100)

    def files(self) -> dict[str, Any]:
        """Return the feature extractor, the settings of the tokenizer, and its words as older readers want them."""
        inner = json.loads(self.tokenizer.to_str())["model"]
        return {
            "preprocessor_config.json": self.extractor.to_json_string(),
            "vocab.json": json.dumps(inner["vocab"]) + "\n",
            "merges.txt": "".join(" ".join(pair) + "\n" for pair in inner["merges"]),
            "tokenizer_config.json": {
                "tokenizer_class": "WhisperTokenizer",
                "processor_class": "WhisperProcessor",
                "bos_token": END,
                "eos_token": END,
                "pad_token": END,
                "unk_token": END,
                "additional_special_tokens": [*PROMPT, *OTHERS],
                "model_max_length": ARCHITECTURE["max_target_positions"],
                "clean_up_tokenization_spaces": False,
            },
        }
