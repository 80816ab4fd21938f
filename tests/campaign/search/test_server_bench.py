"""Candidates measured on servers that are started for them: simulated ones, by real LoadGen runs."""

import pytest

from cm4vllm.campaign.search.server_bench import ServerBench
from cm4vllm.campaign.search.settings_job import SettingsJob, _keep_what_was_made_from
from cm4vllm.common.files import write_text
from cm4vllm.common.folders.owned_folders import begun_folder
from cm4vllm.common.records import read_record, write_record
from cm4vllm.loadgen.measurement import RunInputs
from cm4vllm.records.server import ServerRecord

PROFILE = """
title: a test's
source: assumed
derivation: [none]
benchmark: llama3.1-8b
vllm: 0.32.0
system: {}
server: {step_s: 0.02, each_s: 0.0, token_s: 0.0, noise: 0.0, max_num_seqs: 64, max_num_batched_tokens: 512,
  max_model_len: 2048, kv_tokens: 100000}
prompts: {shares: [0, 1], tokens: [20, 20]}
answers: {shares: [0, 1], tokens: [30, 30]}
"""


def test_a_candidate_is_measured_on_a_server_that_is_started_with_its_options(tmp_path, make_settings):
    run = make_settings("http://127.0.0.1:1", "Offline", "performance")
    (tmp_path / "machine.yaml").write_text(PROFILE)
    for name in ("model", "dataset"):
        write_record(tmp_path / f"{name}.json", getattr(run, name))
    records = {f"{name}_record": str(tmp_path / f"{name}.json") for name in ("model", "dataset")}
    inputs = RunInputs(scenario="Offline", mode="performance", num_workers=1, **records)
    env = {"CM_MLPERF_REHEARSE": str(tmp_path / "machine.yaml"), "CM_ML_MODEL_RECORD": records["model_record"]}
    job = SettingsJob.of(env)
    bench = ServerBench(tmp_path / "search", lambda *place: job.start(*place).record, "", [inputs], inputs)
    try:
        made = bench.measure(1, {"max-num-seqs": 2}, 0, 8.0)
        server = read_record(tmp_path / "search" / "candidate-001" / "server" / "server.json", ServerRecord)
    finally:
        bench.close()
    assert made.failure == ""
    assert server.simulated.title == "a test's" and server.argv[-1] == "--max-num-seqs=2"
    # Two answers at a time give 100 tokens/s at most, less where this machine is busy; 64 would give 3,200.
    assert 30 < made.scenarios[0].value <= 2 / 0.02 * 1.01
    assert made.took_s < 8 + 30, "the server gives up what is still open when the run is ended"


@pytest.mark.parametrize("mine", ["trial/notes.txt", "server/thesis.tex", "own/a/b"])
def test_files_of_the_user_among_candidates_of_other_inputs_are_kept(tmp_path, capsys, mine):
    place = tmp_path / "candidate-001"
    with begun_folder(place / "trial"):
        write_text(place / "trial" / "log", "measured")
    _keep_what_was_made_from(tmp_path, "1")  # the folder was made from nothing that is known
    write_text(place / mine, "mine")
    _keep_what_was_made_from(tmp_path, "1")
    assert (place / mine).read_text() == "mine"
    _keep_what_was_made_from(tmp_path, "2")
    assert (tmp_path / "kept-candidate-001" / mine).read_text() == "mine" and not place.exists()
    assert "kept-candidate-001" in capsys.readouterr().out


def test_candidates_of_other_inputs_are_removed(tmp_path):
    for place in ("trial", "round-1"):
        with begun_folder(tmp_path / "candidate-001" / place):
            write_text(tmp_path / "candidate-001" / place / "log", "measured")
    _keep_what_was_made_from(tmp_path, "2")
    assert [path.name for path in tmp_path.iterdir()] == ["inputs.sha256"]
