"""The authored files of a point: each value has a source, and what has none is left out or asked for."""

import pytest
from made_points import BENCHMARK, CURVE, DESCRIPTION, SEEDS, STATED, point_record

from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.endpoints.disclosure import point_document, region_word, system_document
from cm4vllm.endpoints.steady_state import SteadyState
from cm4vllm.endpoints.submitter_file import read_submitter_file
from cm4vllm.rules import point_terms


def point(concurrency=14, offline="none"):
    return point_record(
        point_terms(BENCHMARK, concurrency, CURVE, offline=offline == "dedicated"),
        samples=66_840,
        offline=offline,
        steady_state=SteadyState(status="insufficient_passes", verdict="not found", blocks=4, least_variation=0.2),
    )


def test_a_value_that_is_not_stated_is_left_out():
    stated = {"division": "RDI", "target_cohort": "2026-11-C1", "model_precision": "FP8"}
    document = point_document(point(), CURVE, stated, "none: no requests before the run")
    assert document["model_precision"] == "FP8"
    assert "link_to_model" not in document and "dataset_name" not in document
    assert document["runtime_settings"]["runtime"]["model_seed"] == SEEDS.model
    assert document["warmup"]["data_source"] == "none: no requests before the run"
    assert document["steady_state"] == {"status": "insufficient_passes", "verdict": "not found", "state": {}}


def test_the_region_of_a_point_is_the_computed_one():
    words = {concurrency: region_word(point(concurrency), CURVE) for concurrency in (8, 14, 32, 256, 260)}
    assert words == {
        8: "low_latency",
        14: "low_concurrency",
        32: "med_concurrency",
        256: "high_concurrency",
        260: "margin",
    }
    assert region_word(point(13_368, offline="dedicated"), CURVE) == "submitters_choice"


def test_a_key_of_a_node_that_is_neither_detected_nor_stated_is_asked_for():
    given = {"curve": CURVE, "division": "RDI", "framework": "vLLM 0.32.0", "parallel": {}}
    detected = {"driver": "580.65.06", "filesystem": "ext4"}
    system = system_document(DESCRIPTION, {**STATED, "node": {}}, detected=detected, **given)
    assert system["node_types"][0]["filesystem"] == "ext4"
    assert system["max_supported_concurrency"] == CURVE.c_max
    with pytest.raises(SubmissionError, match="lacks driver, filesystem") as refused:
        system_document(DESCRIPTION, {**STATED, "node": {}}, detected={}, **given)
    assert "--submitter_file" in str(refused.value)
    virtual = {**DESCRIPTION, "host_processor_core_count": "2 virtual cores"}
    with pytest.raises(SubmissionError, match="lacks host_processor_core_count or host_processor_vcpu_count"):
        system_document(virtual, {**STATED, "node": {}}, detected=detected, **given)
    assert system_document(virtual, STATED, detected={**detected, "host_processor_vcpu_count": 2}, **given)


def test_a_key_that_point_yaml_does_not_have_is_refused_before_anything_is_measured(tmp_path):
    path = tmp_path / "submitter.yaml"
    path.write_text("model: {model_precision: FP8}\ndataset: {dataset_link: https://example.org}\n")
    assert read_submitter_file(path).model == {"model_precision": "FP8"}
    path.write_text("model: {precision: FP8}\n")
    with pytest.raises(UsageError, match="cannot be used") as refused:
        read_submitter_file(path)
    assert "'precision'" in refused.value.cause
