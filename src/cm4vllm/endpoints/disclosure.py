"""The files of a point that its submitter authors: point.yaml, system_desc.json and system_power.json.

What only the submitter knows stands in a YAML file; a missing fact is not filled in.

Each value comes from the run, the rules, or the submitter's file; a value without a source is left out, and
the official checker then says that it is missing. Keys and words are those of the checker's models
(submission_checker.models.file).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from cm4vllm.common.bounded_documents import read_yaml
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.terminal_text import whole_number
from cm4vllm.endpoints.records import PointRecord
from cm4vllm.endpoints.steady_state import SteadyState
from cm4vllm.records.server import ServerRecord
from cm4vllm.rules import Regions

#: The word for a point that fills no region, as a dedicated Offline run (rules §8.3, question C7 of the documentation).
OFFLINE_REGION = "submitters_choice"
_WORDS = {
    "Ultra Low": "low_latency",
    "Low": "low_concurrency",
    "Medium": "med_concurrency",
    "High": "high_concurrency",
    "margin": "margin",
}


def point_document(
    record: PointRecord,
    curve: Regions,
    stated: Mapping[str, str],
    warm_up: str,
    *,
    steps: Sequence[str] = (),
    more: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """Return point.yaml of a point of a curve; keys without a value are left out.

    `stated` are the submitter's statements on the whole curve, by the keys of point.yaml, `more` those on the point;
    `warm_up` is what the point had before, `steps` what its server did before its first request, both in words.
    """
    run, seeds = record.run, record.run.seeds
    document = {
        "concurrency": record.terms.concurrency,
        "region": region_word(record, curve),
        "dataset": record.benchmark.dataset,
        "runtime_settings": {
            "load_pattern": "max_throughput" if run.concurrency is None else "concurrency",
            "min_duration_ms": run.min_duration_ms,
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
            "initialization_steps": list(steps),
            "logs_retained": True,
        },
        "concurrency_reached": None if record.in_flight is None else round(record.in_flight, 2),
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
        "dataset_sha256": record.dataset_sha256,
        "offline": record.offline,
        "seed_set": seeds.name,
        "target_cohort": stated["target_cohort"],
        "steady_state": _steady_state(record.steady_state) if record.steady_state else None,
    }
    return _given_values({**document, **more})


def initialization_steps(server: ServerRecord) -> list[str]:
    """Return in words what a server did before its first request, as far as its record has it (rules §6.3.3)."""
    if not server.owned:
        return ["not known: the server was not started by cm4vllm"]
    if server.simulated is not None:
        return [f"{server.named} was started; it is a simulated server, without a model"]
    weights = (
        "random ones were made" if server.options.get("load-format") == "dummy" else "loaded from the model's folder"
    )
    graphs = "no compilation and no capture of graphs, by --enforce-eager"
    if server.options.get("enforce-eager") is not True:
        graphs = "its own compilation, and capture of graphs where its device has them, by its options and defaults"
    ready = f"ready after {server.ready_after_s:,.0f} s" if server.ready_after_s is not None else "ready"
    return [
        f"{server.named} was started",
        f"weights: {weights}",
        graphs,
        f"{ready}; then short requests by which cm4vllm finds out what the server can do",
    ]


def region_word(record: PointRecord, curve: Regions) -> str:
    """Return the checker's word for the computed region of a point."""
    concurrency = record.terms.concurrency
    if record.offline == "dedicated":
        return OFFLINE_REGION
    if concurrency <= curve.c_min:
        return _WORDS[curve.ultra_low.name]
    regions = (region for region in (curve.low, curve.medium, curve.high, curve.margin) if concurrency in region)
    return next((_WORDS[region.name] for region in regions), OFFLINE_REGION)


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
        **{key: whole_number(description.get(key, "")) for key in _NODE_COUNTS},
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
        "system_node_ensemble_total": whole_number(description.get("number_of_nodes", "")),
        "serving_framework": framework,
        "division": division,
        **parallel,
    }
    document |= {key: value for key, value in stated.items() if key not in ("node", "power")}
    return _given_values(document) | {"node_types": [_given_values(node)]}


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
    if not (count := whole_number(description.get("accelerators_per_node", ""))):
        return []
    return [
        _given_values(
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


def _steady_state(steady_state: SteadyState) -> dict[str, Any]:
    content = msgspec.to_builtins(steady_state)
    return _given_values({key: content[key] for key in ("status", "verdict", "window", "state", "anomaly")})


def _given_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in ("", None)}


#: The file to fill in.
SUBMITTER_TEMPLATE = """\
# What cannot be measured or detected of a curve of MLPerf Endpoints. Fill in what you know, remove the # before it, and
# give the file with --submitter_file. It is published with the results: no user names, host names or addresses.
#division: Standardized        # Standardized, Serviced or RDI; without it, RDI
#system:                       # keys of system_desc.json (rules, section 8.2)
#  system_availability_status: Available      # Available, Preview or RDI
#  availability_url: https://
#  target_availability_date: 2027-01-31       # of a Preview system
#  shortened_system_name: at most 20 characters
#  system_size: 1 node
#node:                         # keys of each of its nodes
#  driver: 580.65.06
#  filesystem: ext4
#  host_processor_core_count: 96
#  host_memory_configuration: 12x 64 GB DDR5-4800
#  host_network_card_count: "2"
#  cooling: air
#model:                        # keys of point.yaml
#  model_precision: FP8
#  link_to_model: https://
#  link_to_model_transformation: https://
#  model_notes: ""
#sparsity:                     # approximate sparsity at run time, if there is any (rules, section 2.9.6.4)
#  method: softmax thresholding
#  source: https://
#  threshold: {1: 0.1, 32: 0.2}             # one for all points, or one for each concurrency
#  calibration: how the threshold was chosen, and with which data
#  schedule: ""
#initialization_steps:         # what a server at --api_server did before its first request (rules, section 6.3.3)
#  - weights loaded
#dataset:
#  dataset_name: CNN/DailyMail 3.0.0
#  dataset_link: https://
#power:                        # system_power.json (rules, appendix E); each value with its source
#  cooling: air                # air or liquid
#  components:                 # of one node
#    cpu: {model: AMD EPYC 9654, count_per_node: 2,
#          tdp_per_unit: {value_w: 360, source_type: vendor_spec, source: "https://"}}
#    accelerator: {model: NVIDIA H100, count_per_node: 8,
#                  tdp_per_unit: {value_w: 700, source_type: vendor_spec, source: "https://"}}
#    scale_up_network: {method: none}
#  scale_out: {present: false}
"""


class Power(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provisioned power of the system's nodes, all of one kind."""

    cooling: Literal["air", "liquid"]
    components: dict[str, Any]
    scale_out: dict[str, Any]
    nodes_provisioned: int | None = None
    notes: str = ""


class Sparsity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Approximate sparsity of the run time (rules §2.9.6.6); the threshold is one, or one for each concurrency."""

    method: str
    source: str
    threshold: float | str | dict[int, float]
    calibration: str
    schedule: str = ""

    def at(self, concurrency: int) -> dict[str, Any]:
        """Return what point.yaml of a point states. Raises SubmissionError where no threshold is stated for it."""
        threshold = self.threshold.get(concurrency) if isinstance(self.threshold, dict) else self.threshold
        if threshold is None:
            raise SubmissionError(
                f"the submitter file has no threshold of the sparsity at concurrency {concurrency}",
                cause="the rules ask for the value at each point (§2.9.6.6)",
                remedy="add it to `threshold` of `sparsity`, or state one for all points",
            )
        return _given_values({**msgspec.to_builtins(self), "threshold": threshold})


class SubmitterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The statements of the file; empty where it states nothing."""

    division: Literal["Standardized", "Serviced", "RDI"] = "RDI"
    system: dict[str, Any] = {}
    node: dict[str, Any] = {}
    model: dict[Literal["model_precision", "link_to_model", "link_to_model_transformation", "model_notes"], str] = {}
    dataset: dict[Literal["dataset_name", "dataset_link"], str] = {}
    power: Power | None = None
    sparsity: Sparsity | None = None
    initialization_steps: tuple[str, ...] = ()

    def of_point(self, concurrency: int, nodes: int) -> dict[str, Any]:
        """Return what the file states of a point, by the keys of point.yaml; each point engages all nodes.

        Raises SubmissionError where a point lacks a value.
        """
        power = None if self.power is None else [{"system_node_ensemble_id": 1, "nodes": self.nodes_provisioned(nodes)}]
        return {"nodes_used": power, "sparsity": self.sparsity.at(concurrency) if self.sparsity else None}

    def nodes_provisioned(self, nodes: int) -> int:
        """Return the nodes that the stated power is of; `nodes` are those of the system."""
        return (self.power.nodes_provisioned if self.power else None) or nodes

    def power_document(self, system_name: str, nodes: int) -> dict[str, Any] | None:
        """Return system_power.json; None where no power is stated."""
        if self.power is None:
            return None
        node_set = {
            "node_set_id": 1,
            "system_node_ensemble_id": 1,
            "nodes_provisioned": self.nodes_provisioned(nodes),
            "power_method": "component_sum",
            "components": self.power.components,
        }
        return _given_values(
            {
                "system_desc_id": system_name,
                "cooling": self.power.cooling,
                "node_sets": [node_set],
                "scale_out": self.power.scale_out,
                "notes": self.power.notes,
            }
        )


def read_submitter_file(path: Path | None) -> SubmitterFile:
    """Return the statements of a submitter file; none if no file is given. Raises UsageError for an invalid file."""
    if path is None:
        return SubmitterFile()
    try:
        return msgspec.convert(read_yaml(path) or {}, SubmitterFile)
    except OSError as error:
        raise UsageError(f"cannot read the submitter file {path}", cause=str(error.strerror)) from error
    except ValueError as error:
        raise UsageError(
            f"the submitter file {path} cannot be used",
            cause=str(error),
            remedy="the template beside the points, submitter.template.yaml, shows its keys",
        ) from error
