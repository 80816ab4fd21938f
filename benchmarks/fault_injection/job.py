"""A small whole job in a process: `python job.py FOLDER [KEY=VALUE ...]`, with further settings by environment key.

The schedule, its execution, the ledger, LoadGen, the client and the server's supervisor are the real ones; recipes are
plain functions here, the model is a record without files, and the server is the simulated one with the times of
small.yaml, or of the profile that SMALL_PROFILE names, unless CM_MLPERF_INFERENCE_API_SERVER names another. Like `cm`,
it ends with the exit code of what failed, and a signal gives 128 + its number.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cm4vllm.campaign import job as campaign
from cm4vllm.campaign.rehearsal import launch
from cm4vllm.campaign.settings import CampaignSettings, Job
from cm4vllm.common.errors import CmError
from cm4vllm.common.files import sha256_of, writable_folder, write_text
from cm4vllm.common.records import read_record, write_record
from cm4vllm.common.secrets.redaction import vault
from cm4vllm.loadgen import measurement
from cm4vllm.loadgen.measurement import RunInputs, measure
from cm4vllm.loadgen.settings import run_settings
from cm4vllm.records.accuracy import ACCURACY_FILE, ACCURACY_TEXT, AccuracyRecord
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.serving.launch import end
from cm4vllm.serving.probing.server_probe import probe
from cm4vllm.serving.server import SERVER_FILE

Env = Mapping[str, str]

PROFILE = Path(__file__).with_name("small.yaml")
MODEL, SAMPLES = "small", 256


def main(arguments: list[str]) -> int:
    """Run the job; return its exit code."""
    folder, given = Path(arguments[0]), dict(word.split("=", 1) for word in arguments[1:])
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _stopped)
    settings = CampaignSettings.of(
        {
            "CM_RUN_SUBMISSION_CHECKER": "no",
            "OUTPUT_BASE_DIR": str(folder / "results"),
            "CM_MLPERF_LOADGEN_SCENARIO": "Offline",
            "CM_TEST_QUERY_COUNT": "64",
            **given,
        }
    )
    recipes = _Recipes(folder, given)
    try:
        with vault().guarded_output():
            campaign.run(Job.of(settings), recipes, "job.py", given)
    except CmError as error:
        print(error, flush=True)
        return error.exit_code
    except KeyboardInterrupt as stop:
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)
    finally:
        end(recipes.server)
    return 0


def _stopped(signum: int, _frame: object) -> None:
    raise KeyboardInterrupt(signum)


class _Recipes:
    """The recipes of the job, by the beginnings of their tags. `server` is the path of the server's record."""

    def __init__(self, folder: Path, given: Env) -> None:
        self.server = ""
        self._folder = folder
        self._given = given
        self._profile = given.get("SMALL_PROFILE", str(PROFILE))
        self._by_tags: dict[str, Callable[[Env], dict[str, str]]] = {
            "get,ml-model": self._model,
            "get,dataset": self._dataset,
            "run,vllm-server,_describe": lambda env: launch.act(replace(self._settings(env), action="describe")).env(),
            "run,vllm-server": self._started,
            "get,sut": lambda env: {"CM_SUT_NAME": "sut"},
            "app,": lambda env: {"CM_MLPERF_RUN_RECORD": str(measure(RunInputs.of(env))[1])},
            "process,mlperf,accuracy": _scores,
        }

    def __call__(self, tags: str, env: Env) -> dict[str, str]:
        recipe = next((made for words, made in self._by_tags.items() if tags.startswith(words)), None)
        return recipe({**self._given, **env}) if recipe else {}

    def _model(self, _env: Env) -> dict[str, str]:
        path = self._folder / "model.json"
        write_record(path, ModelRecord(name=MODEL, path="", source="made here", sha256="", min_tokens=2))
        return {"CM_ML_MODEL_RECORD": str(path), "CM_ML_MODEL_NAME": MODEL}

    def _dataset(self, _env: Env) -> dict[str, str]:
        path, draw = self._folder / "dataset.json", random.Random(0)  # noqa: S311 - a dataset
        rows = [
            {
                "input": "text",
                "tok_input": [1 + draw.randrange(700) for _ in range(draw.randrange(3, 40))],
                "output": "text",
            }
            for _ in range(SAMPLES)
        ]
        write_text(path, json.dumps(rows))
        record = self._folder / "dataset.record.json"
        write_record(
            record,
            DatasetRecord(
                name="small",
                path=str(path),
                source="made here",
                sha256=sha256_of(path),
                samples=SAMPLES,
                max_input_tokens=40,
                sentences="punkt-untrained",
            ),
        )
        return {"CM_DATASET_RECORD": str(record)}

    def _settings(self, env: Env) -> launch.SimulatedSettings:
        return replace(launch.SimulatedSettings.of(env), profile=self._profile)

    def _started(self, env: Env) -> dict[str, str]:
        if given := env.get("CM_MLPERF_INFERENCE_API_SERVER"):
            path = writable_folder(Path(env["CM_VLLM_SERVER_DIR"])) / SERVER_FILE
            record = replace(probe(given, MODEL), software="")  # the model has no tokenizer to compare
            write_record(path, record)
            return {
                "CM_VLLM_SERVER_RECORD": str(path),
                "CM_VLLM_SERVER_ENDPOINT": record.endpoint,
                "CM_VLLM_SERVER_MODEL_FOLDER": "",
            }
        exports = launch.act(self._settings(env)).env()
        self.server = exports["CM_VLLM_SERVER_RECORD"]
        return exports


def _scores(env: Env) -> dict[str, str]:
    folder = Path(env["CM_MLPERF_ACCURACY_RESULTS_DIR"])
    run = read_record(folder / RUN_FILE, RunRecord)
    write_text(folder / ACCURACY_TEXT, "no scores: the answers have no meaning\n")
    write_record(
        folder / ACCURACY_FILE,
        AccuracyRecord(
            notice=run.notice,
            scores=[],
            values={},
            samples=run.settings.samples,
            samples_expected=run.settings.samples,
            tokens=run.client.completion_tokens,
            scorer="none",
            verified=0,
            sentences="",
            sentences_sha256="",
            log_sha256=run.files[ACCURACY_LOG],
            files={ACCURACY_TEXT: sha256_of(folder / ACCURACY_TEXT)},
            duration_s=0,
        ),
    )
    return {"CM_MLPERF_ACCURACY_RECORD": str(folder / ACCURACY_FILE)}


def _without_self_check(*args: Any, **kwargs: Any) -> Any:
    return replace(run_settings(*args, **kwargs), self_check=False, num_workers=1)


# The parts that take time and get no faults: the client's self-check, and the pages.
vars(measurement)["run_settings"] = _without_self_check
vars(campaign)["_report"] = lambda *_: None

if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main(sys.argv[1:]))
