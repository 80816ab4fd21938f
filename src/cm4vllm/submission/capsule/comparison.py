"""Comparisons of capsules: of the results at several paths, and of a capsule's environment with the one here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cm4vllm import __version__
from cm4vllm.common.errors import UsageError
from cm4vllm.common.own_program import commit_of_this_repository, url_of_this_repository
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.hardware.system_description import SystemAsked, describe_system
from cm4vllm.records.described_system import KEYS, NETWORK_KEYS
from cm4vllm.results.capsule import Capsule
from cm4vllm.results.compared_settings import ComparedSetting, Group, compare_settings, settings_of
from cm4vllm.results.comparison import Comparison, compare
from cm4vllm.submission.campaign_software import detect_software
from cm4vllm.submission.capsule.capsules_at_path import capsules_at
from cm4vllm.submission.published_program import program_digest

__all__ = ["compare_environment", "compare_paths"]

#: Results side by side at most: a page and a terminal have so much room.
MOST = 6
#: Keys of a system's description without those of the submission.
_OF_THE_MACHINE = {*KEYS, *NETWORK_KEYS} - {
    *("submitter", "division", "status", "hw_notes", "sw_notes", "system_type", "system_type_detail", "framework")
}


def compare_paths(paths: Sequence[Path]) -> Comparison:
    """Compare the results below these folders, each a campaign's, a tree's, that of a system or model, or a capsule.

    Raises UsageError where there are fewer than two or more than MOST, or nothing that two of them have; and what
    capsules_at raises.
    """
    capsules = [(path, capsule) for path in paths for capsule in capsules_at(path)]
    if len(capsules) < 2:
        raise UsageError(
            "there is one result alone, and nothing to compare it with",
            cause=", ".join(map(str, paths)),
            remedy="give a second folder or capsule with --input=A,B",
        )
    if len(capsules) > MOST:
        raise UsageError(
            f"{len(capsules)} results side by side are too many to read",
            cause=", ".join(capsule.title for _, capsule in capsules[:MOST]) + ", ...",
            remedy=f"give the folders of at most {MOST} systems or models, as TREE/open/NAME/results/SYSTEM",
        )
    comparison = compare(capsules)
    if not comparison.blocks:
        raise UsageError(
            "there is nothing to compare",
            cause="; ".join(
                f"{side.path} has {', '.join(' '.join(key) for key in side.results)}" for side in comparison.sides
            ),
            remedy="give results of the same benchmark in the same scenario",
        )
    return comparison


def compare_environment(capsule: Capsule) -> list[ComparedSetting]:
    """Compare the program, packages and machine of a capsule with this program, its packages and this machine."""
    software = detect_software()
    asked = SystemAsked(
        submitter=capsule.submitter,
        division=capsule.division,
        system_type="datacenter",
        vllm="",
        packages={},
        used=None,
        rehearsal=capsule.rehearsal,
    )
    described = describe_system(detect_machine(), asked)
    here = msgspec.structs.replace(
        capsule,
        packages=software.packages,
        contents=software.contents,
        machine={key: value for key, value in described.items() if key in _OF_THE_MACHINE},
        program={
            "name": "cm4vllm",
            "version": __version__,
            "commit": commit_of_this_repository(),
            "url": url_of_this_repository(),
            "files_sha256": program_digest(),
            "cm": software.cm,
            "python": software.python,
        },
    )
    groups = Group.PROGRAM, Group.PACKAGES, Group.CONTENTS, Group.SYSTEM
    rows = compare_settings({"": [settings_of(side, None, None) for side in (capsule, here)]})
    return [row for row in rows if row.group in groups]
