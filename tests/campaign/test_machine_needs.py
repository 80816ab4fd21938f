"""The needs of a job's runs: reported before anything is started, and refused where the machine cannot meet them."""

import pytest

from cm4vllm.campaign.job_checks.machine_needs import machine_notes
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import LimitTooLow
from cm4vllm.hardware.machine_limits import MachineLimits

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
RATE, WORKERS, EXTRA = (
    "CM_MLPERF_LOADGEN_SERVER_TARGET_QPS",
    "CM_MLPERF_INFERENCE_NUM_WORKERS",
    "CM_VLLM_SERVER_EXTRA_ARGS",
)


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


def test_a_high_rate_is_written_without_an_exponent():
    here = {"CM_MLPERF_MODEL": "llama3.1-8b", "CM_MLPERF_INFERENCE_API_SERVER": "unix:///server"}
    *_, rate = notes(REHEARSAL | here)
    assert "a rate above about 126,900 queries/s is refused" in rate


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
