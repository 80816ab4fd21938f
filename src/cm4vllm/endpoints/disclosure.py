"""The files of a point that its submitter authors: point.yaml, system_desc.json and system_power.json.

Each value comes from the run, the rules, or the submitter's file; a value without a source is left out, and
the official checker then says that it is missing. Keys and words are those of the checker's models
(submission_checker.models.file).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.endpoints.records import PointRecord
from cm4vllm.endpoints.steady_state import SteadyState
from cm4vllm.rules import Regions

#: The word for a point that fills no region, as a dedicated Offline run (rules §8.3, question C7 of the documentation).
OFFLINE_REGION = "submitters_choice"
_WORDS = {"Ultra Low": "low_latency", "Low": "low_concurrency", "Medium": "med_concurrency", "High": "high_concurrency"}


def point_document(record: PointRecord, curve: Regions, stated: Mapping[str, str], warm_up: str) -> dict[str, Any]:
    """Return point.yaml of a point of a curve; keys without a value are left out.

    `stated` are the submitter's statements on the whole curve, by the keys of point.yaml; `warm_up` says what the point
    had before.
    """
    run, seeds = record.run, record.run.seeds
    document = {
        "concurrency": record.terms.concurrency,
        "region": region_word(record, curve),
        "dataset": record.benchmark.dataset,
        "runtime_settings": {
            "load_pattern": "max_throughput" if run.concurrency is None else "concurrency",
            "min_duration_ms": round(record.terms.least_seconds * 1000),
            "min_sample_count": run.samples,
            "stream_all_chunks": False,
            "runtime": {
                "scheduler_rng_seed": seeds.scheduler,
                "sample_index_rng_seed": seeds.sample_index,
                "model_seed": seeds.model,
            },
            "warmup": {"salt": False},
        },
        "warmup": {
            "duration_s": 0,
            "requests_issued": 0,
            "requests_completed": 0,
            "data_source": warm_up,
            "concurrency": 0,
            "logs_retained": True,
        },
        "division": stated["division"],
        "max_supported_concurrency": curve.c_max,
        "model_name": record.benchmark.name,
        "model_precision": stated.get("model_precision"),
        "link_to_model": stated.get("link_to_model"),
        "link_to_model_transformation": stated.get("link_to_model_transformation"),
        "model_notes": stated.get("model_notes"),
        "dataset_name": stated.get("dataset_name"),
        "dataset_type": "Accuracy + Performance" if run.accuracy else "Performance",
        "dataset_link": stated.get("dataset_link"),
        "offline": record.offline,
        "seed_set": seeds.name,
        "target_cohort": stated["target_cohort"],
        "steady_state": _steady_state(record.steady_state),
    }
    return _given(document)


def region_word(record: PointRecord, curve: Regions) -> str:
    """Return the checker's word for the computed region of a point."""
    concurrency = record.terms.concurrency
    if record.offline == "dedicated":
        return OFFLINE_REGION
    if concurrency <= curve.c_min:
        return _WORDS[curve.ultra_low.name]
    for region in (curve.low, curve.medium, curve.high):
        if concurrency in region:
            return _WORDS[region.name]
    return "margin" if concurrency in curve.margin else OFFLINE_REGION


def system_document(
    description: Mapping[str, str],
    stated: Mapping[str, Any],
    *,
    curve: Regions,
    division: str,
    framework: str,
    parallel: Mapping[str, int],
    detected: Mapping[str, int | str],
) -> dict[str, Any]:
    """Return system_desc.json from the system's description (MLPerf Inference's keys) and what its owner states.

    `parallel` has the sizes of the server's groups, `detected` what was detected of a node, both by the checker's keys.
    `stated` wins over what is derived. Counts that the description does not state as whole numbers are left out.
    Raises SubmissionError where what the official builder needs of a node is not known.
    """
    node = {
        "system_node_ensemble_id": 1,
        **{key: _count(description, key) for key in _NODE_COUNTS},
        "host_processor_model_name": description["host_processor_model_name"],
        **{key: description[key] for key in _NODE_TEXTS if description.get(key)},
        "accelerator_info": _accelerators(description),
        "inference_backend": framework,
        **detected,
        **stated.get("node", {}),
    }
    if missing := missing_of_node(node, REQUIRED_OF_NODE):
        raise SubmissionError(
            f"the system's description lacks {', '.join(missing)}",
            cause="the official builder needs them of each node, and they were not detected on this machine",
            remedy="state them as keys of `node` in a file for --submitter_file",
        )
    document = {
        "submitter_org_names": description["submitter"],
        "system_name": description["system_name"],
        "system_availability_status": description["status"],
        "max_supported_concurrency": curve.c_max,
        "system_node_ensemble_count": 1,
        "system_node_ensemble_total": _count(description, "number_of_nodes"),
        "serving_framework": framework,
        "division": division,
        **parallel,
    }
    document |= {key: value for key, value in stated.items() if key not in ("node", "power")}
    return _given(document) | {"node_types": [_given(node)]}


def missing_of_node(node: Mapping[str, Any], required: Sequence[str]) -> list[str]:
    """Return which of the `required` keys a node lacks, and the size of its processors where it has neither key."""
    missing = [key for key in required if not node.get(key)]
    if not any(node.get(key) for key in _PROCESSORS):
        missing.append(" or ".join(_PROCESSORS))
    return missing


#: What the checker's model of a node requires, and the keys of which it requires one.
REQUIRED_OF_NODE = ("host_memory_configuration", "host_network_card_count", "driver", "filesystem")
_PROCESSORS = ("host_processor_core_count", "host_processor_vcpu_count")
_NODE_COUNTS = ("number_of_nodes", "host_processors_per_node", "host_processor_core_count")
_NODE_TEXTS = (
    "host_memory_capacity",
    "host_memory_configuration",
    "host_network_card_count",
    "host_networking",
    "host_storage_capacity",
    "host_storage_type",
    "hw_notes",
    "cooling",
    "operating_system",
    "other_software_stack",
    "sw_notes",
)


def _accelerators(description: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the accelerators of a node; none for a system that serves on its processors."""
    count = _count(description, "accelerators_per_node")
    if not count:
        return []
    return [
        _given(
            {
                "accelerator_model_name": description["accelerator_model_name"],
                "accelerators_per_node": count,
                "accelerator_memory_capacity": description["accelerator_memory_capacity"],
                "accelerator_memory_type": description["accelerator_memory_configuration"],
                "accelerator_interconnect": description["accelerator_interconnect"],
                "accelerator_host_interconnect": description["accelerator_host_interconnect"],
            }
        )
    ]


def _steady_state(steady_state: SteadyState | None) -> dict[str, Any] | None:
    if steady_state is None:
        return None
    block: dict[str, Any] = msgspec.to_builtins(steady_state)
    for own in ("figures", "blocks", "least_variation"):
        block.pop(own)
    return {key: value for key, value in block.items() if value is not None}


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in ("", None)}


def _count(description: Mapping[str, str], key: str) -> int | None:
    """Return a count that the description states as a whole number."""
    return whole_number(description.get(key, ""))
