"""The checks of everything that flags name, before anything is downloaded, installed or started."""

import fcntl
import json
import os

import pytest

from cm4vllm.campaign.job_checks.job_notes import machine_notes
from cm4vllm.campaign.job_checks.preflight import of_anywhere, preflight, require_files, require_results_folder
from cm4vllm.campaign.planning.step_environment import differing
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import (
    CmError,
    DatasetError,
    DiskFull,
    InstallError,
    LimitTooLow,
    ModelError,
    SourceUnavailable,
    UsageError,
)
from cm4vllm.hardware.readiness import MachineLimits
from gpu_machines import gpus
from listing_server import listing_url

DATASET, CALIBRATION = "CM_DATASET_FILE", "CM_CALIBRATION_DATASET_FILE"


def checked(tmp_path, env):
    """Check an environment as the entry does."""
    env = {"CM_ML_MODEL_SOURCE": "_hf.owner/name", "OUTPUT_BASE_DIR": str(tmp_path / "out"), **env}
    settings = CampaignSettings.of(env)
    require_files(settings)
    return preflight(Job.of(settings))


def test_paths_mean_the_same_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "model").mkdir()
    given = {
        "CM_DATASET_FILE": "cnn_eval.json",
        "CM_NLTK_DATA_SOURCE": "~/punkt_tab.zip",
        "CM_VLLM_SERVER_MODEL_NAME": "model",
        "CM_MLPERF_SUBMITTER": "model",
        "CM_MLPERF_SYSTEM_FILE": "",
        "CM_MLPERF_PUBLISHED_RESULTS": "v5.1, ~/results.index.json",
    }
    assert differing(of_anywhere(CampaignSettings.of(given))) == {
        "CM_MLPERF_SUBMITTER": "model",
        "CM_MLPERF_PUBLISHED_RESULTS": f"{tmp_path}/v5.1,/home/me/results.index.json",
        "CM_DATASET_FILE": str(tmp_path / "cnn_eval.json"),
        "CM_NLTK_DATA_SOURCE": "/home/me/punkt_tab.zip",
        "CM_VLLM_SERVER_MODEL_NAME": str(tmp_path / "model"),
    }


