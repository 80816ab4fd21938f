"""Datasets of products with pictures: the stand-in's, or the benchmark's product catalogue.

A row has title, description and offered categories of a product, the right category as `output`, the picture's path
below the dataset's folder with its digest, format and size, and the tokens of its prompt for each round's prompt, by
the prompt's name: the picture's tokens among them, as a server counts them.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cm4vllm.assets.samples import catalogue_pictures
from cm4vllm.assets.samples.prompt_tokens import ChatTokens
from cm4vllm.assets.samples.published_formats import require_samples
from cm4vllm.assets.tiny import product_pictures
from cm4vllm.common.errors import DatasetError, InstallError
from cm4vllm.common.files import writable_folder
from cm4vllm.rules import chat_prompts

_AGAIN = "give the folder of the parquet files of Shopify/product-catalogue, its splits train and test"


def write_products(folder: Path, count: int, seed: int, model: Path) -> list[dict[str, Any]]:
    """Write the pictures of the stand-in's products into `folder`/pictures, and return the rows.

    Raises ModelError for a `model` that reads no pictures.
    """
    writable_folder(folder / "pictures")
    return with_token_counts(list(_rows(folder, count, seed)), model)


def _rows(folder: Path, count: int, seed: int) -> Iterator[dict[str, Any]]:
    digests: dict[str, str] = {}
    for product in product_pictures.products(count, seed, evaluation=True):
        width, height = product.size
        name = f"pictures/{product.colour.lower()}-{width}x{height}-{product.variant}.png"
        if name not in digests:
            data = product_pictures.png(product_pictures.picture(product.colour, product.size, product.variant))
            (folder / name).write_bytes(data)
            digests[name] = hashlib.sha256(data).hexdigest()
        yield {
            "title": product.title,
            "description": product.description,
            "categories": product.categories,
            "output": product.category,
            "picture": name,
            "sha256": digests[name],
            "format": "PNG",
            "size": list(product.size),
        }


def check_catalogue(folder: Path, samples: int | None) -> list[Path]:
    """Return the parquet files of the product catalogue in `folder`, with this number of samples (None: any).

    Raises DatasetError for a folder without them, another number of samples, or a missing column.
    """
    import pyarrow.parquet as parquet

    files = catalogue_pictures.parquet_files(folder) if folder.is_dir() else []
    if not files:
        raise DatasetError(
            f"{folder} is not the product catalogue", cause="it is no folder with parquet files", remedy=_AGAIN
        )
    count = 0
    for path in files:
        try:
            metadata, columns = parquet.read_metadata(path), parquet.read_schema(path).names
        except (OSError, ValueError) as error:
            raise DatasetError(f"{path} is not a parquet file", cause=str(error)[:300], remedy=_AGAIN) from error
        if missing := [name for name in catalogue_pictures.COLUMNS if name not in columns]:
            raise DatasetError(f"{path} lacks {', '.join(missing)}", remedy=_AGAIN)
        count += metadata.num_rows
    require_samples(folder, count, samples)
    return files


def catalogue_rows(source: Path, folder: Path, model: Path, packages: str) -> list[dict[str, Any]]:
    """Write the pictures of the product catalogue in `source` into `folder`/pictures, and return the rows.

    `source` is one that check_catalogue takes, `packages` the folder of Pillow. Raises DatasetError, InstallError;
    ModelError for a model without pictures.
    """
    if not packages:
        raise InstallError(
            "the pictures of the product catalogue cannot be read",
            cause="Pillow is not given",
            remedy="cm run script --tags=get,vision-packages",
        )
    writable_folder(folder)
    words = [sys.executable, "-P", catalogue_pictures.__file__, str(source), str(folder), packages]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DatasetError(
            f"the product catalogue in {source} cannot be read",
            cause="\n".join(done.stderr.strip().splitlines()[-3:]),
            remedy=_AGAIN,
        )
    lines = folder / catalogue_pictures.ROWS_FILE
    with lines.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    lines.unlink()
    return with_token_counts(rows, model)


def with_token_counts(rows: Sequence[dict[str, Any]], model: Path) -> list[dict[str, Any]]:
    """Return rows with the tokens of their prompts, as `model` counts them. Raises ModelError."""
    tokens = ChatTokens(model)
    counts: dict[str, Iterator[int]] = {}
    for prompt in chat_prompts():
        asked = [(*prompt.messages(row), (row["size"][0], row["size"][1])) for row in rows]
        counts[prompt.name] = tokens.count(asked)
    return [
        {**row, "prompt_tokens": dict(zip(counts, each, strict=True))}
        for row, each in zip(rows, zip(*counts.values(), strict=True), strict=True)
    ]
