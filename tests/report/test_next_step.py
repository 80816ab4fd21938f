"""The line that ends a job names the command or the flag that comes next."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cm4vllm import DUMMY_NOTICE, SIMULATED_NOTICE, STAND_IN_NOTICE
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.accuracy import AccuracyRecord
from cm4vllm.records.assets import DUMMY_SOURCE, STAND_IN_SOURCE
from cm4vllm.records.checker import CHECKER_FILE, CheckerRecord
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.records.server import Simulation
from cm4vllm.report.final_table import next_step
from cm4vllm.results.campaign_results import load

Change = Callable[..., None]

SIMULATION = Simulation(profile="p", title="4 GPUs", sha256="0" * 64, seed=0, faults="", source="measured", system={})


def test_a_rehearsal_leads_to_the_run_by_the_rules(real_runs: Path) -> None:
    assert "--execution_mode=valid" in next_step(load(real_runs))


@pytest.mark.parametrize(
    ("notice", "fields", "words"),
    [
        (STAND_IN_NOTICE, {"settings__model__source": STAND_IN_SOURCE}, "--vllm_model_name="),
        (DUMMY_NOTICE, {"settings__model__source": DUMMY_SOURCE}, "--vllm_model_name="),
        (SIMULATED_NOTICE, {"settings__server__simulated": SIMULATION}, "without --rehearse"),
    ],
)
def test_what_is_no_benchmarks_model_leads_to_a_real_one(
    published: Path, change: Change, notice: str, fields: dict[str, object], words: str
) -> None:
    for path in published.glob(f"runs/*/*/*/*/{RUN_FILE}"):
        change(path, RunRecord, notice=notice, **fields)
    for path in published.glob("runs/*/*/*/*/accuracy.json"):
        change(path, AccuracyRecord, notice=notice)
    assert words in next_step(load(published))


def test_a_result_leads_to_its_check_and_then_to_the_archive(published: Path, real_runs: Path, change: Change) -> None:
    assert next_step(load(published)) == ""  # no tree was built
    tree = published / "submission"
    (tree / "open" / "NeuralMagic").mkdir(parents=True)
    assert next_step(load(published)) == f"cm run script --tags=check,mlperf,results --input={tree}"
    shutil.copy(real_runs / CHECKER_FILE, published / CHECKER_FILE)
    assert next_step(load(published)) == f"cm run script --tags=pack,mlperf,submission --submission_dir={tree}"
    refused = read_record(published / CHECKER_FILE, CheckerRecord)
    change(published / CHECKER_FILE, CheckerRecord, passed=False)
    assert next_step(load(published)) == ""
    write_record(published / CHECKER_FILE, refused)
    change(next(published.glob(f"runs/*/*/Server/performance/{RUN_FILE}")), RunRecord, client__failed=1)
    assert next_step(load(published)) == ""