@pytest.mark.parametrize(
    "given",
    [
        {"CM_VLLM_SERVER_MODEL_NAME": "owner/model"},
        {"CM_VLLM_SERVER_MODEL_NAME": "model", "CM_MLPERF_INFERENCE_API_SERVER": "http://a"},
    ],
)
def test_a_name_is_no_path(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert differing(of_anywhere(CampaignSettings.of(given))) == given


def test_what_is_sound_passes(tmp_path):
    system, dataset, calibration = tmp_path / "system.yaml", tmp_path / "data.json", tmp_path / "set.json"
    system.write_text("cooling: air\n")
    row = {"input": "a", "tok_input": [1], "output": "b"}
    dataset.write_text(json.dumps([row] * Job.of(CampaignSettings()).benchmark.samples))
    calibration.write_text(json.dumps([row]))
    checked(tmp_path, {"CM_MLPERF_SYSTEM_FILE": str(system), DATASET: str(dataset), CALIBRATION: str(calibration)})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "key", "error"),
    [
        ("system.yaml", "CM_MLPERF_SYSTEM_FILE", UsageError),
        ("data.json", DATASET, DatasetError),
        ("data.pkl", CALIBRATION, DatasetError),
        ("inference", "CM_MLPERF_INFERENCE_SOURCE_DIR", SourceUnavailable),
        ("punkt_tab.zip", "CM_NLTK_DATA_SOURCE", (InstallError, SourceUnavailable)),
        ("results.index.json", "CM_MLPERF_PUBLISHED_RESULTS", CmError),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused(name, key, error, tmp_path):
    with pytest.raises(error):
        checked(tmp_path, {key: str(tmp_path / name)})
    (tmp_path / name).write_text("colling: air\n")
    with pytest.raises(error):
        checked(tmp_path, {key: str(tmp_path / name)})


@pytest.mark.parametrize("count", [1, 13369])
def test_only_a_result_asks_for_the_benchmarks_number_of_samples(tmp_path, count):
    (tmp_path / "data.json").write_text(json.dumps([{"input": "a", "tok_input": [1], "output": "b"}] * count))
    checked(tmp_path, {DATASET: str(tmp_path / "data.json")})
    with pytest.raises(DatasetError, match=f"has {count} samples") as caught:
        checked(tmp_path, {DATASET: str(tmp_path / "data.json"), "CM_MLPERF_RUN_STYLE": "valid"})
    assert "13368" in caught.value.cause


@pytest.fixture
def model(tmp_path):
    """A model folder whose tokenizer has a token for each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder, alphabet = tmp_path / "My Model", sorted(pre_tokenizers.ByteLevel.alphabet())
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 300}))
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(alphabet)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    return folder


def with_model(tmp_path, model, count, **row):
    (tmp_path / "data.json").write_text(
        json.dumps([{"input": "a", "tok_input": [99] * count, "output": "b", **row}] * 3)
    )
    return {DATASET: str(tmp_path / "data.json"), "CM_ML_MODEL_SOURCE": f"_path.{model}"}


def has_context(model, tokens):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": tokens}))


@pytest.mark.parametrize("prompt", [9005, 8065])
def test_a_prompt_that_does_not_fit_the_context_is_refused(tmp_path, model, prompt):
    env = with_model(tmp_path, model, prompt, input="")
    has_context(model, 8192)
    with pytest.raises(ModelError, match="does not fit the model My Model") as caught:
        checked(tmp_path, env)
    assert f"8192 tokens, prompt and answer need {prompt + 128}" in caught.value.cause
    has_context(model, prompt + 128)
    checked(tmp_path, env)
    with pytest.raises(ModelError, match="does not fit"):
        checked(tmp_path, {**env, "CM_VLLM_SERVER_MAX_MODEL_LEN": "8192"})


def of_a_test(tmp_path, model, rows):
    """Return a job of the benchmark whose compliance test has a dataset of its own, with these rows."""
    (tmp_path / "test.json").write_text(json.dumps(rows))
    return {
        "CM_MLPERF_MODEL": "gpt-oss-120b",
        "CM_ML_MODEL_SOURCE": f"_path.{model}",
        "CM_COMPLIANCE_DATASET_FILE": str(tmp_path / "test.json"),
        "CM_MLPERF_LOADGEN_COMPLIANCE": "TEST07",
    }


QUESTION = {"input": "", "tok_input": [99] * 500, "output": "b", "dataset": "gpqa_diamond"}


def test_the_dataset_of_a_compliance_test_is_read_before_the_run(tmp_path, model):
    has_context(model, 100_000)
    checked(tmp_path, of_a_test(tmp_path, model, [QUESTION] * 990))
    for rows, words in (
        ([QUESTION] * 345, "has 345 samples"),
        ([QUESTION | {"dataset": "aime"}] * 990, "as its dataset"),
        ([{"tok_input": [1]}] * 990, "lacks input, output"),
        ([], "holds no records"),
    ):
        with pytest.raises(DatasetError, match=words):
            checked(tmp_path, of_a_test(tmp_path, model, rows))
    env = of_a_test(tmp_path, model, [QUESTION] * 990)
    with pytest.raises(DatasetError, match="is a folder, and the dataset is one file"):
        checked(tmp_path, {**env, "CM_COMPLIANCE_DATASET_FILE": str(tmp_path)})
    has_context(model, 700)
    with pytest.raises(ModelError, match="does not fit the model My Model"):
        checked(tmp_path, env)


@pytest.mark.parametrize("is_served", [False, True])
def test_a_context_that_is_given_is_compared_with_the_prompts_of_any_model(tmp_path, is_served):
    served = listing_url() if is_served else ""
    (tmp_path / "data.json").write_text(json.dumps([{"input": "a", "tok_input": [9] * 900, "output": "b"}]))
    env = {DATASET: str(tmp_path / "data.json"), "CM_MLPERF_INFERENCE_API_SERVER": served}
    with pytest.raises(ModelError, match="does not fit the context"):
        checked(tmp_path, {**env, "CM_VLLM_SERVER_MAX_MODEL_LEN": "1000"})
    checked(tmp_path, {**env, "CM_VLLM_SERVER_MAX_MODEL_LEN": "1028"})


def test_prompts_of_another_model_are_noted_before_the_run(tmp_path, model):
    has_context(model, 4096)
    (note,) = checked(tmp_path, with_model(tmp_path, model, 7))
    assert "data.json: its prompts were tokenised for another model (sample 0 reads" in note
    assert checked(tmp_path, with_model(tmp_path, model, 7, input="")) == ()


def test_more_workers_than_cores_are_refused_where_a_server_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr("cm4vllm.serving.launch_settings.detect_gpus", list)
    env = {"CM_VLLM_SERVER_TP_SIZE": str(len(os.sched_getaffinity(0)) + 1)}
    with pytest.raises(UsageError, match="cores"):
        checked(tmp_path, env)
    checked(tmp_path, {**env, "CM_MLPERF_INFERENCE_API_SERVER": listing_url()})
    there = gpus(len(os.sched_getaffinity(0)) + 1)
    monkeypatch.setattr("cm4vllm.serving.launch_settings.detect_gpus", lambda: there)
    monkeypatch.setattr("cm4vllm.serving.server_container.detect_gpus", lambda: there)
    monkeypatch.setattr("cm4vllm.serving.launch_settings.gpus_for", lambda _: there)
    checked(tmp_path, env)  # each worker has a GPU, whatever cores there are


def test_a_results_folder_that_is_in_use_or_has_no_room_is_refused(tmp_path, monkeypatch):
    require_results_folder(tmp_path / "new" / "folder", tmp_path / "lock")
    assert not (tmp_path / "new").exists()
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another run"):
            require_results_folder(tmp_path, tmp_path / ".lock")
    require_results_folder(tmp_path, tmp_path / ".lock")
    monkeypatch.setattr("cm4vllm.common.files.free_bytes", lambda _: 2**20)
    with pytest.raises(DiskFull, match="results"):
        require_results_folder(tmp_path, tmp_path / ".lock")


# --- the needs of a job's runs: reported before anything is started, and refused where the machine cannot meet them


MANY = {"open_files": 20_000, "local_ports": 60_000, "shared_memory_bytes": 2**34, "memory_bytes": 2**36}
REHEARSAL = {
    "CM_MLPERF_MODEL": "gpt-oss-120b",
    "CM_MLPERF_ROUND": "v6.0",
    "CM_MLPERF_LOADGEN_SCENARIO": "Server",
    "CM_ML_MODEL_SOURCE": "_tiny",
}
VALID = REHEARSAL | {
    "CM_ML_MODEL_SOURCE": "_hf.owner/name",
    "CM_MLPERF_RUN_STYLE": "valid",
    "CM_MLPERF_LOADGEN_MODES": "performance",
    "CM_RUN_SUBMISSION_CHECKER": "no",
}
RATE, WORKERS = "CM_MLPERF_LOADGEN_SERVER_TARGET_QPS", "CM_MLPERF_INFERENCE_NUM_WORKERS"
EXTRA = "CM_VLLM_SERVER_EXTRA_ARGS"


def notes(env, **limits):
    return machine_notes(Job.of(CampaignSettings.of(env)), MachineLimits(**MANY | limits))


def test_a_rehearsal_needs_no_more_than_the_queries_that_it_has():
    """28.8 queries/s, as the tiny model takes them: answers may take 822 s each, the run has a few hundred queries."""
    (most,) = notes(REHEARSAL | {RATE: "28.8"}, open_files=4096)
    assert "the Server performance run may have 768 requests open at once (the run has so many queries)" in most
    assert "864 open files in a process of the client, 864 in a process of the server; 4,096 are allowed" in most


def test_a_rate_that_is_measured_first_is_bounded_in_words():
    most, rate = notes(REHEARSAL)
    assert "the Server accuracy run may have 256 requests open at once" in most
    assert "the Server performance run, whose rate is measured before it, may have 19,897 requests" in rate
    assert "19,993 open files in a process of the client" in rate
    assert "a rate above about 1,934 queries/s is refused" in rate
    (only,) = notes(VALID)
    assert "a rate above about 24.2 queries/s is refused" in only
    here = {"CM_MLPERF_MODEL": "llama3.1-8b", "CM_MLPERF_INFERENCE_API_SERVER": "unix:///server"}
    assert "a rate above about 126,900 queries/s is refused" in notes(REHEARSAL | here)[-1]


def test_what_the_client_and_the_server_need_together_is_refused_with_what_would_do():
    with pytest.raises(LimitTooLow, match="may need 23,808 open files in a process of the server, 20,000") as refused:
        notes(VALID | {RATE: "28.8"})
    assert "11,936 open files in each of 2 processes of the client, 23,808 in a process of the server" in (
        refused.value.cause
    )
    assert "--extra_args=--api-server-count=2" in refused.value.remedy
    (most,) = notes(VALID | {RATE: "28.8", EXTRA: "--api-server-count=2"})
    assert "in each of 2 processes of the client, 11,936 in each of 2 processes of the server" in most


def test_the_servers_part_is_not_known_of_a_server_that_runs_already():
    given = VALID | {RATE: "28.8", "CM_MLPERF_INFERENCE_API_SERVER": "http://127.0.0.1:1"}
    (most,) = notes(given)
    assert "11,936 open files in each of 2 processes of the client; 20,000" in most
    with pytest.raises(LimitTooLow) as refused:
        notes(given | {WORKERS: "1"})
    assert "--num_workers=2" in refused.value.remedy and "--api-server-count" not in refused.value.remedy


def test_workers_of_a_server_need_shared_memory():
    two = REHEARSAL | {"CM_VLLM_SERVER_TP_SIZE": "2"}
    with pytest.raises(LimitTooLow, match="needs 240 MiB of shared memory, 64 MiB of /dev/shm are free") as refused:
        notes(two, shared_memory_bytes=64 * 2**20)
    assert "--shm-size" in refused.value.remedy
    assert notes(two) and notes(REHEARSAL, shared_memory_bytes=64 * 2**20)


def test_answers_of_random_weights_have_the_published_length():
    rehearsed = {"CM_MLPERF_RUN_STYLE": "test", "CM_TEST_QUERY_COUNT": "100000"}
    given = VALID | rehearsed | {RATE: "28.8", "CM_ML_MODEL_SOURCE": "_dummy.gpt-oss-120b"}
    (most,) = notes(given, open_files=30_000)
    assert "each answered within" in most and "822.2 s" not in most
