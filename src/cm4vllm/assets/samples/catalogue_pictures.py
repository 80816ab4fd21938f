"""The rows of the product catalogue (Shopify/product-catalogue), with its pictures as files, in a process of its own:

    python catalogue_pictures.py SOURCE TARGET PACKAGES

SOURCE is the folder of the parquet files, PACKAGES that of Pillow (get,vision-packages). TARGET receives pictures/, and
rows.jsonl with a row a line. A picture is saved by Pillow in its own format, as the reference sends it (mlcommons/
inference multimodal/qwen3-vl, task.py).
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

ROWS_FILE = "rows.jsonl"
#: What the catalogue's rows need to have.
COLUMNS = (
    "product_title",
    "product_description",
    "product_image",
    "potential_product_categories",
    "ground_truth_category",
)


def parquet_files(folder: Path) -> list[Path]:
    """Return the parquet files of the catalogue in the order of its samples: train, then test."""
    return sorted(folder.rglob("*.parquet"), key=lambda path: (not path.name.startswith("train"), path.name))


def rows(source: Path, target: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows, each when its picture has been written."""
    import pyarrow.parquet as parquet

    number = 0
    for file in parquet_files(source):
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=64, columns=list(COLUMNS)):
            for row in batch.to_pylist():
                yield _row(row, target, number)
                number += 1


def _row(row: Mapping[str, Any], target: Path, number: int) -> dict[str, Any]:
    images = import_module("PIL.Image")
    picture = images.open(BytesIO(row["product_image"]["bytes"]))
    data = BytesIO()
    picture.save(data, format=picture.format)
    name = f"pictures/{number:05}.{picture.format.lower()}"
    (target / name).write_bytes(data.getvalue())
    return {
        "title": row["product_title"],
        "description": row["product_description"],
        "categories": row["potential_product_categories"],
        "output": row["ground_truth_category"],
        "picture": name,
        "sha256": hashlib.sha256(data.getvalue()).hexdigest(),
        "format": picture.format,
        "size": list(picture.size),
    }


def main() -> None:
    """Write pictures and rows, as the module says."""
    source, target, packages = map(Path, sys.argv[1:4])
    sys.path.append(str(packages))
    (target / "pictures").mkdir(parents=True, exist_ok=True)
    with (target / ROWS_FILE).open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows(source, target))


if __name__ == "__main__":
    main()
