"""Runs the official checker on a bundle, unmodified: check_bundle.py BUNDLE REPORT, the report as JSON."""

import sys
from pathlib import Path

from submission_checker.checker import SubmissionChecker


def main(bundle: str, report_file: str) -> int:
    """Write the checker's report; the exit status is 1 where it has errors."""
    report = SubmissionChecker(Path(bundle)).run()
    Path(report_file).write_text(report.model_dump_json(indent=2), encoding="utf-8")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
