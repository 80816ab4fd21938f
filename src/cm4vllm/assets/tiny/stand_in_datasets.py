"""The datasets of the stand-ins, made from a seed: the harbour log, clips of tones, and products with pictures."""

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from cm4vllm.assets.samples.audio_dataset import write_clips
from cm4vllm.assets.samples.dataset_files import DatasetSettings, Requirements
from cm4vllm.assets.samples.picture_dataset import write_products
from cm4vllm.assets.samples.published_formats import media_record, write_rows
from cm4vllm.assets.tiny import tone_speech
from cm4vllm.assets.tiny.tiny_dataset import EVALUATION_SEED, Example, Split, examples, reference_of, text_of
from cm4vllm.assets.tokenizer_file import read_tokenizer
from cm4vllm.common.files import require_space, sha256_of
from cm4vllm.common.progress import step
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.rules import BenchmarkTerms, Column, Media, accuracy_targets

#: Prompts of the calibration set: the tiny model is neither evaluated on them nor, but by chance, trained on them.
CALIBRATION_SEED = 1717
CALIBRATION_SAMPLES = 128
#: The stand-in of a dataset that performance runs have of their own.
PERFORMANCE_SEED = 6396
_TEXTS_NAME, _TONES_NAME, _PRODUCTS_NAME = "harbour-log", "tones", "products"
_CHUNK = 512
#: The room of a dataset beside the bytes of its samples.
SPACE_BYTES = 128 * 2**20


def stand_in_dataset(
    model: ModelRecord, settings: DatasetSettings, benchmark: BenchmarkTerms, folder: Path
) -> DatasetRecord:
    """Make the dataset of a stand-in, with the tokens of `model`, in `folder`. Raises ModelError, DiskFull."""
    if benchmark.media is Media.AUDIO:
        return _clips(benchmark, folder)
    if benchmark.media is Media.IMAGE:
        return _products(benchmark, Path(model.path), folder)
    tokenizer_json = Path(model.path) / "tokenizer.json"
    require_space(folder, SPACE_BYTES, "the tiny dataset")
    split, seed, count, name = Split.EVALUATION, EVALUATION_SEED, benchmark.samples, _TEXTS_NAME
    columns: Mapping[str, Column] = benchmark.columns
    if settings.calibration:
        # None of the evaluation's prompts: the sets are split by the text itself.
        split, seed, count, name = Split.TRAINING, CALIBRATION_SEED, CALIBRATION_SAMPLES, f"{_TEXTS_NAME}-calibration"
    elif settings.performance:
        seed, count, name = PERFORMANCE_SEED, benchmark.performance_samples, f"{_TEXTS_NAME}-performance"
    elif settings.test:
        required = Requirements.of(settings, benchmark)
        count, columns, name = required.samples or 0, required.columns, f"{_TEXTS_NAME}-{settings.test.lower()}"
    path = folder / f"{name}.json"
    with step(f"making the dataset {name} of {count} samples"):
        rows = list(_tokenised_rows(examples(split, count, seed), columns, tokenizer_json))
        write_rows(path, rows)
    return DatasetRecord(
        name=name,
        path=str(path),
        source="made here from a seed (cm4vllm.assets.tiny.tiny_dataset)",
        sha256=sha256_of(path),
        samples=len(rows),
        max_input_tokens=max(len(row["tok_input"]) for row in rows),
        tokenizer_sha256=sha256_of(tokenizer_json),
        sentences="punkt-untrained",
        recipe={
            "seed": str(seed),
            "split": split,
            **({} if model.is_dummy or settings.performance else _length_factor(rows, benchmark, tokenizer_json)),
        },
    )


def _clips(benchmark: BenchmarkTerms, folder: Path) -> DatasetRecord:
    """Make the clips of the tiny whisper, as many as the benchmark has."""
    require_space(folder, SPACE_BYTES + benchmark.samples * 100_000, "the tiny dataset of clips")
    with step(f"making the dataset {_TONES_NAME} of {benchmark.samples} clips"):
        texts = tone_speech.sentences(benchmark.samples, EVALUATION_SEED, evaluation=True)
        rows = write_clips(folder, texts, lambda text: tone_speech.clip(text).tobytes())
    return media_record(
        rows,
        folder,
        folder / f"{_TONES_NAME}.json",
        source="made here from a seed (cm4vllm.assets.tiny.tone_speech)",
        recipe={"seed": str(EVALUATION_SEED), "split": str(Split.EVALUATION)},
    )


def _products(benchmark: BenchmarkTerms, model: Path, folder: Path) -> DatasetRecord:
    """Make the products of the tiny vision-language model, as many as the benchmark has."""
    require_space(folder, SPACE_BYTES, "the tiny dataset of products")
    with step(f"making the dataset {_PRODUCTS_NAME} of {benchmark.samples} samples"):
        rows = write_products(folder, benchmark.samples, EVALUATION_SEED, model)
    return media_record(
        rows,
        folder,
        folder / f"{_PRODUCTS_NAME}.json",
        source="made here from a seed (cm4vllm.assets.tiny.product_pictures)",
        tokenizer_sha256=sha256_of(model / "tokenizer.json"),
        recipe={"seed": str(EVALUATION_SEED), "split": str(Split.EVALUATION)},
    )


def _length_factor(rows: list[dict[str, Any]], benchmark: BenchmarkTerms, tokenizer_json: Path) -> dict[str, str]:
    """Return how long the references are beside the answers of the benchmark's own model, if the rules have those."""
    targets = accuracy_targets(benchmark.round, benchmark.name, benchmark.scenarios[0])
    published = next((target.reference for target in targets if target.metric == "TOKENS_PER_SAMPLE"), None)
    if published is None:
        return {}
    encodings = read_tokenizer(tokenizer_json).encode_batch([row["output"] for row in rows], add_special_tokens=False)
    mean = sum(len(encoding.ids) for encoding in encodings) / len(rows)
    return {
        "length_factor": f"{mean / published:.3f}: {mean:.1f} tokens a reference, {published:g} an answer of the "
        "benchmark's own model"
    }


def _tokenised_rows(
    made: list[Example], columns: Mapping[str, Column], tokenizer_json: Path
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a stand-in dataset; the values that a column may hold come in turn."""
    tokenizer = read_tokenizer(tokenizer_json)
    kinds = list(product(*(column.values or (text_of(name),) for name, column in columns.items())))
    for start in range(0, len(made), _CHUNK):
        chunk = made[start : start + _CHUNK]
        encodings = tokenizer.encode_batch([example.input for example in chunk])
        for number, (example, encoding) in enumerate(zip(chunk, encodings, strict=True), start):
            kind = kinds[number % len(kinds)]
            yield {
                "input": example.input,
                "tok_input": encoding.ids,
                "output": reference_of(example, kind[0] if kind else ""),
                **dict(zip(columns, kind, strict=True)),
            }
