"""A measurement from the records of other recipes, as the recipe asks for it."""

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from fake_vllm import Behaviour, FakeVllm

from builders import campaign_record
from cm4vllm.common.errors import ModelError, ResultsDiffer, ServerDied, UsageError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.records import read_record, write_record
from cm4vllm.loadgen.identity import settings_sha256
from cm4vllm.loadgen.measurement import RunInputs, earlier_run, measure, require_run, settings_of, write_user_conf
from cm4vllm.loadgen.process.runner import run
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.logs.run_logs import read_performance
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.results.comparing.comparison import compare
from cm4vllm.results.comparing.verification import refuse_differences, verify
from cm4vllm.submission.capsule.capsules_at_path import capsule_of_results
from cm4vllm.submission.capsule.rerun_file import read_capsule, write_capsule


def handed_over(tmp_path, dataset):
    """Return the environment that recipes hand over, all but the server's record."""
    write_record(tmp_path / "model.json", ModelRecord(name="tiny", path="", source="test", sha256="", min_tokens=2))
    write_record(tmp_path / "dataset.json", dataset)
    return {
        "CM_MLPERF_LOADGEN_SCENARIO": "offline",
        "CM_MLPERF_LOADGEN_MODE": "performance",
        "CM_MLPERF_ROUND": "v6.1",
        "CM_MLPERF_MODEL": "llama3.1-8b",
        "CM_MLPERF_RUN_STYLE": "test",
        "CM_TEST_QUERY_COUNT": "64",
        "CM_MLPERF_LOADGEN_TARGET_QPS": "12.5",
        "CM_MLPERF_LOADGEN_TARGET_QPS_SOURCE": "measured by the test",
        "CM_ML_MODEL_RECORD": str(tmp_path / "model.json"),
        "CM_DATASET_RECORD": str(tmp_path / "dataset.json"),
        "CM_MLPERF_OUTPUT_DIR": str(tmp_path / "runs" / "performance"),
        "CM_VLLM_SERVER_RECORD": str(tmp_path / "server.json"),
        "CM_MLPERF_LOADGEN_PYTHONPATH": "",
    }


@pytest.fixture
def env(tmp_path, dataset):
    return handed_over(tmp_path, dataset)


@pytest.fixture(scope="module")
def by_own_conf(tmp_path_factory, dataset):
    """A performance run by the user's own user.conf: what was asked for, the run's record and its folder."""
    folder = tmp_path_factory.mktemp("by-own-conf")
    env, own = handed_over(folder, dataset), folder / "own.conf"
    own.write_text(write_user_conf(inputs(env)).read_text().replace("12.5", "77"))
    asked = inputs(env, CM_MLPERF_USER_CONF=str(own))
    with FakeVllm() as server:
        serve(folder, server)
        record, path = measure(asked)
    return asked, record, path.parent


def inputs(env, **changes):
    return RunInputs.of({**env, **changes})


def serve(tmp_path, server, **more):
    facts = {"model_name": "tiny", "max_model_len": 2048, "version": "0.32.0", "owned": False, **more}
    write_record(tmp_path / "server.json", ServerRecord(endpoint=server.endpoint, **facts))


def test_settings_that_are_refused_beforehand_are_not_measured(env, tmp_path):
    def refuse(settings):
        raise ModelError(f"nothing can score {settings.mode}")

    with FakeVllm() as server:
        serve(tmp_path, server)
        with pytest.raises(ModelError, match="nothing can score accuracy"):
            measure(inputs(env, CM_MLPERF_LOADGEN_MODE="accuracy"), refuse)
        assert not server.bodies


def test_the_records_become_a_run(env, tmp_path):
    conf = write_user_conf(inputs(env))
    assert conf == tmp_path / "runs" / "performance.user.conf"  # of a run beside it: one of its own
    text = conf.read_text()
    with FakeVllm() as server:
        serve(tmp_path, server)
        record, path = measure(inputs(env, CM_MLPERF_USER_CONF=str(conf)))
    assert path == tmp_path / "runs" / "performance" / "run.json"
    assert read_record(path, RunRecord) == record
    assert record.settings.target_qps == 12.5
    assert record.settings.target_qps_source == "measured by the test"
    assert record.settings.user_conf == text
    assert not conf.exists()  # the run has it in its folder
    assert record.settings.min_tokens == 2
    assert record.settings.max_tokens == 128
    assert record.settings.stream_interval == 0


def test_the_users_own_user_conf_is_the_one_that_counts(by_own_conf):
    asked, record, folder = by_own_conf
    own = Path(asked.user_conf).read_text()
    assert "target_qps = 77" in own
    assert (folder / "user.conf").read_text() == own == record.settings.user_conf
    assert read_performance(folder).target_qps == record.settings.target_qps == 77
    assert record.settings.target_qps_source == "LoadGen's, by user.conf"


