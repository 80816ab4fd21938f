"""A rehearsal of an earlier version, read by this one: the same findings, figures, and the same job again.

`recorded/results-b4ec8435.tar.gz` is the results folder of a rehearsal that commit b4ec8435 (23 November 2026) made on
two cores: runs, ledger, capsule, and its tree without the program. The JSON file beside it is what b4ec8435 itself said
of that folder.
"""

import json
import subprocess
from pathlib import Path

import pytest

from cm4vllm.common.errors import SubmissionError

RECORDED = Path(__file__).parents[1] / "recorded" / "results-b4ec8435.tar.gz"
SAID = json.loads(RECORDED.with_suffix("").with_suffix(".json").read_text())


@pytest.fixture(scope="module")
def ask(start_cm):
    """Return a function that gives a recipe's exit code and JSON, asked in the folder that holds `results/`."""
    cm = start_cm()
    (cm.cwd / "results").mkdir()
    subprocess.run(["tar", "-xzf", RECORDED, "-C", "results"], cwd=cm.cwd, check=True)

    def answer(*words):
        done = cm("run", "script", *words, "--out=json", "--quiet")
        return done.code, json.JSONDecoder().raw_decode(done.output[done.output.index("{\n") :])[0]

    return answer


def test_its_tree_has_the_findings_that_it_had(ask):
    code, answer = ask("--tags=check,mlperf,results", "--input=results/submission")
    assert code == SubmissionError.exit_code
    findings = answer["new_state"]["findings"]
    codes = sorted([finding[key] for key in ("severity", "code", "file")] for finding in findings)
    assert codes == SAID["findings"]


def test_its_runs_and_its_capsule_give_its_figures(ask):
    """Intervals are compared to 4 digits, which the table of Student's t had in that version."""
    code, answer = ask("--tags=compare,mlperf,results", "--input=results/rerun.yaml,results")
    results = answer["new_state"]["comparison"]["results"]
    assert (code, [result["scenario"] for result in results]) == (0, list(SAID["figures"]))
    for result in results:
        said = SAID["figures"][result["scenario"]]
        assert [figure["name"] for figure in result["figures"]] == list(said)
        for figure in result["figures"]:
            value, interval = said[figure["name"]]
            of_capsule, of_runs = figure["values"]
            assert of_runs["value"] == of_capsule["value"] == pytest.approx(value, rel=1e-8)
            assert of_runs["interval"] == (interval and pytest.approx(interval, rel=1e-4))


def test_its_capsule_is_verified_and_replayed(ask):
    assert ask("--tags=verify,mlperf", "--capsule=results/rerun.yaml", "--other=results")[0] == 0
    code, answer = ask("--tags=replay,mlperf", "--capsule=results/rerun.yaml", "--plan")
    (job,) = [step for step in answer["plan"]["children"] if step["tags"].startswith("run-mlperf")]
    assert code == 0
    assert [step["tags"] for step in job["children"] if "python" not in step["tags"]] == SAID["replayed"]
