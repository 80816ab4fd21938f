"""A result's place among published ones, and when it has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from cm4vllm.report.place import place
from cm4vllm.results.index import Index, read_index, row_of
from cm4vllm.results.opening import open_results

SYSTEM = "4xH100-SXM-80GB_vLLM_FP8-reference-cpu-pytorch-v2.3.1-default_config"


@pytest.fixture(scope="session")
def published(neural_magic: Path, tmp_path_factory: pytest.TempPathFactory) -> Index:
    return read_index(neural_magic.parents[1], tmp_path_factory.mktemp("kept"))


def test_a_valid_result_has_a_place_per_accelerator(published: Index, neural_magic: Path) -> None:
    (mine,) = open_results(neural_magic / "results" / SYSTEM)
    (result,) = mine.results
    own = row_of(mine, result)
    others = [changed(own, system=f"other {n}", value=(own.value or 0) * (1.2 - n / 20)) for n in range(20)]
    elsewhere = changed(own, accelerator="NVIDIA L40S", value=1.0)
    ignored = [
        changed(own, valid=False),
        changed(own, scenario="Offline"),
        changed(own, unit="samples/s"),
        changed(own, model="another-model"),
    ]
    found = place(mine, result, Index((*others, elsewhere, *ignored), 1, 0))
    assert f": {(own.value or 0) / 4:,.2f} tokens/s per accelerator is place 5 of 22 with any" in found.words
    assert "place 5 of 21 with the NVIDIA H100 80GB HBM3, whose median is" in found.words
    slow = replace(result, performance=None)
    assert "not valid" in place(mine, slow, published).words


def test_a_rehearsal_has_no_place_and_says_why(published: Index, real_runs: Path) -> None:
    (mine,) = open_results(real_runs)
    found = place(mine, mine.results[0], published)
    assert found.words.endswith(": no place among published results, because these runs are no result.")
