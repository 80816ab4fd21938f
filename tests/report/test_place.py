"""A result's place among published ones, and when it has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from cm4vllm.report.place import _standings, place
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
        changed(own, system="a", valid=False),
        changed(own, system="b", scenario="Offline"),
        changed(own, system="c", unit="samples/s"),
        changed(own, system="d", model="another-model"),
        changed(own, system="e", division="closed"),
        changed(own, system="f", division="closed"),
        changed(own, system="g", accelerators=0),
        own,
    ]
    found = place(mine, result, Index((*others, elsewhere, *ignored), 1, 0))
    assert f": {(own.value or 0) / 4:,.2f} tokens/s per accelerator is place 5 of 22 with any" in found.words
    assert "place 5 of 21 with the NVIDIA H100 80GB HBM3, whose median is" in found.words
    assert {one.why: one.count for one in found.left_out} == {
        "not valid": 1,
        "its result is in samples/s, not in tokens/s": 1,
        "another model, another-model": 1,
        "closed division": 2,
        "its system states no accelerator": 1,
        "it is this result": 1,
    }
    slow = replace(result, performance=None)
    assert "not valid" in place(mine, slow, published).words


def test_each_round_has_its_place_and_watts_count_where_both_state_them(neural_magic: Path) -> None:
    (mine,) = open_results(neural_magic / "results" / SYSTEM)
    (result,) = mine.results
    own = row_of(mine, result)
    rows = (
        changed(
            own,
            system="new",
            round="v5.1",
            value=2 * (own.value or 0),
            power_w=900.0,
            power_file="new/spl.txt",
            power_field="Watts, mean of the run",
            codes={"error ANY": 1},
        ),
        changed(own, system="old", round="v5.0", value=0.5 * (own.value or 0), accelerator="NVIDIA L40S"),
    )
    old, new = place(mine, result, Index(rows, 1, 0)).standings
    assert (old.round, old.per, old.among_all[:2], old.among_like, old.flagged) == (
        "v5.0",
        "accelerator",
        (1, 2),
        None,
        0,
    )
    assert (new.round, new.per, new.among_all[:2], new.flagged, new.best_of) == (
        "v5.1",
        "accelerator",
        (2, 2),
        1,
        "NeuralMagic, new",
    )
    metered = [one for one in _standings(changed(own, power_w=300.0), rows) if one.per == "W"]
    assert [(one.round, one.value, one.among_all[:2]) for one in metered] == [("v5.1", (own.value or 0) / 300, (1, 2))]
    assert metered[0].best_source == (
        f"{own.file}: {own.field}, divided by 900 W (new/spl.txt: Watts, mean of the run)"
    )
    assert metered[0].source.endswith(", divided by 300 W")  # an index of before names no meter


def test_a_rehearsal_has_no_place_and_says_why(published: Index, real_runs: Path) -> None:
    (mine,) = open_results(real_runs)
    found = place(mine, mine.results[0], published)
    assert found.words.endswith(": no place among published results, because these runs are no result.")
