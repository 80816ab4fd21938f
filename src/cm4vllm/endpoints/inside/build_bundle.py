"""Builds a bundle from run folders with the official builder: build_bundle.py SPEC, as JSON.

SPEC is {runs: {name: folder}, division, availability, work, source, documentation, power}; the path of the bundle is
printed, and the power figures of the points are written to the file `power`, where their power is stated. The archives
are those that `endpoints-submission-cli runs create` uploads.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from endpoints_submission_cli.exceptions import SubmissionBuildError
from endpoints_submission_cli.runs.parser import RunFolderError, build_archive, parse_run_folder
from endpoints_submission_cli.submissions.builder import build_submission_folder
from submission_checker.power_summary import derive_point_power
from yaml import safe_load


def main(spec_text: str) -> int:
    """Build the bundle; what the builder refuses is printed, and the exit status is 1."""
    spec = json.loads(spec_text)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            archives = []
            for name, folder in spec["runs"].items():
                parse_run_folder(Path(folder))
                archives.append((name, build_archive(Path(folder), Path(scratch) / f"{name}.tar.gz")))
            bundle = build_submission_folder(
                archives,
                spec["division"],
                spec["availability"],
                Path(spec["work"]),
                shared_src_dirs=[Path(spec["source"])],
                shared_docs_dirs=[Path(spec["documentation"])],
            )
    except (SubmissionBuildError, RunFolderError) as error:
        print(error)
        return 1
    powers = {name: power for name, folder in spec["runs"].items() if (power := _power(Path(folder)))}
    Path(spec["power"]).write_text(json.dumps({"points": powers}, indent=2) + "\n", encoding="utf-8")
    print(bundle)
    return 0


def _power(folder: Path) -> dict[str, Any] | None:
    """Return the power figures of a run folder; None where no power is stated."""
    if not (folder / "system_power.json").is_file():
        return None
    names = "system_power.json", "system_desc.json", "performance/result_summary.json"
    power, system, summary = (json.loads((folder / name).read_text(encoding="utf-8")) for name in names)
    figures: dict[str, Any] = derive_point_power(
        power, safe_load((folder / "point.yaml").read_text(encoding="utf-8")), system, summary
    )
    return figures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
