"""The catalogue: every fact has its source, and every name that one entry gives is another entry's."""

import msgspec
import pytest

from cm4vllm.assets.models import ModelSettings, provide
from cm4vllm.campaign.job_checks.capabilities import runnable_benchmarks
from cm4vllm.common.errors import UsageError
from cm4vllm.rules import CatalogueDataset, CatalogueModel, benchmark_terms, catalogue, published_digests, round_names

FACTS = {CatalogueModel: {"note", "sources"}, CatalogueDataset: {"sources"}}


@pytest.mark.parametrize(("name", "entry"), [*catalogue().models.items(), *catalogue().datasets.items()])
def test_every_fact_has_its_source(name, entry):
    given = {field for field, value in msgspec.structs.asdict(entry).items() if value} - FACTS[type(entry)]
    assert given == set(entry.sources)
    assert all(entry.sources.values())


def test_names_within_the_catalogue_are_known():
    known = catalogue()
    for model in known.models.values():
        assert not model.base or model.base in known.models
        assert not model.revision or len(model.revision) == 40
    for dataset in known.datasets.values():
        if dataset.hub:  # published there alone
            assert len(dataset.revision) == 40 and not dataset.mlcommons
            continue
        assert dataset.clips or dataset.tokenizer in known.models
        assert dataset.digest.startswith("md5:")
        assert len(dataset.digest) == 36
    for assets in known.benchmarks.values():
        assert assets.model in known.models
        names = {assets.dataset, assets.calibration, assets.performance_dataset, assets.compliance_dataset} - {""}
        assert names <= set(known.datasets)


def test_each_benchmark_that_can_be_run_has_a_dataset_of_the_samples_of_the_rules():
    cells = {(name, benchmark) for name in round_names() for benchmark in runnable_benchmarks(name)}
    assert {benchmark for _, benchmark in cells} == set(catalogue().benchmarks)
    samples = {cell: catalogue().dataset(catalogue().benchmark(cell[1]).dataset).samples for cell in cells}
    assert samples == {cell: benchmark_terms(*cell).samples for cell in cells}


@pytest.mark.parametrize("name", [name for name, model in catalogue().models.items() if model.mlcommons])
def test_the_files_of_a_hosted_model_are_whole(name):
    files = published_digests(name)
    folder = catalogue().model(name).mlcommons_folder
    assert {f"{folder}/config.json".lstrip("/"), f"{folder}/tokenizer.json".lstrip("/")} <= set(files)
    assert [file for file in files if file.endswith(".safetensors")]
    assert all(digest.startswith("md5:") and len(digest) == 36 for digest in files.values())


def test_an_unknown_name_is_told_with_the_nearest(tmp_path):
    with pytest.raises(UsageError) as caught:
        provide(ModelSettings(source="catalogue", location="llama-2-70b-chat-fp9"), tmp_path)
    assert "llama-2-70b-chat-fp8" in caught.value.remedy
    with pytest.raises(UsageError, match="does not host"):
        provide(ModelSettings(source="mlcommons", location="llama-2-70b-chat-fp8"), tmp_path)


def test_a_quantised_model_has_its_bases_configuration():
    assert catalogue().config("llama-2-70b-chat-fp8")["num_hidden_layers"] == 80
