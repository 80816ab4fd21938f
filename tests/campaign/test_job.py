"""The steps of a job and their order, seen from the function through which it reaches the recipes."""

import fcntl
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace

import pytest

from builders import job_of, steps_of
from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.campaign import job as module
from cm4vllm.campaign.execution import recipes_of
from cm4vllm.campaign.kept_results import kept_result
from cm4vllm.campaign.ledger import ATTEMPTS, LEDGER_FILE, State, read_ledger
from cm4vllm.campaign.live.status import STATUS_FILE, JobState, StatusRecord
from cm4vllm.campaign.planning.schedule import schedule
from cm4vllm.campaign.planning.step_environment import StepEnvironment
from cm4vllm.campaign.planning.step_values import Values
from cm4vllm.campaign.planning.steps import MeasuredTarget, Product, Step, target_of
from cm4vllm.campaign.rehearsal.profile import FAULT_FILE
from cm4vllm.common.errors import EnvironmentBroken, ModelError, ServerUnreachable, SourceUnavailable, UsageError
from cm4vllm.common.programs.processes import die_with_parent
from cm4vllm.common.records import read_record, write_record
from cm4vllm.common.settings import env_keys
from cm4vllm.common.units import SamplesPerSecond, Seconds
from cm4vllm.compliance.audit import audit_config, run_settings_of
from cm4vllm.loadgen.identity import settings_sha256
from cm4vllm.loadgen.measurement import RunInputs
from cm4vllm.loadgen.process.kept_answers import file_of, kept_answers
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_accuracy_log
from cm4vllm.records.run import RUN_FILE
from cm4vllm.records.searches.rate_search import SEARCH_FILE, Boundary, SearchRecord
from cm4vllm.records.server import Api, ServerRecord
from cm4vllm.serving.ports import free_port
from small_job import PROFILE, RUNS, SERVER, SmallJob


class Recipes:
    """Notes the tags of each step, and fails at the step that the test names."""

    def __init__(self, **failures):
        self.tags = []
        self.failures = failures

    def __call__(self, tags, env):
        self.tags.append(tags)
        for word, error in self.failures.items():
            if word in tags.replace("-", "_").split(","):
                raise error
        return {}


def run(recipes, tmp_path, **fields):
    return module.run(job_of(output_dir=str(tmp_path), **fields), recipes, "cm run script")


@pytest.mark.parametrize(
    ("fails", "error", "fields", "tags"),
    [
        # a result is not begun when nobody could check it
        ("src", SourceUnavailable("no network"), {"execution_mode": "valid"}, ["get,mlperf,inference,src"]),
        (
            "ml_model",
            ModelError("stop here"),
            {"execution_mode": "valid", "run_checker": False},
            ["get,mlperf,inference,loadgen,_r6.1", "get,ml-model,_tiny"],
        ),
        # a given server is asked before anything is fetched
        (
            "vllm_server",
            ServerUnreachable("nobody"),
            {"run_checker": False, "api_server": "http://127.0.0.1:9"},
            ["run,vllm-server"],
        ),
    ],
)
def test_a_job_ends_at_the_first_step_that_fails_and_takes_none_before_its_time(tmp_path, fails, error, fields, tags):
    recipes = Recipes(**{fails: error})
    with pytest.raises(type(error)):
        run(recipes, tmp_path, **fields)
    assert recipes.tags == tags


def test_the_status_of_a_job_has_its_steps_as_the_ledger_has_them(tmp_path):
    class Slow(Recipes):
        def __call__(self, tags, env):
            if tags.startswith("get,ml-model"):
                deadline = time.monotonic() + 30
                while [step.name for step in self.running()] != ["model"]:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                (self.seen,) = self.running()
            return super().__call__(tags, env)

        def running(self):
            return [step for step in status().steps if step.state is State.RUNNING]

    def status():
        return read_record(tmp_path / "test" / STATUS_FILE, StatusRecord)

    recipes = Slow(ml_model=ModelError("stop here"))
    with pytest.raises(ModelError):
        run(recipes, tmp_path, run_checker=False)
    assert recipes.seen.name == "model" and recipes.seen.took_s >= 0
    last = status()
    assert (last.state, last.cause, last.notices) == (JobState.FAILED, "stop here", (REHEARSAL_NOTICE,))
    assert [(step.name, step.state) for step in last.steps[:3]] == [
        ("LoadGen", State.DONE),
        ("model", State.FAILED),
        ("dataset", State.PLANNED),
    ]
    assert last.steps[1].why == "stop here" and last.steps[1].took_s is not None


