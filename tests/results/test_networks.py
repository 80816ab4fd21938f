"""Trees of the network division: the description, and the name that the system gives LoadGen."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import good_tree
import pytest

from cm4vllm.records.described_system import NETWORK_KEYS
from cm4vllm.results.check_command.tree_check import check_tree

NETWORK = dict.fromkeys(NETWORK_KEYS, "as stated") | {"is_network": "true"}
PYSUT, NAMED = '"sut_name", "value": "PySUT"', '"sut_name", "value": "Network SUT: node-1"'


@pytest.fixture(scope="module")
def change(
    neural_magic: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, dict[str, Any], str], list[str]]:
    """Make a tree of a division with that added to its description, and that name in its logs; return what is found."""
    base = tmp_path_factory.mktemp("networks") / "network" / "Somebody"
    good_tree.make(base, neural_magic)
    file = base / "systems" / f"{good_tree.SYSTEM}.json"
    stated = json.loads(file.read_text())
    logs = list(base.glob("results/*/*/*/*/**/mlperf_log_detail.txt"))
    names = {path: path.read_text() for path in logs}
    assert all(text.count(PYSUT) == 1 for text in names.values())

    def make(division: str, network: dict[str, Any], name: str) -> list[str]:
        home = next(base.parents[1].glob("*/Somebody"))
        home.parent.rename(base.parents[1] / division)
        home = base.parents[1] / division / "Somebody"
        (home / "systems" / file.name).write_text(json.dumps(stated | {"division": division} | network))
        for path, text in names.items():
            (home / path.relative_to(base)).write_text(text.replace(PYSUT, name))
            summary = (home / path.relative_to(base)).with_name("mlperf_log_summary.txt")
            stated_name = name.rpartition(': "')[2].rstrip('"')
            summary.write_text(re.sub(r"(?m)^SUT name : .*$", f"SUT name : {stated_name}", summary.read_text()))
        all_findings = check_tree(base.parents[1]).findings
        return [
            f"{finding.code} {finding.severity}: {finding.field}"
            for finding in all_findings
            if finding.code != "MODEL-NOT-VERIFIABLE"
        ]

    return make


@pytest.mark.parametrize(
    ("division", "network", "name", "expected"),
    [
        ("network", NETWORK, NAMED, []),
        ("network", NETWORK, PYSUT, ["NETWORK-NAME error: sut_name"] * 2),
        ("network", {}, NAMED, ["NETWORK-SYSTEM error: is_network"]),
        (
            "network",
            {**NETWORK, "nic_sut": "", "network_rate": "not stated"},
            NAMED,
            ["NETWORK-SYSTEM error: network_rate, nic_sut"],
        ),
        ("closed", NETWORK, NAMED, ["NETWORK-SYSTEM error: is_network"]),
        ("closed", {"is_network": "false"}, PYSUT, [f"NETWORK-SYSTEM error: {', '.join(NETWORK_KEYS[1:])}"]),
        ("closed", {}, NAMED, []),
        ("open", NETWORK, NAMED, []),
        ("open", NETWORK, PYSUT, ["NETWORK-NAME error: sut_name"] * 2),
    ],
)
def test_a_system_over_a_network_is_described_and_named_so(change, division, network, name, expected):
    assert sorted(text for text in change(division, network, name) if not text.startswith("README-")) == expected
