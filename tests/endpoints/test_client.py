"""The files of a run of the reference client, and what they say of a run that ended early."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from made_points import client_run

from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.records import read_record
from cm4vllm.endpoints.client import ClientInstallation, faults_of, run_client
from cm4vllm.endpoints.client_config import TOKENIZER, client_document
from cm4vllm.endpoints.client_folder import client_environment, datasets_of_ours, prepare_folder
from cm4vllm.endpoints.point import require_dataset_file
from cm4vllm.records.assets import STAND_IN_SOURCE, DatasetRecord, ModelRecord
from cm4vllm.rules import ClientDataset, endpoints_rules
from gateway import Gateway
from text_server import MODEL, TextServer, save_model
from traps import imported, set_traps

COMMIT = "ea33275aa"
RUN = client_run(scored=(ClientDataset(name="a"), ClientDataset(name="b")), accuracy_samples=64)


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


# --- the configuration of the reference client, from the data of each benchmark


CONFIG_RUN = [entry.name for entry in endpoints_rules().benchmarks if not entry.refused]


def document(name, *, scored=True, key=""):
    benchmark = endpoints_rules().benchmark(name)
    return client_document(
        client_run(
            dataset=benchmark.performance,
            parameters=benchmark.parameters,
            scored=benchmark.scored if scored else (),
            key_variable=key,
        )
    )


@pytest.mark.parametrize("name", CONFIG_RUN)
def test_each_benchmark_that_is_run_has_its_dataset_and_its_scorers(name):
    made = document(name)
    performance, *accuracy = made["datasets"]
    assert performance["type"] == "performance" and performance["name"]
    assert accuracy and all(entry["type"] == "accuracy" for entry in accuracy)
    assert all(entry["accuracy_config"]["eval_method"] for entry in accuracy)
    assert len(document(name, scored=False)["datasets"]) == 1


def test_gpt_oss_is_scored_on_three_datasets_with_the_repeats_of_the_clients_example():
    made = document("gpt-oss-120b")
    repeats = {entry["name"]: entry["accuracy_config"]["num_repeats"] for entry in made["datasets"][1:]}
    assert repeats == {"livecodebench::gptoss": 3, "aime25::gptoss": 8, "gpqa::gptoss": 5}
    assert "ground_truth" not in made["datasets"][1]["accuracy_config"]
    assert made["datasets"][0]["path"] == "perf_eval_ref.parquet"
    assert (made["model_params"]["top_k"], made["model_params"]["skip_special_tokens"]) == (-1, False)


def test_all_paths_are_relative_and_a_key_is_named_by_its_variable():
    for name in CONFIG_RUN:
        made = document(name, key="SERVER_KEY")
        assert not any(str(entry.get("path", "")).startswith("/") for entry in made["datasets"])
        assert made["endpoint_config"]["api_key"] == "${SERVER_KEY}"
        assert "seed" not in made["model_params"]  # that of the set is greater than what vLLM takes


@pytest.mark.parametrize("name", ["gpt-oss-120b", "deepseek-r1"])
def test_a_dataset_that_the_client_cannot_fetch_is_asked_for(name):
    with pytest.raises(UsageError, match=f"the dataset of {name} is needed as a file") as refused:
        require_dataset_file(endpoints_rules().benchmark(name), "")
    assert "--dataset_path=FILE" in str(refused.value)
    require_dataset_file(endpoints_rules().benchmark("llama3_1-8b"), "")


# --- the folder of the reference client gets the model's small files, and no file of another program


@pytest.fixture
def model(tmp_path):
    """Make a model whose files are links: to those of another model, and to those of other programs."""
    home, other, folder = (tmp_path / name for name in ("home", "other", "model"))
    for place in (home, other, folder):
        place.mkdir()
    for name in ("kaggle.json", "secrets.txt", "tokens.jinja"):
        (home / name).write_text("secret")
        (folder / name).symlink_to(home / name)
    for name, text in {"config.json": '{"model_type": "llama"}', "tokenizer.json": "{}", "merges.txt": ""}.items():
        (other / name).write_text(text)
        (folder / name).symlink_to(other / name)
    (folder / "tokenizer_config.json").write_text("{}")
    return ModelRecord(name="m", path=str(folder), source="made", sha256="")


def test_links_to_files_of_other_programs_are_named_and_not_copied(model, tmp_path, capsys):
    prepare_folder(tmp_path / "client", model, None)
    copied = {path.name for path in (tmp_path / "client" / TOKENIZER).iterdir()}
    assert copied == {"config.json", "tokenizer.json", "merges.txt", "tokenizer_config.json"}
    said = capsys.readouterr().out
    for name in ("kaggle.json", "secrets.txt", "tokens.jinja"):
        assert f"{model.path}/{name} -> {tmp_path}/home/{name}" in said
    assert not any(path.is_symlink() for path in (tmp_path / "client").rglob("*"))


def test_a_docker_configuration_is_no_model_s(model, tmp_path, capsys):
    (tmp_path / "other" / "config.json").write_text('{"auths": {"registry": {"auth": "c2VjcmV0"}}}')
    prepare_folder(tmp_path / "client", model, None)
    assert not (tmp_path / "client" / TOKENIZER / "config.json").exists()
    assert "config.json -> " in capsys.readouterr().out


# --- a server's key in a run of the reference client: sent with each request, and written nowhere


ROOT, JOB = Path(__file__).parents[2], Path(__file__).with_name("small_curve.py")
KEY, VARIABLE, SAMPLES = "sk-made-up-for-this-test-7261934", "SMALL_SERVER_KEY", 8


def test_a_job_with_a_key_writes_it_nowhere(tmp_path):
    stated = tmp_path / "submitter.yaml"
    stated.write_text("node: {driver: none, filesystem: ext4, host_processor_vcpu_count: 2}\n")
    with (
        TextServer(takes_ids=True, takes_text=False, refuses=(), done=True, lists_models=True) as server,
        Gateway(server.endpoint, key=KEY) as gateway,
    ):
        words = {
            "CM_VLLM_SERVER_MAX_MODEL_LEN": "2048",
            "CM_MLPERF_INFERENCE_API_SERVER": gateway.endpoint,
            "CM_MLPERF_INFERENCE_API_KEY_ENV": VARIABLE,
            "CM_MLPERF_ENDPOINTS_SUBMITTER_FILE": str(stated),
        }
        done = subprocess.run(
            [sys.executable, JOB, tmp_path / "job", "SECONDS=0.1", *(f"{key}={value}" for key, value in words.items())],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, VARIABLE: KEY, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert sum("/v1/completions" in head and KEY in head for head in gateway.heads) > 7 * 5
    folder = tmp_path / "job"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(list(folder.rglob("point.json"))) > 7 and list(folder.rglob("config.yaml"))
    assert [str(path) for path in files if KEY.encode() in path.read_bytes()] == []
    assert KEY not in done.stdout + done.stderr


@pytest.mark.long
def test_the_key_of_a_server_is_in_no_file_and_no_output(tmp_path, reference_client, monkeypatch, capfd):
    monkeypatch.setenv(VARIABLE, KEY)
    model, rows, draw = tmp_path / "model", tmp_path / "rows.json", random.Random(0)
    save_model(model)
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    prompts = [[1 + draw.randrange(700) for _ in range(10)] for _ in range(SAMPLES)]
    rows.write_text(json.dumps([{"input": "a", "tok_input": prompt, "output": "a b"} for prompt in prompts]))
    dataset = DatasetRecord(
        name="small",
        path=str(rows),
        sha256=sha256_of(rows),
        source="made here",
        samples=SAMPLES,
        max_input_tokens=10,
        sentences="punkt-untrained",
    )
    folder = tmp_path / "run"
    made = ModelRecord(name=MODEL, path=str(model), source=f"made for a test; {STAND_IN_SOURCE}", sha256="0")
    prepare_folder(folder, made, dataset)
    measured, scored = datasets_of_ours(dataset)
    with (
        TextServer(takes_ids=True, takes_text=False, refuses=(), done=True) as server,
        Gateway(server.endpoint, key=KEY) as gateway,
    ):
        served = {"endpoints": (gateway.endpoint,), "api": "openai_completions", "model": MODEL, "max_tokens": 8}
        # The seconds of the rules do not lengthen a run whose samples are given.
        given = {"samples": SAMPLES, "accuracy_samples": SAMPLES, "key_variable": VARIABLE, "workers": 1}
        given |= {"min_duration_ms": 600_000}
        run = client_run(**served, **given, dataset=measured, concurrency=2, scored=(scored,))
        client = read_record(reference_client, ClientInstallation)
        set_traps(folder)
        run_client(client, run, folder, client_environment(hub=False))
        assert len(server.bodies) == 2 * SAMPLES
        assert KEY in "".join(gateway.heads)
    assert not imported(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert folder / "point-1" / "config.yaml" in files
    assert [str(path) for path in files if KEY.encode() in path.read_bytes()] == []
    assert KEY not in "".join(capfd.readouterr())
