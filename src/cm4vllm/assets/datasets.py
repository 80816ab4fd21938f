"""Datasets: the harbour log of the tiny model, articles, a benchmark's own from MLCommons, or a file in its format."""

import hashlib
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cm4vllm.assets.downloads import mlcommons
from cm4vllm.assets.packaged import smollm2
from cm4vllm.assets.packaged.articles import articles_dataset, require_summaries
from cm4vllm.assets.samples.audio_dataset import audio_rows
from cm4vllm.assets.samples.dataset_files import DatasetSettings, Requirements, check_file, checked_rows
from cm4vllm.assets.samples.picture_dataset import catalogue_rows, check_catalogue
from cm4vllm.assets.samples.prompt_tokens import beyond, misread_prompts, with_token_ids
from cm4vllm.assets.samples.published_formats import media_record, write_rows
from cm4vllm.assets.tiny.stand_in_datasets import SPACE_BYTES, stand_in_dataset
from cm4vllm.common.errors import DatasetError, DownloadError, UsageError
from cm4vllm.common.files import digest_of, given_path, require_space, sha256_of
from cm4vllm.common.progress import step, warn
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.assets import OWN_FILE, RETOKENISED, DatasetRecord, ModelRecord
from cm4vllm.rules import BenchmarkTerms, CatalogueDataset, Media, benchmark_terms, catalogue, require_text

#: The name of the record's file.
DATASET_FILE = "dataset.json"


def reads_pictures(settings: DatasetSettings) -> bool:
    """Return True if pictures of the user's own are read, which takes Pillow. Raises UsageError."""
    return settings.source == "path" and benchmark_terms(settings.round, settings.benchmark).media is Media.IMAGE


def provide(settings: DatasetSettings, folder: Path) -> DatasetRecord:
    """Have the dataset and write its record to `folder`. Raises DatasetError, ModelError, DownloadError, DiskFull."""
    benchmark = benchmark_terms(settings.round, settings.benchmark)
    require_text(benchmark)
    _require_calibration_set(settings)
    model = read_record(Path(settings.model_record), ModelRecord) if settings.model_record else None
    source = settings.source or _source_for(model)
    if source == "tiny":
        record = stand_in_dataset(_required(model), settings, benchmark, folder)
    elif source == "articles":
        require_summaries(benchmark, settings.kind)
        record = articles_dataset(_required(model), benchmark, folder)
    elif source == "path":
        path = given_path(settings.location)
        record = _convert(path, f"local file {path.name}", settings, benchmark, model, folder)
        if not _is_published(path, record, settings):
            record = replace(record, recipe={**record.recipe, OWN_FILE: "yes"})
    elif source == "mlcommons":
        record = _mlcommons(settings, benchmark, model, folder)
    else:
        raise UsageError(f"unknown dataset source {source!r}", remedy="known: tiny, articles, path, mlcommons")
    write_record(folder / DATASET_FILE, record)
    return record


def _source_for(model: ModelRecord | None) -> str:
    """Return the source that is used where none was asked for: of the dataset that belongs to a model."""
    if model is None or model.is_stand_in or model.is_dummy:
        return "tiny"
    return "articles" if smollm2.SOURCE in model.source else "mlcommons"


def _required(model: ModelRecord | None) -> ModelRecord:
    if model is None:
        raise DatasetError(
            "a dataset that is made here needs a model's tokenizer",
            remedy="make it: cm run script "
            "--tags=get,ml-model,_tiny; then give its model.json: --env.CM_ML_MODEL_RECORD=<file>",
        )
    return model


def _require_calibration_set(settings: DatasetSettings) -> None:
    if settings.calibration and not catalogue().benchmark(settings.benchmark).calibration:
        raise DatasetError(
            f"{settings.benchmark} has no calibration set",
            cause="none is published for it",
            remedy="quantise by a scheme that needs none: --quantize=fp8-dynamic of run-mlperf,inference",
        )


def _mlcommons(
    settings: DatasetSettings, benchmark: BenchmarkTerms, model: ModelRecord | None, folder: Path
) -> DatasetRecord:
    """Take the benchmark's own dataset, or its calibration set, from MLCommons' storage."""
    name, known = _catalogue_dataset(settings)
    try:
        manifest = mlcommons.read_manifest(known.mlcommons)
        wanted = {known.file: known.digest}
        if known.clips:
            wanted |= {clip: "" for clip in manifest.digests if clip.startswith(known.clips)}
        files = mlcommons.download(manifest, mlcommons.downloads_folder(manifest.name), wanted)
    except DownloadError as error:
        own = Path(known.file).name
        error.what = f"the dataset {name} could not be fetched: {error.what}"
        given = (
            f"or give the file {known.file} ({known.digest}) of {known.mlcommons}: --{settings.kind}_path={own} of "
            f"run-mlperf,inference,\nor _path./folder/{own} among the tags of get,dataset"
        )
        if settings.kind == "dataset":
            given += "\nor rehearse on the tiny model's dataset: --dataset=tiny of run-mlperf,inference"
        error.remedy = "\n".join(filter(None, [error.remedy, given]))
        raise
    record = _convert(files[0], f"MLCommons, {manifest.base}/{known.file}", settings, benchmark, model, folder)
    return replace(record, name=name)


