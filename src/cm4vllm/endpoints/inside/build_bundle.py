"""Builds a bundle from run folders with the official builder: build_bundle.py SPEC, a JSON file.

SPEC is {runs: {name: folder}, division, availability, work, source, documentation}; the path of the bundle is printed.
The archives are those that `endpoints-submission-cli runs create` uploads.
"""

import json
import sys
import tempfile
from pathlib import Path

from endpoints_submission_cli.exceptions import SubmissionBuildError
from endpoints_submission_cli.runs.parser import RunFolderError, build_archive, parse_run_folder
from endpoints_submission_cli.submissions.builder import build_submission_folder


def main(spec_file: str) -> int:
    """Build the bundle; what the builder refuses is printed, and the exit status is 1."""
    spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
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
    print(bundle)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