class Serving(Recipes):
    """Has the server's step hand back the record of a server that serves `model_name`."""

    def __init__(self, tmp_path, model_name, **failures):
        super().__init__(**failures)
        self.record = tmp_path / "server.json"
        served = {"model_name": model_name, "max_model_len": 64, "version": "1", "owned": False}
        write_record(self.record, ServerRecord(endpoint="http://127.0.0.1:9", **served))

    def __call__(self, tags, env):
        super().__call__(tags, env)
        return {"CM_VLLM_SERVER_RECORD": str(self.record)} if tags == "run,vllm-server" else {}


def test_a_server_whose_model_nobody_named_is_not_taken_for_the_stand_in(tmp_path):
    given = {"run_checker": False, "api_server": "http://127.0.0.1:9"}
    recipes = Serving(tmp_path, "meta-llama/Llama-3.1-8B-Instruct")
    with pytest.raises(UsageError, match="serves meta-llama/Llama-3.1-8B-Instruct, and no model was named") as caught:
        run(recipes, tmp_path, **given)
    assert "--vllm_model_name=meta-llama/Llama-3.1-8B-Instruct" in caught.value.remedy
    assert recipes.tags == ["run,vllm-server"]
    for fields, served in [
        ({}, "cm4vllm-tiny"),
        ({}, "/srv/models/cm4vllm-tiny"),
        ({"vllm_model_name": "served"}, "served"),
        ({"model_source": "_tiny"}, "served"),
    ]:
        recipes = Serving(tmp_path, served, ml_model=ModelError("stop here"))
        with pytest.raises(ModelError):
            run(recipes, tmp_path, **given, **fields)


def test_two_runs_do_not_share_a_results_folder(tmp_path):
    (tmp_path / "test").mkdir()
    with (tmp_path / "test" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        recipes = Recipes()
        with pytest.raises(UsageError, match="another run"):
            run(recipes, tmp_path)
        assert recipes.tags == []


def test_a_target_says_where_it_comes_from():
    target = target_of(SamplesPerSecond(200), 1.2, "Offline accuracy")
    assert (target.value, target.source) == (240, "1.2 x the 200.00 samples/s of Offline accuracy")


def test_a_rehearsal_goes_on_without_the_official_checker_and_the_ledger_says_what_came_of_each_step(tmp_path, capsys):
    unreachable = SourceUnavailable("no network", cause="no route", remedy="a copy\nmade elsewhere")
    recipes = Recipes(src=unreachable, ml_model=ModelError("stop here"))
    with pytest.raises(ModelError):
        run(recipes, tmp_path)
    assert recipes.tags[-1] == "get,ml-model,_tiny"
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "no network" in line]
    assert said.endswith("WARNING: the official checker will not run on this rehearsal: no network (no route); a copy")
    ledger = read_ledger(tmp_path / "test")
    assert [(step.last.step, step.last.state, step.last.why, step.attempts) for step in ledger.of_last_run][:4] == [
        ("checker source", State.FAILED, str(unreachable), 1),
        ("LoadGen", State.DONE, "", 1),
        ("model", State.FAILED, "stop here", 1),
        ("dataset", State.PLANNED, "", 0),
    ]
    assert [name for name, state in ledger.states.items() if state.took_s is not None] == ["LoadGen"]


def test_the_target_is_the_rate_of_the_search_and_lower_after_runs_that_missed_a_limit(tmp_path):
    job = job_of(output_dir=str(tmp_path), execution_mode="valid", find_target_qps=True)
    bracket = {"rate": 100.0, "low": 100.0, "high": 103.0, "lowest_failing": 103.0, "boundary": Boundary.CLIFF}
    words = dict.fromkeys(("cause", "start_source", "stopped"), "")
    sums = {"confirmed": True, "precision": 0.015, "start": 90.0, "cost_s": 60.0, "rehearsal": False, "probes": []}
    record = SearchRecord(scenario="Server", benchmark="llama3.1-8b", binding="TTFT", **bracket, **words, **sums)
    (job.out / "search" / "Server").mkdir(parents=True)
    write_record(job.out / "search" / "Server" / SEARCH_FILE, record)
    values = Values(job.out, StepEnvironment(), {step.name: step for step in schedule(job)})
    targets = [values.target(MeasuredTarget(step="Server search", searched=True, lowered=times)) for times in range(3)]
    assert [target.value for target in targets] == [100, 98.52, 95.63]
    assert targets[0].source == f"Server search: {record.words}"
    assert "lowered to 98.52" in targets[1].source


