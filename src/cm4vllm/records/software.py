"""software.json: the software of a campaign, and the names of the facts about it in a tree."""

from pathlib import Path

from cm4vllm.common.records import Record, read_optional

#: The record's name beside system.json and machine.json.
SOFTWARE_FILE = "software.json"
#: The scripts that took part in a campaign, as CM notes them; the same name among the results and in a tree.
SCRIPTS_FILE = "cm-version-info.json"
#: The names of the facts in a scenario's folder of a tree.
FACTS_FILES = (SCRIPTS_FILE, "pip_freeze.json", "cpu_info.json", "os_info.json")


class SoftwareRecord(Record, frozen=True, kw_only=True):
    """The software of a campaign. `python` is that of the harness, `packages` all that its environment holds.

    `platform` is Python's words for the operating system. `commit` and `url` say where cm4vllm is published; empty
    where that is not known. `server_python` and `server_packages` are those of a server started here, empty for another
    one. `contents` and `server_contents` have a digest of the files that each package installed.
    """

    python: str
    platform: str
    cm: str
    cm4vllm: str
    commit: str
    url: str
    packages: dict[str, str]
    os: dict[str, str]
    server_python: str = ""
    server_packages: dict[str, str] = {}
    contents: dict[str, str] = {}
    server_contents: dict[str, str] = {}


def read_software(out: Path) -> SoftwareRecord | None:
    """Return the record of a campaign's software; None if there is none."""
    return read_optional(out / "system" / SOFTWARE_FILE, SoftwareRecord)
