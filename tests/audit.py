"""Compares the pinned packages with known vulnerabilities: `make audit`, and once a day `make check`.

pip-audit asks the advisory service of the package index. A service that does not answer, or that does not know a
package, is reported as such and never counted as clean: the exit status is 1 for a vulnerability, and with --strict
also for a package that was not audited.

    python tests/audit.py [--strict] [--kept=FILE] PIP_AUDIT REQUIREMENTS...
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DAY_S = 24 * 3600
#: The whole audit takes seconds where the service answers.
LIMIT_S = 90


@dataclass(frozen=True)
class Outcome:
    """The result of the audit of one requirements file."""

    name: str
    audited: int
    vulnerable: list[str] = field(default_factory=list)
    not_audited: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        if self.vulnerable:
            return f"audit of {self.name}: VULNERABLE: {'; '.join(self.vulnerable)}"
        said = [f"{self.audited} packages audited" + (", no known vulnerabilities" if self.audited else "")]
        if self.not_audited:
            count = len(self.not_audited)
            said.append(f"{count} NOT AUDITED: {self.not_audited[0]}{' and others' if count > 1 else ''}")
        return f"audit of {self.name}: {'; '.join(said)}"


def outcome(name: str, report: Mapping[str, Any]) -> Outcome:
    """Read pip-audit's JSON report of a requirements file."""
    vulnerable, not_audited, audited = [], [], 0
    for package in report["dependencies"]:
        if reason := package.get("skip_reason"):
            not_audited.append(f"{package['name']}: {reason}")
            continue
        audited += 1
        for vulnerability in package["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
            vulnerable.append(f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}")
    return Outcome(name, audited, vulnerable, not_audited)


def audit(command: Sequence[str], requirements: Path) -> Outcome:
    """Run pip-audit on one file of pinned requirements."""
    hashed = ["--require-hashes"] if "--hash=" in requirements.read_text(encoding="utf-8") else ["--no-deps"]
    words = [*command, "--requirement", str(requirements), *hashed, "--disable-pip", "--format=json", "--timeout=10"]
    try:
        done = subprocess.run(
            [*words, "--progress-spinner=off"], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        return outcome(requirements.name, json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        reason = f"no answer of the advisory service within {LIMIT_S} s"
    except OSError as error:
        reason = f"pip-audit cannot be run: {error}"
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["pip-audit gave no report"])[-1]
    return Outcome(requirements.name, 0, [], [f"all packages: {reason}"])


def status(outcomes: Iterable[Outcome], *, strict: bool) -> int:
    """Return the exit status for what was found."""
    return int(any(outcome.vulnerable or (strict and outcome.not_audited) for outcome in outcomes))


def kept_outcomes(path: Path, digest: str) -> list[Outcome]:
    """Return the outcomes of an audit of the same files in the last day; none where there was none."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if kept.get("digest") != digest or not 0 <= time.time() - kept["at"] < DAY_S:
        return []
    return [Outcome(**fields) for fields in kept["outcomes"]]


def main(argv: Sequence[str]) -> int:
    """Audit the files of the command line and print a line for each."""
    parser = argparse.ArgumentParser(description="audits pinned requirements")
    parser.add_argument("--strict", action="store_true", help="fail also for a package that was not audited")
    parser.add_argument("--kept", type=Path, help="where the outcome is kept for a day; audited again without")
    parser.add_argument("tool", type=Path)
    parser.add_argument("requirements", type=Path, nargs="+")
    given = parser.parse_args(argv)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in given.requirements)).hexdigest()
    outcomes = kept_outcomes(given.kept, digest) if given.kept else []
    if not outcomes:
        outcomes = [audit([str(given.tool)], path) for path in given.requirements]
        if given.kept:
            kept = {"digest": digest, "at": time.time(), "outcomes": [asdict(outcome) for outcome in outcomes]}
            given.kept.write_text(json.dumps(kept), encoding="utf-8")
    for outcome in outcomes:
        print(outcome.words)
    return status(outcomes, strict=given.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