def test_why_a_run_is_repeated_is_said_once_to_the_user(tmp_path, monkeypatch, capsys):
    steps = steps_of(execution_mode="valid", scenario="Offline")
    values = Values(tmp_path, StepEnvironment(), steps)
    short = SimpleNamespace(duration=Seconds(271.5), min_duration=Seconds(600.0))
    monkeypatch.setattr("cm4vllm.campaign.planning.step_values.read_performance", lambda folder: short)
    repeated = [step.condition for name, step in steps.items() if name.startswith("Offline performance again")]
    assert [values.holds(condition) for condition in (*repeated, *repeated)] == [True, True]
    assert capsys.readouterr().out.count("Offline performance ended after 271.5 s") == 1


def test_a_rate_is_searched_for_or_given(tmp_path):
    with pytest.raises(UsageError, match="--find_target_qps cannot be given with --server_target_qps=3"):
        job_of(output_dir=str(tmp_path), find_target_qps=True, server_target_qps=3.0)


# --- the same command again: done steps are kept, a stopped run goes on, and a failed one is set aside


def entries(job, state):
    lines = [json.loads(line) for line in (job.out / LEDGER_FILE).read_text().splitlines()]
    return [entry for entry in lines if entry["state"] == state]


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A file that makes servers slow as long as it is there: what is killed then is not over before."""
    file = tmp_path / "faults"
    file.write_text("slow")
    monkeypatch.setenv(FAULT_FILE, str(file))
    return file


def test_a_job_survives_the_end_of_its_server_and_its_own_and_makes_nothing_twice(tmp_path, slow):
    job = SmallJob(tmp_path)
    answers = file_of(job.folder / RUNS / "accuracy")
    process = job.start()
    job.wait_until(process, lambda: answers.exists() and len(kept_answers(answers)) >= 2)
    job.kill_server()
    slow.unlink()
    job.wait_until(process, lambda: job.is_measuring(process))
    job.kill(process)

    # An accuracy run goes on with a new server.
    accuracy, logged = job.record("accuracy"), read_accuracy_log(job.folder / RUNS / "accuracy" / ACCURACY_LOG)
    shares = [piece["answers"] for piece in accuracy["pieces"]]
    assert len(shares) == 2 and sum(shares) == 64 and shares[0] >= 2
    assert (accuracy["client"]["kept"], accuracy["client"]["completed"]) == (shares[0], 64)
    assert sum(len(tokens) for _, tokens, _ in logged) == accuracy["client"]["completion_tokens"]
    assert not answers.exists()
    (failed,) = entries(job, "failed")
    assert failed["step"] == "Offline accuracy" and "the server ended" in failed["why"]
    assert (job.out / failed["left"] / "server.log").exists()

    # The command that was killed left a torn line; the next one keeps the accuracy run, and measures the other again.
    with (job.out / LEDGER_FILE).open("ab") as file:
        file.write(b'{"schema":1,"run"')
    process = job.start()
    job.wait_until(process, lambda: job.is_measuring(process))
    job.kill_server()
    assert process.wait(90) == 0, job.log.read_text()
    states = job.states()
    assert job.record("accuracy")["files"] == accuracy["files"]
    assert (states["Offline accuracy"].last.state, states["Offline accuracy"].attempts) == (State.KEPT, 2)
    assert (states["Offline performance"].last.state, states["Offline performance"].attempts) == (State.DONE, 3)
    assert "is INVALID, and the server is started again" in job.log.read_text()
    assert job.record("performance")["pieces"] == []
    assert (job.out / ATTEMPTS / "torn-line-of-ledger-1").read_bytes() == b'{"schema":1,"run"'
    (aborted,) = entries(job, "aborted")
    left = [entry["left"] for entry in (aborted, entries(job, "failed")[1])]
    assert left == [f"{ATTEMPTS}/offline.performance-{number}" for number in (1, 2)]
    assert all(
        (job.out / folder / "user.conf").exists() and not (job.out / folder / RUN_FILE).exists() for folder in left
    )
    assert not list((job.folder / RUNS).glob("*.partial"))

    # Nothing is left to do, and no server is started for it.
    performance = job.record("performance")
    assert job.start().wait(90) == 0, job.log.read_text()
    kept = ("server", "Offline accuracy", "Offline accuracy: scores", "Offline performance")
    assert {job.states()[name].last.state for name in kept} == {State.KEPT}
    assert job.record("performance")["files"] == performance["files"]
    assert "starting vLLM" not in job.log.read_text()


@contextmanager
def given_server(port, profile=PROFILE):
    """Start a server that the job did not start, at a port; it has ended when this is left."""
    process = subprocess.Popen(
        [sys.executable, SERVER, f"--profile={profile}", "--served-model-name=small", f"--port={port}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models"):
                break
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    """A job at --api_server that was killed in its accuracy run after two answers; its server has ended, too."""
    folder, port = tmp_path_factory.mktemp("stopped"), free_port("127.0.0.1", 0)
    job = SmallJob(folder / "job")
    job.folder.mkdir()
    job.given = (
        f"CM_MLPERF_INFERENCE_API_SERVER=http://127.0.0.1:{port}",
        "CM_VLLM_SERVER_MODEL_NAME=small",
        "CM_MLPERF_LOADGEN_MODES=accuracy",
    )
    answers, faults = file_of(job.folder / RUNS / "accuracy"), folder / "faults"
    faults.write_text("slow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FAULT_FILE, str(faults))
        with given_server(port):
            process = job.start(*job.given)
            job.wait_until(process, lambda: answers.exists() and len(kept_answers(answers)) >= 2)
            job.kill(process)
    return job, port


@pytest.fixture
def stopped(stopped_once):
    """The job, with its results as they were when it was killed."""
    job, port = stopped_once
    results, kept = job.folder / "results", job.folder.with_name("kept")
    if not kept.exists():
        shutil.copytree(results, kept)
    shutil.rmtree(results)
    shutil.copytree(kept, results)
    return job, port


def test_answers_of_another_server_at_the_same_address_do_not_enter_the_log(stopped, tmp_path):
    job, port = stopped
    other = tmp_path / "other.yaml"
    other.write_text(PROFILE.read_text().replace("max_model_len: 2048", "max_model_len: 4096"))
    with given_server(port, other):
        assert job.start(*job.given, "CM_MLPERF_ACCEPT_RESTARTED_SERVER=yes").wait(90) == 0, job.log.read_text()
    log = " ".join(job.log.read_text().split())
    assert "the answers from before it was stopped are removed: the server at" in log
    assert "model.max_model_len was 2048, now 4096" in log
    assert (job.record("accuracy")["client"]["kept"], job.record("accuracy")["pieces"]) == (0, [])


@pytest.mark.parametrize("accepted", [False, True])
def test_a_server_that_was_started_again_is_accepted_only_where_that_is_asked(stopped, accepted):
    job, port = stopped
    flag = ("CM_MLPERF_ACCEPT_RESTARTED_SERVER=yes",) if accepted else ()
    with given_server(port):
        assert job.start(*job.given, *flag).wait(90) == 0, job.log.read_text()
    record, log = job.record("accuracy"), " ".join(job.log.read_text().split())
    assert "was started again: its process began at" in log
    assert (
        (record["client"]["kept"] >= 2) == (len(record["pieces"]) == 2) == bool(record["accepted_restarts"]) == accepted
    )
    if not accepted:
        return
    with given_server(port):  # finished runs are kept
        assert job.start(*job.given).wait(90) == 0, job.log.read_text()
    assert job.states()["Offline accuracy"].last.state is State.KEPT
    assert job.record("accuracy")["files"] == record["files"]


# --- results of an earlier command are recognised by what they were made from


def test_the_run_of_a_test_is_known_by_the_benchmarks_own_audit(tmp_path):
    files, api = {"path": "", "source": "", "sha256": ""}, Api.TRANSCRIPTIONS
    records = {
        "model_record": ModelRecord(name="m", **files),
        "dataset_record": DatasetRecord(name="d", **files, samples=1633, max_input_tokens=9, sentences=""),
        "server_record": ServerRecord(
            endpoint="http://a:1", api=api, model_name="m", max_model_len=4096, version="", owned=False
        ),
    }
    inputs = {"model": "whisper", "scenario": "Offline", "mode": "performance", "compliance_test": "TEST01"}
    inputs |= {"target_qps": "1", "output_dir": str(tmp_path / "TEST01")}
    for name, record in records.items():
        write_record(tmp_path / name, record)
        inputs[name] = str(tmp_path / name)
    env = {env_keys(RunInputs)[name]: value for name, value in inputs.items()}
    settings = run_settings_of(RunInputs.of(env))
    assert settings.audit_config == audit_config("TEST01", "whisper") != ""
    step = Step(name="Offline TEST01", tags="app,mlperf,inference,vllm", product=Product.RUN)
    assert kept_result(step, step.inputs, StepEnvironment(env), "").digest == settings_sha256(settings)


@pytest.mark.parametrize("broken", [1, 2])
def test_an_environment_that_is_found_broken_is_made_again_once(broken):
    """The recipe raises EnvironmentBroken where the second one is broken, too."""
    codes = iter([EnvironmentBroken.exit_code] * broken + [0])

    def run(asked):
        return {"return": next(codes), "error": "no token", "new_env": {"CM_SERVER": "yes"}}

    recipes = recipes_of(run)
    with pytest.raises(EnvironmentBroken) if broken > 1 else nullcontext():
        assert recipes("run,vllm-server", {}) == {"CM_SERVER": "yes"}
