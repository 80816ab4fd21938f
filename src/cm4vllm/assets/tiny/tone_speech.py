"""Speech of the tiny whisper: each word is a chord of two tones, each clip a few words.

Clips are split into a training and an evaluation set by a hash of their text, so that none can be in both.
"""

import hashlib
import random

import numpy as np
import numpy.typing as npt

RATE_HZ = 16_000
#: Seconds of a clip, all alike: the model's window.
CLIP_S = 3
WORDS = tuple(
    "amber barley bricks clay coal cocoa cork cotton flax glass grain iron lemons linen oats oil paper rice rope salt "
    "silk steel sugar timber north south east west landed late sailed berth".split()
)
_LOW_HZ = (300, 380, 480, 600, 750, 940, 1180, 1480)
_HIGH_HZ = (2000, 2600, 3400, 4400)
_WORD_S, _GAP_S, _EDGE_S = 0.26, 0.08, 0.01
_LEAST_WORDS, _MOST_WORDS = 3, 8


def sentences(count: int, seed: int, *, evaluation: bool) -> list[str]:
    """Return `count` different texts of one of the two sets; the same for the same seed on every machine."""
    rng = random.Random(f"speech:{seed}:{evaluation}")  # noqa: S311 - reproducible, not secret
    texts: dict[str, None] = {}
    while len(texts) < count:
        number = _LEAST_WORDS + int(rng.random() * (_MOST_WORDS - _LEAST_WORDS + 1))
        text = " ".join(WORDS[int(rng.random() * len(WORDS))] for _ in range(number))
        if (hashlib.sha256(text.encode()).digest()[0] % 8 == 0) is evaluation:  # one of eight is evaluated
            texts.setdefault(text)
    return list(texts)


def clip(text: str) -> npt.NDArray[np.int16]:
    """Return a text as 16-bit samples: its chords with a little noise, padded with silence to CLIP_S."""
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))
    sound = rng.normal(0, 0.002, CLIP_S * RATE_HZ)
    at = int(RATE_HZ * rng.uniform(0.0, 0.2))
    for word in text.split():
        chord = _chord(WORDS.index(word)) * rng.uniform(0.6, 1.0)
        sound[at : at + len(chord)] += chord
        at += len(chord) + int(RATE_HZ * _GAP_S)
    return np.round(np.clip(sound, -1, 1) * 32767).astype(np.int16)


def silence() -> npt.NDArray[np.int16]:
    """Return a clip without any sound."""
    return np.zeros(CLIP_S * RATE_HZ, np.int16)


def _chord(word: int) -> npt.NDArray[np.float64]:
    times = np.arange(int(RATE_HZ * _WORD_S)) / RATE_HZ
    low, high = _LOW_HZ[word % len(_LOW_HZ)], _HIGH_HZ[word // len(_LOW_HZ)]
    edge = np.minimum(1, np.minimum(times, times[-1] - times) / _EDGE_S)
    return np.asarray(0.25 * edge * (np.sin(2 * np.pi * low * times) + np.sin(2 * np.pi * high * times)))
