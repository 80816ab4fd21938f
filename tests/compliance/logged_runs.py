"""Runs of compliance tests that the real LoadGen makes against the test peer.

As a program, `logged_runs.py TEST SCENARIO FOLDER` makes one, verifies it and prints the verdict.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "loadgen"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_vllm import FakeVllm, prompt

from builders import short_dataset
from cm4vllm.compliance.audit import audit_config
from cm4vllm.compliance.verification import verify_run
from cm4vllm.loadgen.process.runner import run
from cm4vllm.loadgen.settings import run_settings
from cm4vllm.loadgen.user_conf import user_conf
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.rules import ExecutionMode, Mode, Scenario, terms

SAMPLES = 64


def make_dataset(folder: Path) -> DatasetRecord:
    """Write a short dataset into a folder and return its record."""
    return short_dataset(folder, [prompt(i) for i in range(SAMPLES)])


def make_logged_run(test: str, scenario: str, folder: Path, dataset: DatasetRecord) -> Path:
    """Make the run of a test in a scenario below `folder`, which stands for the model's; return the run's folder."""
    conf = user_conf(
        terms("v6.1", "llama3.1-8b", Scenario(scenario), Mode.PERFORMANCE),
        ExecutionMode.TEST,
        target_qps=200,
        dataset_samples=SAMPLES,
    )
    model = ModelRecord(name="tiny", path=str(folder), source="made by the test", sha256="", min_tokens=2)
    with FakeVllm() as server:
        settings = run_settings(
            conf,
            model=model,
            dataset=dataset,
            target_qps=200,
            self_check=False,
            compliance_test=test,
            audit_config=audit_config(test),
            server=ServerRecord(
                endpoint=server.endpoint, model_name="tiny", max_model_len=2048, version="0", owned=False
            ),
        )
        run(settings, folder / scenario / test)
    return folder / scenario / test


if __name__ == "__main__":
    name, scenario, place = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    record = verify_run(make_logged_run(name, scenario, place, make_dataset(place)))
    print((place / scenario / name / record.file).read_text(encoding="utf-8"), end="")
    print(record.test, "passed" if record.passed else "failed", record.answers)
