"""The main job without its recipes: its plan, and a run in which they only hand back what the real ones export."""

import json
import os
import struct
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from cm4vllm.campaign.amendments import amendments
from cm4vllm.campaign.entry import run_job, typed_env
from cm4vllm.campaign.settings import CampaignSettings
from cm4vllm.common.errors import SourceUnavailable
from cm4vllm.common.programs.own_program import commit_of_this_repository
from cm4vllm.common.units import SamplesPerSecond, Seconds
from cm4vllm.engine.format.script_catalogue import Catalogue
from cm4vllm.engine.plan.chain import adr_targets
from cm4vllm.engine.plan.plan import plan
from cm4vllm.engine.run.request import Request, Task
from cm4vllm.engine.run.scope import Scope
from cm4vllm.engine.run.session import Session
from cm4vllm.rules import Mode
from cm4vllm.submission.published_program import program_digest
from listing_server import listing_url
from recipes import recipe

ROOT = Path(__file__).resolve().parents[2]


SAMPLES = 13368


JOB = recipe("run-mlperf-inference-app")


#: The exports of a run's recipes, by the first words of their tags.
EXPORTS = {
    "get,mlperf,inference,src": {"CM_MLPERF_INFERENCE_SOURCE": "/src"},
    "get,ml-model": {"CM_ML_MODEL_NAME": "model", "CM_ML_MODEL_RECORD": "/model.json"},
    "get,dataset": {"CM_DATASET_RECORD": "/dataset.json"},
    "get,sut,description": {"CM_SUT_NAME": "sut"},
    "run,vllm-server": {"CM_VLLM_SERVER_RECORD": "/server.json"},
    "get,mlperf,power,src": {"CM_MLPERF_POWER_SOURCE": "power"},
    "app,mlperf,inference,vllm": {"CM_MLPERF_RUN_RECORD": "/run.json"},
}


def write_model(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "vocab_size": 300}')
    header = b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, "added_tokens": []})
    )
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0\0\0")


def asked(tmp_path, variations, flags, files):
    """Return the request of a command line; FILES in a flag stands for the user's files, A_SERVER_URL for a server."""
    given = json.loads(json.dumps(flags).replace("FILES", str(files)).replace("A_SERVER_URL", listing_url()))
    return Request.of(
        {"tags": f"run-mlperf,inference,{variations}", "output_dir": str(tmp_path / "out"), **given}, str(tmp_path)
    )


def home(folder):
    """Return a CM with a home in a folder, which has the recipes of this repository."""
    repo = SimpleNamespace(path=str(ROOT), path_with_prefix=str(ROOT), meta={"alias": "cm4vllm", "uid": ""})
    return SimpleNamespace(repos=SimpleNamespace(lst=[repo]), repos_path=str(folder), index=None)


@cache
def catalogue():
    """Return the recipes of this repository, which a process reads once: no home keeps them."""
    return Catalogue(home(os.devnull))


#: Computed once: each reads a thousand files.
program_sha256, program_commit = cache(program_digest), cache(commit_of_this_repository)


def reached(i):
    """Return what hooks get from i["automation"].adr_targets."""
    return adr_targets(catalogue(), i["tags"])


def planned(tmp_path, request):
    """Return the steps of the plan as it lists them. Raises what the plan fails with."""
    automation = SimpleNamespace(cmind=home(tmp_path), path=str(ROOT / "automation" / "script"), adr_targets=reached)
    session = Session(automation, {})
    session.catalogue = catalogue()
    root = plan(session, request)
    if (failure := root.failure()) is not None:
        raise failure
    return [node for node in root.children if node.why == "step"]


def refused(error, words, folder, variations, **flags):
    """Assert that the plan of a job is refused with an error of this class that has the words in it."""
    with pytest.raises(error) as of_plan:
        planned(folder, asked(folder, variations, flags, folder))
    for word in words:
        assert word in str(of_plan.value)


def environment_of(request):
    """Return the environment that the recipe's hook sees."""
    return Scope.of(Task.of(JOB, request)).env


class Taken:
    """Notes the recipes that a run asks for, returns the exports of the real ones, and fails where the test says."""

    def __init__(self, fails=""):
        self.steps = []
        self.fails = fails

    def __call__(self, tags, env):
        self.steps.append((tags, env))
        if self.fails and tags.startswith(self.fails):
            raise SourceUnavailable("no network")
        return next((given for words, given in EXPORTS.items() if tags.startswith(words)), {})


def executed(monkeypatch, request, *, duration_s=700, fails="", valid=True):
    """Run the job where each file that a LoadGen run leaves would be as given; return what was asked of the recipes."""
    result = SimpleNamespace(
        duration=Seconds(duration_s),
        min_duration=Seconds(600),
        samples_per_second=SamplesPerSecond(9),
        valid=valid,
        target_qps=8.0,
        reasons=["TTFT"],
    )
    run = SimpleNamespace(
        model_name="cm4vllm-tiny",
        dialect=None,
        open_only=[],
        lowered_rate=lambda times: 8.0 - times,
        words="8 pass",
        samples_per_second=SamplesPerSecond(9),
        duration_s=28.0,
        machine_load=None,
        settings=SimpleNamespace(mode=Mode.ACCURACY, target_qps=7.0, target_qps_source="before"),
    )
    for name, value in {
        "planning.step_values.read_record": run,
        "planning.step_values.read_performance": result,
        "planning.step_values.check_vocabulary": None,
        "planning.step_values.check_tokenizer": None,
        "entry.load_sample": None,  # half a second of each job
        "job.load": SimpleNamespace(invalid_results=[]),
        "job.write_summary": None,
        "job.final_table": "",
        "job.program_digest": program_sha256(),
        "job.commit_of_this_repository": program_commit(),
    }.items():
        monkeypatch.setattr(f"cm4vllm.campaign.{name}", lambda *_, value=value: value)
    recipes = Taken(fails)
    changes = amendments(request.inputs.get("adr"), reached)
    settings = CampaignSettings.of(environment_of(request) | changes.settings)
    run_job(settings, recipes, "cm run script", typed_env(request.inputs), changes)
    return recipes.steps