@pytest.mark.parametrize("line", ["*.Server.target_qsp = 200", "*.Server.ttft_latency = 5000"])
def test_a_user_conf_that_is_not_the_runs_is_refused_by_plan_and_run(env, tmp_path, line):
    own = tmp_path / "own.conf"
    own.write_text(f"{line}\n")
    asked = inputs(env, CM_MLPERF_USER_CONF=str(own), CM_MLPERF_LOADGEN_SCENARIO="Server")
    with FakeVllm() as server:
        serve(tmp_path, server)
        for begun in (require_run, measure):
            with pytest.raises(UsageError) as caught:
                begun(asked)
            assert line in caught.value.cause


def test_a_valid_run_is_no_shorter_than_the_rules_have_it(env, tmp_path):
    own = tmp_path / "own.conf"
    own.write_text("*.Server.target_qps = 5\n*.Server.min_duration = 1\n")
    asked = inputs(env, CM_MLPERF_USER_CONF=str(own), CM_MLPERF_LOADGEN_SCENARIO="Server", CM_MLPERF_RUN_STYLE="valid")
    with pytest.raises(UsageError) as caught:
        require_run(asked)
    assert "min_duration = 1': the rules" in caught.value.cause


def test_the_rate_of_a_user_conf_without_one_is_loadgens_own_and_said(env, tmp_path, capsys):
    own = tmp_path / "own.conf"
    own.write_text("*.Offline.min_duration = 0\n*.Offline.min_query_count = 8\n")
    asked = inputs(env, CM_MLPERF_USER_CONF=str(own))
    require_run(asked)
    assert "user.conf has LoadGen aim at 1 queries/s; the 12.5 asked for do not count" in "".join(capsys.readouterr())
    with FakeVllm() as server:
        serve(tmp_path, server)
        assert settings_of(asked).target_qps == 1


def test_the_dataset_is_that_of_the_mode_or_of_the_compliance_test_where_these_have_their_own(env):
    records = {
        "CM_DATASET_RECORD": "all.json",
        "CM_PERFORMANCE_DATASET_RECORD": "performance.json",
        "CM_COMPLIANCE_DATASET_RECORD": "compliance.json",
        "CM_MLPERF_MODEL": "gpt-oss-120b",
    }
    assert inputs(env, **records).dataset == "performance.json"
    assert inputs(env, **records, CM_MLPERF_LOADGEN_MODE="accuracy").dataset == "all.json"
    assert inputs(env, **records, CM_MLPERF_LOADGEN_COMPLIANCE_TEST="TEST07").dataset == "compliance.json"
    assert inputs(env, **records, CM_MLPERF_LOADGEN_COMPLIANCE_TEST="TEST09").dataset == "performance.json"
    assert inputs(env, **{**records, "CM_PERFORMANCE_DATASET_RECORD": ""}).dataset == "all.json"


def test_all_inputs_that_are_not_given_are_named_at_once(env, tmp_path):
    with FakeVllm() as server:
        serve(tmp_path, server)
    flags = {
        "CM_MLPERF_OUTPUT_DIR": "output_dir",
        "CM_ML_MODEL_RECORD": "model_record",
        "CM_DATASET_RECORD": "dataset_record",
        "CM_VLLM_SERVER_RECORD": "server_record",
    }
    for missing in [[key] for key in flags] + [list(flags)]:
        with pytest.raises(UsageError) as error:
            measure(inputs(env, **dict.fromkeys(missing, "")))
        assert error.value.what == f"not given: {', '.join(f'--{flags[key]}' for key in missing)}"
    assert "--dataset_record=..., as get,dataset gives it" in error.value.remedy.splitlines()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("CM_MLPERF_LOADGEN_SCENARIO", "Ofline", "did you mean 'Offline'"),
        ("CM_MLPERF_LOADGEN_TARGET_QPS", "fast", "CM_MLPERF_LOADGEN_TARGET_QPS='fast'"),
        ("CM_MLPERF_LOADGEN_TARGET_QPS", "0", "greater than 0"),
        ("CM_MLPERF_ROUND", "v5.0", "not in round v5.0"),
        ("CM_VLLM_STREAM_INTERVAL", "-1", "stream_interval=-1"),
    ],
)
def test_what_is_not_usable_is_named(env, tmp_path, key, value, words):
    with FakeVllm() as server:
        serve(tmp_path, server)
    with pytest.raises(UsageError) as failure:
        measure(inputs(env, **{key: value}))
    assert words in str(failure.value)


