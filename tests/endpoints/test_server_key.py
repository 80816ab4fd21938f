"""A server's key in a run of the reference client: sent with each request, and written nowhere."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from cm4vllm.common.files import sha256_of
from cm4vllm.common.records import read_record
from cm4vllm.endpoints.client import ClientInstallation, run_client
from cm4vllm.endpoints.client_config import ClientRun
from cm4vllm.endpoints.client_folder import client_environment, datasets_of_ours, prepare_folder
from cm4vllm.records.assets import STAND_IN_SOURCE, DatasetRecord, ModelRecord
from cm4vllm.rules import seed_set
from gateway import Gateway
from text_server import MODEL, TextServer, save_model
from traps import imported, set_traps

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
        run = ClientRun(
            folder="point-1",
            endpoints=(gateway.endpoint,),
            api="openai_completions",
            model=MODEL,
            dataset=measured,
            samples=SAMPLES,
            concurrency=2,
            seeds=seed_set("2026-11-C1"),
            max_tokens=8,
            temperature=0,
            top_p=1,
            scored=(scored,),
            accuracy_samples=SAMPLES,
            key_variable=VARIABLE,
            workers=1,
        )
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
