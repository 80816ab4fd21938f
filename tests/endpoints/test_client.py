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
        names = iter(range(sum(issued.values())))
        files = {
            "performance/result_summary.json": summary | changes.pop("summary", {}),
            "accuracy/accuracy_results.json": {"accuracy_scores": changes.pop("scores", scores)},
            "sample_idx_map.json": {name: {str(next(names)): 0 for _ in range(n)} for name, n in issued.items()},
        }
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content))
        lines = [json.dumps({"timestamp_ns": 1, **event}) + "\n" for event in changes.pop("events", [])]
        (tmp_path / "events.jsonl").write_text("".join(lines))
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


def _failed(number, message):
    error = {"event_type": "error.generic", "sample_uuid": str(number), "data": ["ErrorData", "error", message]}
    return [error, {"event_type": "sample.complete", "sample_uuid": str(number), "data": None}]


def _answered(number, words=("a", " b"), reason="stop"):
    data = ["TextModelOutput", list(words), None]
    stated = {"finish_reason": reason} if reason else {}
    return {"event_type": "sample.complete", "sample_uuid": str(number), "data": data, **stated}


def test_failed_requests_are_counted_and_named_though_the_client_counts_them_as_completed(whole):
    events = [event for number in range(5) for event in _failed(number, "HTTP 500: made to\n fail")]
    events += [*_failed(9, "ConnectionResetError()"), _answered(10), *_failed(330, "HTTP 503: " + "w" * 99)]
    assert whole(summary={"n_samples_failed": 6}, events=events) == [
        "314 of 320 were answered, 6 failed",
        "6 requests of the performance run failed (5 times HTTP 500: made to fail; 1 times ConnectionResetError())",
        f"1 requests of the accuracy run failed (1 times HTTP 503: {'w' * 70}...)",
    ]


def test_an_answer_that_the_server_aborted_is_a_failed_request(whole):
    reasons = ("stop", "length", "abort", "error", "abort")
    (fault,) = whole(events=[_answered(number, reason=reason) for number, reason in enumerate(reasons)])
    assert fault.startswith("3 requests of the performance run failed (2 times the answer was cut off with the finish")


@pytest.mark.parametrize(
    ("events", "failed"),
    [
        ([_answered(1), _answered(2, reason="")], 1),
        ([_answered(1, reason=""), _answered(2, reason="")], 0),
        ([_answered(1, reason=""), _answered(2, (), reason=""), _answered(3, ("", ""), reason="")], 2),
        ([_answered(1), _answered(2, ())], 0),
        ([_answered(1, reason="length"), {"event_type": "sample.complete", "sample_uuid": "2", "data": None}], 1),
    ],
    ids=["cut off", "a server without reasons", "such a server, and no text", "ended at once", "no answer"],
)
def test_answers_that_were_cut_off_are_failed_requests(whole, events, failed):
    words = [
        f"{failed} requests of the performance run failed ({failed} times the answer ended without a finish reason)"
    ]
    assert whole(events=events) == words[: bool(failed)]


def test_a_log_that_cannot_be_read_is_a_fault(whole, tmp_path):
    assert whole(events=[{"event_type": 3}, {}])[0].startswith(f"line 1 of {tmp_path / 'events.jsonl'} is no event")


def test_scores_that_do_not_say_how_many_were_answered_are_a_fault(whole):
    without = {"dataset_name": "a", "dataset_type": "accuracy", "complete": True}
    (fault,) = whole(scores=[without])
    assert fault == "accuracy/accuracy_results.json cannot be read: 'response_counts'"
