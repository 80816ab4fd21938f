"""The steps that the entry recipe declares are those that the job takes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from cm4vllm.accuracy.sentences import TRAINED
from cm4vllm.campaign import job as module
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.settings import read_settings
from cm4vllm.common.units import SamplesPerSecond, Seconds
from cm4vllm.engine.catalogue import Catalogue
from cm4vllm.engine.plan import plan
from cm4vllm.engine.request import Request
from cm4vllm.engine.session import Session

ROOT = Path(__file__).resolve().parents[2]
WATCHED = ("CM_MLPERF_LOADGEN_SCENARIO", "CM_MLPERF_LOADGEN_MODE")


def declared(tmp_path, variations, flags):
    """Return the steps of the plan, (tags, scenario and mode, certain), and the environment of the recipe."""
    repo = SimpleNamespace(path=str(ROOT), path_with_prefix=str(ROOT), meta={"alias": "cm4vllm", "uid": ""})
    cmind = SimpleNamespace(repos=SimpleNamespace(lst=[repo]), repos_path=str(tmp_path), index=None)
    session = Session(SimpleNamespace(cmind=cmind, path=str(ROOT / "automation" / "script")), {})
    session.catalogue = Catalogue(cmind)
    request = Request.of({"tags": f"run-mlperf,inference,{variations}", **flags}, str(tmp_path))
    root = plan(session, request)
    assert root.failure() is None
    steps = [(node.tags, tuple(node.env.get(key, "") for key in WATCHED), not node.only_if)
             for node in root.children if node.why == "step"]
    return steps, request


class Taken:
    """Notes the steps that a job takes, and hands back what the real recipes export."""

    def __init__(self):
        self.steps = []

    def __call__(self, tags, env):
        measures = tags.startswith(("generate,user-conf", "app,"))
        self.steps.append((tags, tuple(env.get(key, "") if measures else "" for key in WATCHED)))
        dataset = {"CM_DATASET_RECORD": "/dataset.json"}
        return {
            "get,mlperf,inference,src": {"CM_MLPERF_INFERENCE_SOURCE": "/src"},
            "get,sut,description": {"CM_SUT_NAME": "sut"},
            "run,vllm-server": {"CM_VLLM_SERVER_RECORD": "/server.json"},
            "app,mlperf,inference,vllm": {"CM_MLPERF_RUN_RECORD": "/run.json"},
            "get,dataset,_tiny": dataset, "get,dataset,_path./data.json": dataset,
        }.get(tags, {"CM_ML_MODEL_NAME": "model", "CM_ML_MODEL_RECORD": "/model.json"} if "ml-model" in tags else {})


def taken(tmp_path, monkeypatch, env, duration_s):
    """Return the steps that the job takes with these settings, where each file that a run leaves would be as given."""
    result = SimpleNamespace(duration=Seconds(duration_s), min_duration=Seconds(600),
                             samples_per_second=SamplesPerSecond(9), valid=True)
    for name, value in {
        "read_record": SimpleNamespace(sentences=TRAINED), "measured_rate": SamplesPerSecond(9),
        "read_performance": result, "check_vocabulary": None,
        "write_record": None, "load": SimpleNamespace(invalid_results=[]), "summary_html": "", "write_text": None,
        "final_table": "",
    }.items():
        monkeypatch.setattr(module, name, lambda *_, value=value: value)
    recipes = Taken()
    settings = read_settings(CampaignSettings, {**env, "OUTPUT_BASE_DIR": str(tmp_path / "out")})
    module.run(Job.of(settings), recipes, "cm run script")
    return recipes.steps


CASES = [
    ("_vllm", {}, 700),
    ("_vllm", {"scenario": "Offline"}, 700),
    ("_vllm", {"scenario": "Server"}, 700),
    ("_vllm", {"scenario": "Server", "server_target_qps": "5"}, 700),
    ("_vllm,_all-scenarios", {"scenario": "Server"}, 700),
    ("_vllm,_accuracy-only", {}, 700),
    ("_vllm,_accuracy-only", {"scenario": "server"}, 700),
    ("_vllm,_performance-only", {}, 700),
    ("_vllm,_performance-only", {"offline_target_qps": "9", "server_target_qps": "3"}, 700),
    ("_vllm", {"execution_mode": "valid"}, 700),
    ("_vllm", {"execution_mode": "valid"}, 100),
    ("_vllm", {"execution_mode": "valid", "offline_target_qps": "9"}, 100),
    ("_vllm,_r6.1", {"run_checker": "no"}, 700),
    ("_vllm", {"api_server": "http://127.0.0.1:1"}, 700),
    ("_vllm", {"vllm_model_name": "hub/name", "dataset_path": "/data.json"}, 700),
    ("_vllm", {"vllm_model_name": "cm4vllm-tiny"}, 700),
    ("_vllm", {"vllm_model_name": str(ROOT)}, 700),
    ("_vllm,_hf.hub/other", {"vllm_model_name": "served"}, 700),
]


@pytest.mark.parametrize(("variations", "flags", "duration_s"), CASES)
def test_the_job_takes_the_declared_steps(tmp_path, monkeypatch, variations, flags, duration_s):
    monkeypatch.chdir(tmp_path)
    steps, request = declared(tmp_path, variations, flags)
    frame_env = environment_of(request)
    done = taken(tmp_path, monkeypatch, frame_env, duration_s)
    position = 0
    for tags, watched, certain in steps:
        if position < len(done) and done[position] == (tags, watched):
            position += 1
        else:
            assert not certain, f"{tags} {watched} is declared as certain, but {done[position:position + 1]} came"
    assert done[position:] == [], "not declared"


def environment_of(request):
    """Return the environment that the recipe's hook sees, with what the hook itself adds."""
    from cm4vllm.engine.meta import load_script
    from cm4vllm.engine.scope import Scope
    from cm4vllm.engine.task import Task

    env = Scope.of(Task.of(load_script(str(ROOT / "script" / "run-mlperf-inference-app"), "cm4vllm"), request)).env
    if env.get("CM_DATASET_FILE"):
        env["CM_DATASET_SOURCE"] = f"_path.{env['CM_DATASET_FILE']}"
    return env


def test_the_case_of_a_repeated_run_is_met(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, request = declared(tmp_path, "_vllm", {"execution_mode": "valid"})
    done = taken(tmp_path, monkeypatch, environment_of(request), 100)
    assert done.count(("app,mlperf,inference,vllm", ("Offline", "performance"))) == 2
