"""The files of a run of the reference client, and what they say of a run that ended early."""

import json

import pytest

from cm4vllm.endpoints.client import faults_of
from cm4vllm.endpoints.client_config import ClientRun
from cm4vllm.rules import ClientDataset, seed_set

COMMIT = "ea33275aa"
RUN = ClientRun(
    folder="point-1",
    endpoints=("http://127.0.0.1:1",),
    api="openai",
    model="m",
    dataset=ClientDataset(name="d"),
    samples=320,
    concurrency=4,
    seeds=seed_set("2026-11-C1"),
    max_tokens=1,
    temperature=0,
    top_p=1,
    scored=(ClientDataset(name="a"), ClientDataset(name="b")),
    accuracy_samples=64,
)


@pytest.fixture
def whole(tmp_path):
    """The files of a whole run with accuracy runs of two datasets, by name; a function writes them with changes."""
    summary = {
        "n_samples_issued": 320,
        "n_samples_completed": 320,
        "n_samples_failed": 0,
        "state": "complete",
        "complete": True,
        "git_sha": "ea33275",
    }
    scores = [_score("a", 40), _score("b", 24)]

    def written(**changes):
        issued = changes.pop("issued", {"performance": 320, "a": 40, "b": 24})
        files = {
            "performance/result_summary.json": summary | changes.pop("summary", {}),
            "accuracy/accuracy_results.json": {"accuracy_scores": changes.pop("scores", scores)},
            "sample_idx_map.json": {name: dict.fromkeys(map(str, range(n)), 0) for name, n in issued.items()},
        }
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content))
        return faults_of(tmp_path, RUN, COMMIT)

    return written


def _score(name, issued, missing=0, *, complete=True):
    counts = {"issued": issued, "missing": missing}
    return {"dataset_name": name, "dataset_type": "accuracy", "complete": complete, "response_counts": counts}


def test_a_whole_run_has_no_fault(whole):
    assert whole() == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"summary": {"n_samples_issued": 200, "n_samples_completed": 200}}, "200 of 320 samples were issued"),
        ({"summary": {"n_samples_completed": 319, "n_samples_failed": 1}}, "319 of 320 were answered, 1 failed"),
        ({"summary": {"state": "interrupted"}}, "it calls itself interrupted"),
        ({"summary": {"git_sha": "0000000"}}, f"it was made by the client at 0000000, not at {COMMIT}"),
        ({"issued": {"performance": 320, "a": 40}}, "40 of 64 samples of the accuracy run were issued"),
        ({"issued": {"a": 40, "b": 23}}, "63 of 64 samples of the accuracy run were issued"),
        ({"scores": [_score("a", 40, 3)]}, "3 samples of the accuracy run were not answered"),
        ({"scores": [_score("a", 40, complete=False)]}, "the accuracy run of a is not complete"),
        ({"scores": []}, "accuracy/accuracy_results.json has no accuracy run"),
    ],
)
def test_a_run_that_is_not_whole_says_why(whole, changes, fault):
    assert whole(**changes) == [fault]


def test_scores_that_do_not_say_how_many_were_answered_are_a_fault(whole):
    without = {"dataset_name": "a", "dataset_type": "accuracy", "complete": True}
    (fault,) = whole(scores=[without])
    assert fault == "accuracy/accuracy_results.json cannot be read: 'response_counts'"
