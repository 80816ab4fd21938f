"""Products of the tiny vision-language model: a title, a description and a picture, whose colour no text names.

The category of a product has three levels: its kind, its colour, its name. Kind and name follow from the title, the
colour from the picture alone, so an answer is right only where the picture has arrived. Products are split into a
training and an evaluation set by a hash of their text and colour, so that none can be in both.
"""

import hashlib
import json
import random
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
T = TypeVar("T")

#: Width and height of pictures; they differ, as those of the benchmark's dataset do.
SIZES = ((64, 64), (96, 64), (64, 96), (96, 96), (128, 64), (64, 128), (128, 96), (100, 70), (72, 110), (128, 128))
#: Pictures of a colour and a size.
VARIANTS = 8
COLOURS = {
    "Red": (214, 40, 40),
    "Green": (40, 160, 60),
    "Blue": (40, 70, 210),
    "Yellow": (235, 215, 50),
    "Purple": (130, 40, 160),
    "Orange": (240, 130, 30),
    "Black": (15, 15, 15),
    "Cyan": (50, 200, 210),
}
_KINDS = {
    "Furniture": ("Chair", "Table", "Lamp", "Shelf"),
    "Clothing": ("Shirt", "Scarf", "Coat", "Hat"),
    "Kitchen": ("Kettle", "Bowl", "Jug", "Tray"),
    "Sport": ("Ball", "Racket", "Helmet", "Bottle"),
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}
_BRANDS = ("Aldoria", "Bexley", "Corvani", "Drumlin", "Elstow", "Fenwick", "Galvano", "Hartmoor")
_NEW, _USED = ("Fresh from the factory", "In its box"), ("Owned before", "Worn a little")
#: Pixels of a square of equal colour, how far its colour may be off, and the margin around the product.
_SQUARE, _NOISE, _MARGIN = 8, 18, 6


class Product(NamedTuple):
    """A product: its texts, the categories that are offered, the answer; `colour`, `size`, `variant` of its picture."""

    title: str
    description: str
    categories: list[str]
    category: str
    answer: str
    colour: str
    size: tuple[int, int]
    variant: int


def products(count: int, seed: int, *, evaluation: bool) -> Iterator[Product]:
    """Yield `count` products of one of the two sets; the same for the same seed on every machine."""
    rng = random.Random(f"products:{seed}:{evaluation}")  # noqa: S311 - reproducible, not secret
    made = 0
    while made < count:
        brand, name, colour = _one(rng, _BRANDS), _one(rng, tuple(_KIND_OF)), _one(rng, tuple(COLOURS))
        digest = hashlib.sha256(f"{brand} {name} {colour}".encode()).digest()
        if (digest[0] % 8 == 0) is not evaluation:  # one of eight is evaluated
            continue
        used = rng.random() < 0.5
        category = _category_path(name, colour)
        yield Product(
            title=f"{brand} {name}",
            description=_one(rng, _USED if used else _NEW),
            categories=_category_choices(rng, name, category),
            category=category,
            answer=json.dumps({"category": category, "brand": brand, "is_secondhand": used}),
            colour=colour,
            size=_one(rng, SIZES),
            variant=int(rng.random() * VARIANTS),
        )
        made += 1


def picture(colour: str, size: tuple[int, int], variant: int) -> Pixels:
    """Return a picture, height x width x 3: the product's colour, uneven, in a light frame."""
    width, height = size
    rng = np.random.default_rng([variant, width, height, *COLOURS[colour]])
    squares = rng.integers(-_NOISE, _NOISE + 1, (height // _SQUARE + 1, width // _SQUARE + 1, 1))
    uneven = np.repeat(np.repeat(squares, _SQUARE, 0), _SQUARE, 1)[:height, :width]
    pixels = np.clip(np.array(COLOURS[colour]) + uneven, 0, 255).astype(np.uint8)
    light = int(rng.integers(225, 256))
    for edge in (np.s_[:_MARGIN], np.s_[-_MARGIN:], np.s_[:, :_MARGIN], np.s_[:, -_MARGIN:]):
        pixels[edge] = light
    return pixels


def blank(size: tuple[int, int]) -> Pixels:
    """Return a white picture."""
    return np.full((size[1], size[0], 3), 255, np.uint8)


def png(pixels: Pixels) -> bytes:
    """Return a picture as a PNG file."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def _category_path(name: str, colour: str) -> str:
    return f"{_KIND_OF[name]} > {colour} > {name}"


def _category_choices(rng: random.Random, name: str, category: str) -> list[str]:
    """Return the categories that are offered: the right one, those of other colours, and of other products."""
    offered = {category: None, **dict.fromkeys(_category_path(name, _one(rng, tuple(COLOURS))) for _ in range(4))}
    while len(offered) < 8:
        offered.setdefault(_category_path(_one(rng, tuple(_KIND_OF)), _one(rng, tuple(COLOURS))))
    paths = list(offered)
    rng.shuffle(paths)
    return paths


def _one(rng: random.Random, values: tuple[T, ...]) -> T:
    return values[int(rng.random() * len(values))]
