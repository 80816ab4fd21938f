"""A result's place among published ones, and when it has none."""

import shutil
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from cm4vllm.results.judgement.published_rank import _standings, place
from cm4vllm.results.result_index import Index, read_index, read_indexes, row_of
from cm4vllm.results.run_folders import open_results

pytestmark = pytest.mark.xdist_group("runs-report")  # one process makes the runs of these files

SYSTEM = "4xH100-SXM-80GB_vLLM_FP8-reference-cpu-pytorch-v2.3.1-default_config"


@pytest.fixture(scope="session")
def published(neural_magic, tmp_path_factory):
    return read_index(neural_magic.parents[1], tmp_path_factory.mktemp("kept"))


def test_a_valid_result_has_a_place_per_accelerator(published, neural_magic):
    (mine,) = open_results(neural_magic / "results" / SYSTEM)
    (result,) = mine.results
    own = row_of(mine, result)
    others = [changed(own, folder=f"other {n}", value=(own.value or 0) * (1.2 - n / 20)) for n in range(20)]
    elsewhere = changed(own, folder="elsewhere", accelerator="NVIDIA L40S", value=1.0)
    ignored = [
        changed(own, folder="a", valid=False),
        changed(own, folder="b", scenario="Offline"),
        changed(own, folder="c", unit="samples/s"),
        changed(own, folder="d", model="another-model"),
        changed(own, folder="e", division="closed"),
        changed(own, folder="f", division="closed"),
        changed(own, folder="g", accelerators=0),
        own,
    ]
    rank = place(mine, result, Index((*others, elsewhere, *ignored), 1, 0))
    assert f": {(own.value or 0) / 4:,.2f} tokens/s per accelerator is place 5 of 22 with any" in rank.words
    assert "place 5 of 21 with the NVIDIA H100 80GB HBM3 (shared with 1 other), whose median is" in rank.words
    assert {reason.why: reason.count for reason in rank.left_out} == {
        "not valid": 1,
        "its result is in samples/s, not in tokens/s": 1,
        "another model, another-model": 1,
        "closed division": 2,
        "its system states no accelerator": 1,
        "it is this result": 1,
    }
    slow = replace(result, performance=None)
    assert "not valid" in place(mine, slow, published).words


def test_each_round_has_its_place_and_watts_count_where_both_state_them(neural_magic):
    (mine,) = open_results(neural_magic / "results" / SYSTEM)
    (result,) = mine.results
    own = row_of(mine, result)
    rows = (
        changed(
            own,
            folder="new",
            system="new",
            round="v5.1",
            value=2 * (own.value or 0),
            power_w=900.0,
            power_file="new/spl.txt",
            power_field="Watts, mean of the run",
            codes={"error ANY": 1},
        ),
        changed(own, folder="old", system="old", round="v5.0", value=0.5 * (own.value or 0), accelerator="NVIDIA L40S"),
    )
    old, new = place(mine, result, Index(rows, 1, 0)).standings
    assert (old.round, old.per, old.among_all[:2], old.flagged) == ("v5.0", "accelerator", (1, 2), 0)
    assert old.among_like is None
    assert (new.round, new.per, new.among_all[:2], new.flagged) == ("v5.1", "accelerator", (2, 2), 1)
    assert new.best_of == "NeuralMagic, new"
    (metered,) = [standing for standing in _standings(changed(own, power_w=300.0), rows) if standing.per == "W"]
    assert (metered.round, metered.value, metered.among_all[:2]) == ("v5.1", (own.value or 0) / 300, (1, 2))
    assert metered.best_source == f"{own.file}: {own.field}, divided by 900 W (new/spl.txt: Watts, mean of the run)"
    assert metered.source.endswith(", divided by 300 W")  # an index of before names no meter


def test_a_rehearsal_has_no_place_and_says_why(published, real_runs):
    (mine,) = open_results(real_runs)
    rank = place(mine, mine.results[0], published)
    assert rank.words.endswith(": no place among published results, because these runs are no result.")


def test_every_result_of_the_kind_counts_whatever_its_system_is_called(neural_magic, tmp_path):
    home = tmp_path / "round" / "open" / neural_magic.name
    shutil.copytree(neural_magic, home, copy_function=shutil.copyfile)
    for path in [home, *home.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    for name in ("copy", "another copy"):  # the same figures, under the same system_name
        for part in ("results", "measurements", "compliance"):
            if (home / part / SYSTEM).is_dir():
                shutil.copytree(home / part / SYSTEM, home / part / name)
        shutil.copyfile(home / "systems" / f"{SYSTEM}.json", home / "systems" / f"{name}.json")
    index = read_index(tmp_path / "round", tmp_path / "kept")
    assert len(index.rows) == len(read_indexes([tmp_path / "round"], tmp_path / "kept").rows)
    same = [row for row in index.rows if row.folder in (SYSTEM, "copy", "another copy")]
    assert (
        len(same) == 3 * len([row for row in same if row.folder == SYSTEM]) and len({row.system for row in same}) == 1
    )
    (mine,) = open_results(home / "results" / SYSTEM)
    (standing,) = place(mine, mine.results[0], index).standings
    assert standing.among_like is not None and standing.among_like.shared == 2
    assert "(shared with 2 others)" in place(mine, mine.results[0], index).words
    kind = [row for row in index.rows if (row.benchmark, row.scenario) == (same[0].benchmark, same[0].scenario)]
    counted = [row for row in kind if row.valid and row.model == same[0].model and row.per_accelerator is not None]
    assert standing.among_all.of == len(counted)  # the result itself is one of them
