"""Results of an earlier command are recognised by what they were made from."""

from cm4vllm.campaign.kept_results import kept_result
from cm4vllm.campaign.planning.step_environment import StepEnvironment
from cm4vllm.campaign.planning.steps import Product, Step
from cm4vllm.common.records import write_record
from cm4vllm.common.settings import env_keys
from cm4vllm.compliance.audit import audit_config, run_settings_of
from cm4vllm.loadgen.identity import settings_sha256
from cm4vllm.loadgen.measurement import RunInputs
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.server import Api, ServerRecord


def test_the_run_of_a_test_is_known_by_the_benchmarks_own_audit(tmp_path):
    records = {
        "model_record": ModelRecord(name="m", path="", source="", sha256=""),
        "dataset_record": DatasetRecord(
            name="d", path="", source="", sha256="", samples=1633, max_input_tokens=9, sentences=""
        ),
        "server_record": ServerRecord(
            endpoint="http://127.0.0.1:1",
            api=Api.TRANSCRIPTIONS,
            model_name="m",
            max_model_len=4096,
            version="",
            owned=False,
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
