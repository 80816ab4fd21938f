"""Trees in the layout of each round, held against the official checkers that take the round."""

import dataclasses

import pytest

from cm4vllm.common.errors import CheckerFailed
from cm4vllm.results.judgement.expected_findings import unexpected_findings
from cm4vllm.submission.checker.official_checker import check_submission
from cm4vllm.submission.log_truncation import truncate_tree
from cm4vllm.submission.tree import build_tree, system_folder

#: Each round with a benchmark that it has, and where its tree keeps the program and a scenario's settings.
ROUNDS = {
    "v5.0": ("llama2-70b-99.9", "code", "measurements"),
    "v5.1": ("llama3.1-8b", "code", "measurements"),
    "v6.0": ("llama3.1-8b", "src", "results"),
}


@pytest.mark.parametrize("round_name", ROUNDS)
def test_a_tree_of_two_systems_has_the_layout_of_the_round_and_only_its_shortness_against_it(
    lay_out, inference, tmp_path, round_name, rewrite
):
    benchmark, program, settings = ROUNDS[round_name]
    asked = lay_out("one", round_name=round_name, benchmark=benchmark)
    other = lay_out("two", round_name=round_name, benchmark=benchmark)
    runs = other.out / "runs" / system_folder(other.out)
    rewrite(other.out / "system" / "system.json", lambda system: system.update(system_name="other-system"))
    runs.rename(runs.with_name("other-system"))
    tree = build_tree(asked, dataclasses.replace(other, page=""), tree=tmp_path / "submission")
    truncate_tree(tree)
    home = tree / "open" / "Nobody"
    for system in (system_folder(asked.out), "other-system"):
        for scenario in ("Offline", "Server"):
            assert (home / settings / system / asked.model / scenario / "user.conf").is_file()
            assert (home / "results" / system / asked.model / scenario / "performance/run_1").is_dir()
    assert (home / program / asked.model / "README.md").is_file() and (home / program / "cm4vllm/cmr.yaml").is_file()
    record = check_submission(tree, "Nobody", round_name, inference)
    assert unexpected_findings(record) == [] and not any(run.crashed for run in record.runs)
    (home / settings / "other-system" / asked.model / "Offline" / "user.conf").unlink()
    with pytest.raises(CheckerFailed, match="does not explain"):
        check_submission(tree, "Nobody", round_name, inference)