def test_a_run_is_kept_where_it_is_whole_and_its_settings_are_the_same(env, tmp_path):
    asked = inputs(env, CM_MLPERF_LOADGEN_MODE="accuracy")
    folder = tmp_path / "runs" / "performance"
    with FakeVllm() as server:
        serve(tmp_path, server)
        assert earlier_run(folder, settings_of(asked)) == (None, "")
        record, path = measure(asked)
        settings = settings_of(asked)
        assert earlier_run(folder, settings) == (record, "")
        other = msgspec.structs.replace(settings, max_in_flight=3)
        assert "its settings have changed: max_in_flight: 2048, now 3" in earlier_run(folder, other)[1]
        for older in (b'{"schema": 0}', b'{"notice": "written before records named a schema"}'):
            whole = path.read_bytes()
            path.write_bytes(older)
            assert "cannot be read" in earlier_run(folder, settings)[1]
            path.write_bytes(whole)
        failed = msgspec.structs.replace(record, client=msgspec.structs.replace(record.client, failed=1))
        write_record(path, failed)
        assert "1 of 64 requests failed" in earlier_run(folder, settings)[1]
        (folder / "mlperf_log_summary.txt").write_text("changed")
        write_record(path, record)
        assert "changed or removed: mlperf_log_summary.txt" in earlier_run(folder, settings)[1]


def test_a_performance_run_that_is_invalid_is_kept_only_as_a_rehearsal(by_own_conf, tmp_path):
    asked, record, folder = by_own_conf
    path = shutil.copytree(folder, tmp_path / "run") / RUN_FILE
    settings = settings_of(asked)
    assert earlier_run(path.parent, settings)[0] == record
    counted = msgspec.structs.replace(settings, rehearsal=False)
    write_record(path, msgspec.structs.replace(record, settings=counted, settings_sha256=settings_sha256(counted)))
    log = path.parent / "mlperf_log_detail.txt"
    log.write_text(
        log.read_text().replace('"result_validity", "value": "VALID"', '"result_validity", "value": "INVALID"')
    )
    written = read_record(path, RunRecord)
    write_record(path, msgspec.structs.replace(written, files={**written.files, log.name: sha256_of(log)}))
    assert "LoadGen calls it INVALID" in earlier_run(path.parent, counted)[1]


def test_our_own_server_is_watched(env, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("fine\nRuntimeError: out of memory\n")
    with FakeVllm(Behaviour(token_delay_s=0.05)) as server:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        serve(tmp_path, server, owned=True, log=str(log), supervisor_pid=child.pid)

        def end():
            while len(server.bodies) < 5 and time.monotonic() < deadline:
                time.sleep(0.05)
            child.communicate(b"\n")

        deadline = time.monotonic() + 60
        ending = threading.Thread(target=end)
        ending.start()
        with pytest.raises(ServerDied, match="Server performance run"):
            measure(inputs(env, CM_MLPERF_LOADGEN_SCENARIO="Server", CM_TEST_QUERY_COUNT="5000"))
        ending.join()
    assert not (tmp_path / "runs" / "performance").exists()


# --- runs made again: their capsules agree with the first ones, and do not where a sampling parameter was another


def measured(out, make_settings, **changed):
    """Measure Offline in both modes on a server of its own; return the capsule, as it is read from its file."""
    # The answers of a performance run end one after the other: an interval needs samples in each part of the run.
    for mode, server in (("accuracy", FakeVllm()), ("performance", FakeVllm(Behaviour(token_delay_s=0.002)))):
        with server:
            settings = make_settings(server.endpoint, "Offline", mode, test_query_count=128, max_in_flight=16)
            run(msgspec.structs.replace(settings, **changed), out / "runs" / "system" / "tiny" / "Offline" / mode)
    write_record(out / "campaign.json", campaign_record())
    write_capsule(out / "rerun.yaml", capsule_of_results(out))
    return read_capsule(out / "rerun.yaml")


def test_a_run_made_again_is_verified_and_one_with_another_sampling_parameter_is_not(tmp_path, make_settings):
    first = measured(tmp_path / "first", make_settings)
    again = measured(tmp_path / "again", make_settings)
    refuse_differences(verify(compare([("first", first), ("again", again)])))
    rate = first.results[0].performance.figures["tokens_per_second"]
    assert rate.interval is not None and rate.interval.low < rate.value < rate.interval.high
    other = measured(tmp_path / "other", make_settings, max_tokens=64)
    with pytest.raises(ResultsDiffer) as differs:
        refuse_differences(verify(compare([("first", first), ("other", other)])))
    assert "sampling: max_tokens: 128 and 64" in differs.value.cause
    assert "Offline: answers: 64 answers and " in differs.value.cause