def _is_published(path: Path, record: DatasetRecord, settings: DatasetSettings) -> bool:
    """Return True if a given file is that which is published for the benchmark: by its digest, else by its samples."""
    name = getattr(catalogue().benchmark(settings.benchmark), settings.kind)
    known = catalogue().dataset(name) if name else None
    if known is not None and known.digest:
        return digest_of(path, known.digest.partition(":")[0]) == known.digest
    return known is not None and record.samples == known.samples


def _catalogue_dataset(settings: DatasetSettings) -> tuple[str, CatalogueDataset]:
    """Return the name of the dataset that the settings ask for, and what the catalogue knows of it.

    Raises DatasetError where none is published, or MLCommons' storage is not known to hold it.
    """
    name: str = getattr(catalogue().benchmark(settings.benchmark), settings.kind)
    known = catalogue().dataset(name)
    if not known.mlcommons:
        raise DatasetError(
            f"the dataset {name} cannot be downloaded here",
            cause="no manifest of MLCommons' storage is known for it",
            remedy=f"download it from https://huggingface.co/datasets/{known.hub} at {known.revision}, and give its "
            "folder of parquet files by --dataset_path of run-mlperf,inference,",
        )
    return name, known


def _convert(
    path: Path,
    source: str,
    settings: DatasetSettings,
    benchmark: BenchmarkTerms,
    model: ModelRecord | None,
    folder: Path,
) -> DatasetRecord:
    """Read a file in a published format, check that it is what is required, and write it in ours."""
    ours = folder / f"{path.name.partition('.')[0]}.samples.json"
    required = Requirements.of(settings, benchmark)
    if required.clips_s is not None:
        rows = audio_rows(path, required.samples, required.clips_s)
        return media_record(rows, path.parent, ours, source=source, source_sha256=sha256_of(path), recipe={})
    if required.pictures:
        return _catalogue(path, source, required, settings, model, folder)
    rows, recipe = _for_model(checked_rows(path, required), model, path.name)
    require_space(folder, 2 * path.stat().st_size + SPACE_BYTES, f"the dataset {path.name}")
    write_rows(ours, rows)
    return DatasetRecord(
        name=path.name.removesuffix(".gz").rpartition(".")[0],
        path=str(ours),
        source=source,
        sha256=sha256_of(ours),
        source_sha256=sha256_of(path),
        samples=len(rows),
        max_input_tokens=max(len(row["tok_input"]) for row in rows),
        recipe=recipe,
    )


def _for_model(
    rows: list[dict[str, Any]], model: ModelRecord | None, name: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the rows of a dataset with prompts that the model reads as their text is, and the note of its record.

    Random weights read nothing, and the lengths of prompts are those of the benchmark's own model: ids are kept.
    Raises DatasetError for prompts of another model that cannot be tokenised again.
    """
    if model is None:
        return rows, {}
    folder = Path(model.path)
    why = (beyond if model.is_dummy else misread_prompts)(rows, folder)
    if not why:
        return rows, {}
    if model.is_dummy:
        raise DatasetError(
            f"{name} was tokenised for another model", cause=why, remedy="give the dataset that belongs to the model"
        )
    words = f"its prompts were tokenised for another model ({why}); they were tokenised again for {model.name}"
    warn(f"{name}: {words}")
    return with_token_ids(rows, folder, name, why), {RETOKENISED: words}


def _catalogue(
    path: Path, source: str, required: Requirements, settings: DatasetSettings, model: ModelRecord | None, folder: Path
) -> DatasetRecord:
    """Take the product catalogue from a folder of parquet files, with its prompts as `model` counts them."""
    if model is None:
        raise DatasetError(
            "the tokens of prompts with pictures cannot be counted",
            cause="the model whose chat template and picture processor count them is not given",
            remedy="give the record that get,ml-model gives: --model_record of get,dataset",
        )
    files = check_catalogue(path, required.samples)
    require_space(folder, 2 * sum(file.stat().st_size for file in files) + SPACE_BYTES, f"the dataset {path.name}")
    with step(f"reading the products of {path.name} with their pictures"):
        rows = catalogue_rows(path, folder, Path(model.path), settings.vision_packages)
    ours = folder / f"{path.name}.samples.json"
    return media_record(
        rows,
        folder,
        ours,
        source=source,
        source_sha256=hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest(),
        tokenizer_sha256=sha256_of(Path(model.path) / "tokenizer.json"),
        recipe={},
    )


def check(settings: DatasetSettings) -> None:
    """Raise what `provide` raises for these settings before it asks any network. Raises DatasetError, UsageError."""
    benchmark = benchmark_terms(settings.round, settings.benchmark)
    require_text(benchmark)
    _require_calibration_set(settings)
    if settings.source == "path":
        check_file(given_path(settings.location), Requirements.of(settings, benchmark))
    elif settings.source == "mlcommons":
        _catalogue_dataset(settings)
    elif settings.source == "articles":
        require_summaries(benchmark, settings.kind)
