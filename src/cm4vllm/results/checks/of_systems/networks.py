"""Systems on other machines than LoadGen: which divisions have them, their description, and the name that they give."""

from collections.abc import Iterator, Mapping
from typing import Any

from cm4vllm.common.checking.checks import Fault, Stage, check
from cm4vllm.records.described_system import NETWORK_KEYS, NOT_STATED
from cm4vllm.records.run import NETWORK_SUT
from cm4vllm.results.checks.subjects import described, measured, with_submission
from cm4vllm.results.model import Performance, Result, Submission, System
from cm4vllm.rules import Division, over_network

__all__: list[str] = []

_IS_NETWORK = NETWORK_KEYS[0]


@check(
    "NETWORK-SYSTEM",
    source="tools/submission/submission_checker/constants.py, SYSTEM_DESC_REQUIRED_FIELDS_NETWORK_MODE",
    remedy="state the network in systems/<system>.json, or submit to the open division",
    stage=Stage.TREE,
    each=with_submission(described),
)
def as_network(submission: Submission, system: System, stated: Mapping[str, Any]) -> Iterator[Fault]:
    """Systems of the network division are described as such, with every field of the network; those of the closed
    division are none.
    """
    wanted = submission.division in list(Division) and over_network(Division(submission.division))
    if submission.division != Division.OPEN and _is_network(stated.get(_IS_NETWORK)) is not wanted:
        yield Fault(
            f"the system description does not fit the {submission.division} division",
            system.file,
            _IS_NETWORK,
            str(stated.get(_IS_NETWORK, "")),
            "true" if wanted else "nothing",
        )
    # The official checkers ask for the fields wherever the first one says anything, were it "false".
    asked = NETWORK_KEYS[1:] if stated.get(_IS_NETWORK) else ()
    if missing := [key for key in asked if str(stated.get(key, "")).strip() in ("", NOT_STATED)]:
        yield Fault("the network is not described", system.file, ", ".join(missing), "nothing", "a value")


@check(
    "NETWORK-NAME",
    source='inference_policies/inference_rules.adoc, "QDL Constraints"; constants '
    "NETWORK_MODE_REQUIRED_SUBSTRING_IN_SUT_NAME",
    remedy="measure again with a query dispatch library that asks each node for its name",
    stage=Stage.TREE,
    each=with_submission(measured),
)
def named(submission: Submission, result: Result, part: Performance) -> Iterator[Fault]:
    """A system on other machines than LoadGen names itself "{NETWORK_SUT}" to it."""
    system, name = submission.system(result.system), str(part.settings.get("sut_name", ""))
    if system and _is_network(system.description.get(_IS_NETWORK)) and NETWORK_SUT not in name:
        yield Fault("the system names itself otherwise", part.log, "sut_name", name, f"{NETWORK_SUT}: ...")


def _is_network(value: object) -> bool:
    return str(value).lower() == "true"
