"""The program, packages and machine of a capsule beside those at hand: what a replay here would differ in."""

from __future__ import annotations

import msgspec

from cm4vllm import __version__
from cm4vllm.common.programs.own_program import commit_of_this_repository, url_of_this_repository
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.hardware.system_description import SystemAsked, describe_system
from cm4vllm.records.described_system import KEYS, NETWORK_KEYS
from cm4vllm.results.capsule import Capsule
from cm4vllm.results.comparing.compared_settings import ComparedSetting, Group, compare_settings, settings_of
from cm4vllm.submission.campaign_software import detect_software
from cm4vllm.submission.published_program import program_digest

#: Keys of a system's description without those of the submission.
_OF_THE_MACHINE = {*KEYS, *NETWORK_KEYS} - {
    *("submitter", "division", "status", "hw_notes", "sw_notes", "system_type", "system_type_detail", "framework")
}


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
