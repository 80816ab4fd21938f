"""A small job of MLPerf Endpoints in a process: `python small_curve.py FOLDER [CLIENT] [KEY=VALUE ...]`.

SAMPLES are those of a pass, SECONDS those of a point at least; other keys are of the environment. The schedule, its
execution, the ledger, the probes, the supervisors and the events' steady state are the real ones; recipes are plain
functions here. The server is the simulated one unless one is given, and without CLIENT, the record of a client,
small_client.py is the client. The official builder and checker are left out. Like `cm`, it ends with the exit code of
what failed.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from cm4vllm.campaign import rehearsal
from cm4vllm.campaign.endpoints import job
from cm4vllm.campaign.endpoints.settings import EndpointsSettings
from cm4vllm.common.errors import CmError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.records import write_record
from cm4vllm.endpoints import curve_plan
from cm4vllm.endpoints.client import ClientInstallation
from cm4vllm.endpoints.curve_search import CurveInputs, find_curve
from cm4vllm.endpoints.point import PointInputs, measure_point
from cm4vllm.records.assets import STAND_IN_SOURCE, DatasetRecord, ModelRecord
from cm4vllm.records.server import Api
from cm4vllm.serving.launch import end, launch, start_servers
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.planned_servers import Planned
from text_server import save_model

PROFILE = Path(__file__).parents[2] / "benchmarks/fault_injection/small.yaml"
NAME, PASS = "small", 8


class Recipes:
    """The recipes of the job, by the beginnings of their tags."""

    def __init__(self, folder, client, samples, given):
        self._folder, self._client, self._samples, self._given, self.server = folder, client, samples, given, ""
        self._by_tags = {
            "get,mlperf,endpoints,_client": lambda env: {"CM_MLPERF_ENDPOINTS_CLIENT": str(client)},
            "get,ml-model": self._model,
            "get,dataset": self._dataset,
            "run,vllm-server": self._started,
            "find,mlperf,endpoints,curve": self._curve,
            "run,mlperf,endpoints,point": self._point,
        }

    def __call__(self, tags, env):
        if "_describe" in tags:
            return {}
        recipe = next((made for words, made in self._by_tags.items() if tags.startswith(words)), None)
        return recipe({**self._given, **env}) if recipe else {}

    def _model(self, _env):
        path, record = self._folder / "model", self._folder / "model.json"
        save_model(path)
        (path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        source = f"made for a test; {STAND_IN_SOURCE}"
        write_record(record, ModelRecord(name=NAME, path=str(path), source=source, sha256="0"))
        return {"CM_ML_MODEL_RECORD": str(record)}

    def _dataset(self, _env):
        path, record, draw = self._folder / "dataset.json", self._folder / "dataset.record.json", random.Random(0)
        prompts = [[1 + draw.randrange(700) for _ in range(draw.randrange(3, 40))] for _ in range(self._samples)]
        path.write_text(json.dumps([{"input": "a", "tok_input": prompt, "output": "a b"} for prompt in prompts]))
        facts = {
            "source": "made here",
            "samples": self._samples,
            "max_input_tokens": 40,
            "sentences": "punkt-untrained",
        }
        write_record(record, DatasetRecord(name="small", path=str(path), sha256=sha256_of(path), **facts))
        return {"CM_DATASET_RECORD": str(record)}

    def _started(self, env):
        folder = Path(env["CM_VLLM_SERVER_DIR"])
        if env.get("CM_MLPERF_INFERENCE_API_SERVER"):
            _, path = launch(LaunchSettings.of(env))
            return {"CM_VLLM_SERVER_RECORD": str(path)}
        part = ServerSettings(model=NAME, name=NAME, api=Api.COMPLETIONS, max_num_seqs=64)
        start = Path(rehearsal.__file__).with_name("start.py")
        words = [sys.executable, str(start), f"--profile={PROFILE}", f"--served-model-name={NAME}", "--port={port}"]
        words += ["--max-num-seqs=64", *env.get("CM_VLLM_SERVER_EXTRA_ARGS", "").split()]
        record = start_servers(Planned(Path(sys.executable), [part], words), folder, 60)
        self.server = str(folder / "server.json")
        return {"CM_VLLM_SERVER_RECORD": self.server, "CM_VLLM_SERVER_ENDPOINT": record.endpoint}

    def _curve(self, env):
        _, path = find_curve(CurveInputs.of(env), PointInputs.of(env))
        return {"CM_MLPERF_ENDPOINTS_CURVE": str(path)}

    def _point(self, env):
        _, path = measure_point(PointInputs.of(env))
        return {"CM_MLPERF_ENDPOINTS_POINT_RECORD": str(path)}


def small_installation(folder):
    """Return the record of small_client.py in the place of the client's Python, with a checkout that has a commit."""
    checkout, record = folder / "checkout", folder / "client.json"
    if not record.exists():
        checkout.mkdir(parents=True)
        git = ["git", "-C", checkout, "-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run([*git, "init", "--quiet"], check=True)
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=empty"], check=True)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        program = folder / "client"
        words = f"{sys.executable} {Path(__file__).with_name('small_client.py')}"
        program.write_text(f'#!/bin/sh\nSMALL_COMMIT={commit} exec {words} "$@"\n')
        program.chmod(0o755)
        write_record(record, ClientInstallation(python=str(program), checkout=str(checkout), commit=commit))
    return record


def main(arguments):
    folder, given = Path(arguments[0]), dict(word.split("=", 1) for word in arguments[1:] if "=" in word)
    clients = [word for word in arguments[1:] if "=" not in word]
    client = Path(clients[0]) if clients else small_installation(folder)
    samples = int(given.pop("SAMPLES", PASS))
    # Points of two seconds: long enough to be interrupted.
    vars(curve_plan)["_REHEARSAL_S"] = float(given.pop("SECONDS", 2.0))
    recipes = Recipes(folder, client, samples, given)
    env = {"OUTPUT_BASE_DIR": str(folder / "results"), "CM_MLPERF_ENDPOINTS_PASS_SAMPLES": str(samples), **given}
    try:
        job.run_job(EndpointsSettings.of(env), recipes, "cm run script --tags=run-mlperf,endpoints", env)
    except CmError as error:
        print(error, flush=True)
        return error.exit_code
    finally:
        end(recipes.server)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main(sys.argv[1:]))
