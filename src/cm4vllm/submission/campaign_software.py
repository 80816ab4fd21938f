"""The software of a campaign, as a reader needs it to repeat the runs: versions, all packages, the operating system.

The facts go into the tree under the names and in the form that submissions made with CM have: cm-version-info.json,
pip_freeze.json, cpu_info.json, os_info.json.
"""

import hashlib
import inspect
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from cm4vllm import __version__
from cm4vllm.common.bounded_documents import read_json
from cm4vllm.common.programs.own_program import commit_of_this_repository, url_of_this_repository
from cm4vllm.common.programs.processes import run
from cm4vllm.common.records import read_optional
from cm4vllm.common.secrets.command_lines import published_words
from cm4vllm.hardware.host import os_env
from cm4vllm.hardware.machine_facts import capacity_env, cpu_env
from cm4vllm.records.machine import MachineFacts
from cm4vllm.records.server import ServerRecord
from cm4vllm.records.software import SCRIPTS_FILE, SoftwareRecord, read_software


def contents_digest(package: metadata.Distribution) -> str:
    """Return a digest of the files that a package's wheel installed: of its RECORD, without the lines that pip adds.

    It is empty where the package has no such list, as one that is installed in place.
    """
    added = ("__pycache__", ".dist-info/INSTALLER", ".dist-info/REQUESTED", ".dist-info/direct_url.json")
    read = package.read_text  # a file of the package's, in UTF-8
    lines = [
        line
        for line in (read("RECORD") or "").splitlines()
        if ",sha256=" in line and not line.startswith("../") and not any(name in line for name in added)
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest() if lines else ""


def installed_software() -> tuple[str, dict[str, str], dict[str, str]]:
    """Return the version of the Python that runs this, its packages, and digests of what they installed."""
    packages = {package.name: package for package in metadata.distributions() if package.name and package.version}
    ordered = {name: packages[name] for name in sorted(packages, key=str.lower)}
    digests = {name: digest for name, package in ordered.items() if (digest := contents_digest(package))}
    return platform.python_version(), {name: package.version for name, package in ordered.items()}, digests


#: Prints what is installed for another Python.
_LIST = f"""
from __future__ import annotations
import hashlib, json, platform
from importlib import metadata
{inspect.getsource(contents_digest)}
{inspect.getsource(installed_software)}
print(json.dumps(installed_software()))
"""


def detect_software(server: ServerRecord | None = None) -> SoftwareRecord:
    """Return what runs here, and in the environment of the server where it was started here."""
    _, packages, contents = installed_software()
    own = (
        next((member for member in (server, *server.members) if member.owned and member.argv), None) if server else None
    )
    if own is not None and own.container is not None:  # what it reported of itself; its environment is not read here
        server_packages = {name: version for name, version in own.packages.items() if name != "python"}
        python, server_contents = own.packages.get("python", ""), dict[str, str]()
    else:
        python, server_packages, server_contents = _environment(Path(own.argv[0])) if own else ("", {}, {})
    return SoftwareRecord(
        python=sys.version.replace("\n", ""),
        platform=platform.platform(),
        cm=metadata.version("cmind"),
        cm4vllm=__version__,
        commit=commit_of_this_repository(),
        url=url_of_this_repository(),
        packages=packages,
        os=os_env(),
        server_python=python,
        server_packages=server_packages,
        contents=contents,
        server_contents=server_contents,
    )


def scripts_that_ran(noted: Sequence[Mapping[str, Any]], script: str) -> dict[str, list[Any]]:
    """Return CM's notes on the scripts of a run in the published form: under the one that asked for all of them.

    Nothing is returned where `script`, an alias, is not among them: then the run was another one. Paths in variations
    are replaced by variables.
    """
    details = [detail for entry in noted for detail in entry.values()]
    if script not in {str(detail.get("script_alias")) for detail in details}:
        return {}
    ended = {f"{detail['script_alias']},{detail['script_uid']}" for detail in details}
    asked = [str(detail["parent"]) for detail in details if detail.get("parent") and detail["parent"] not in ended]
    return {
        asked[0] if asked else "cm": [
            {
                _publishable(tags): {key: _publishable(value) for key, value in detail.items()}
                for tags, detail in entry.items()
            }
            for entry in noted
        ]
    }


def published_facts(out: Path) -> dict[str, str]:
    """Return the facts of a campaign's results by the names that they have in a tree; what is not known is left out."""
    facts: dict[str, Any] = {}
    if (scripts := out / "system" / SCRIPTS_FILE).is_file():
        facts[SCRIPTS_FILE] = read_json(scripts)
    if software := read_software(out):
        theirs = {"server_pip_freeze": software.server_packages} if software.server_packages else {}
        facts["pip_freeze.json"] = {"pip_freeze": software.packages, **theirs}
        facts["os_info.json"] = software.os
    if machine := read_optional(out / "system" / "machine.json", MachineFacts):
        capacity = capacity_env(machine.memory, machine.disks, machine.root_bytes)
        facts["cpu_info.json"] = cpu_env(machine.cpu, machine.host) | capacity
    return {name: json.dumps(value, indent=2) + "\n" for name, value in facts.items()}


def _publishable(value: Any) -> Any:
    return published_words([value])[0] if isinstance(value, str) else value


def _environment(python: Path) -> tuple[str, dict[str, str], dict[str, str]]:
    """Return the version of a Python, the packages of its environment, and digests of what they installed.

    Nothing is returned where it cannot tell.
    """
    with suppress(OSError, ValueError):
        if (done := run([python, "-P", "-c", _LIST], env={"PYTHONPATH": ""})).ok:
            version, packages, contents = json.loads(done.output)
            return version, packages, contents
    return "", {}, {}
