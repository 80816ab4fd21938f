"""The YAML file with the facts that only the submitter of a curve knows; a missing one is not filled in."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from cm4vllm.common.bounded_documents import read_yaml
from cm4vllm.common.errors import UsageError

#: The file to fill in.
TEMPLATE = """\
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


class SubmitterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The statements of the file; empty where it states nothing."""

    division: Literal["Standardized", "Serviced", "RDI"] = "RDI"
    system: dict[str, Any] = {}
    node: dict[str, Any] = {}
    model: dict[Literal["model_precision", "link_to_model", "link_to_model_transformation", "model_notes"], str] = {}
    dataset: dict[Literal["dataset_name", "dataset_link"], str] = {}
    power: Power | None = None

    def power_document(self, system_name: str, nodes: int) -> dict[str, Any] | None:
        """Return system_power.json; None where no power is stated."""
        if self.power is None:
            return None
        node_set = {
            "node_set_id": 1,
            "system_node_ensemble_id": 1,
            "nodes_provisioned": self.power.nodes_provisioned or nodes,
            "power_method": "component_sum",
            "components": self.power.components,
        }
        document = {
            "system_desc_id": system_name,
            "cooling": self.power.cooling,
            "node_sets": [node_set],
            "scale_out": self.power.scale_out,
        }
        return {**document, "notes": self.power.notes} if self.power.notes else document


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
