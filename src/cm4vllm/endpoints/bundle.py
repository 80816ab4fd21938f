"""A bundle: built from run folders by the official builder, and checked by the official checker, both unmodified."""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from cm4vllm.common.checking.private_words import PrivateWord
from cm4vllm.common.errors import CheckerFailed, SubmissionError
from cm4vllm.common.files import bytes_of, json_text, write_text
from cm4vllm.common.folders.owned_folders import discard, staged_folder
from cm4vllm.common.folders.ownership_notes import Kind
from cm4vllm.common.programs.processes import Completed, run
from cm4vllm.common.records import Record
from cm4vllm.rules import EndpointsRules, official_drafters, official_seed_sets
from cm4vllm.submission.privacy_check import refuse_private

_INSIDE = Path(__file__).with_name("inside")
#: Bundles of 32 points are built and checked in seconds.
_TIMEOUT_S = 600.0
#: An archive of a run folder is uploaded within this time.
_UPLOAD_TIMEOUT_S = 3600.0


#: The folder of a bundle, as an earlier version left it: the points of an organisation.
BUNDLE = Kind("a bundle", "--bundle_dir", recognised=lambda folder: any(folder.glob("*/**/point.yaml")))


class CheckerInstallation(Record, frozen=True, kw_only=True):
    """The Python whose environment has the package endpoints-submission-cli, and the package's version."""

    python: str
    version: str


class OfficialFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of the official checker: the rule by its id, its severity and its message."""

    rule: str
    severity: Literal["error", "warning", "info"]
    message: str


class OfficialReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of the official checker on a bundle, in its order; `version` is that of the checker."""

    results: tuple[OfficialFinding, ...]
    version: str = ""

    def counts(self, severity: str) -> Counter[str]:
        """Return how often each rule has a finding of this severity."""
        return Counter(finding.rule for finding in self.results if finding.severity == severity)

    @property
    def passed(self) -> bool:
        """Return True if there is no error."""
        return not self.counts("error")


def build_bundle(
    checker: CheckerInstallation,
    runs: Mapping[str, Path],
    target: Path,
    *,
    division: str,
    availability: str,
    source: Path,
    documentation: Path,
    power: Path,
    private: Collection[PrivateWord] = (),
) -> Path:
    """Build the bundle of the runs as `target`, whole or not at all, and return the folder of the organisation in it.

    `source` and `documentation` are folders whose contents become src/ and docs/; `power` is the file for the power
    figures of the points, by the official checker. Raises SubmissionError with the words
    of the builder where it refuses, and for a bundle with one of the `private` words in a file.
    """
    with staged_folder(target, BUNDLE) as staging:
        spec = {
            "runs": {name: str(folder) for name, folder in runs.items()},
            "division": division,
            "availability": availability,
            "work": str(staging),
            "source": str(source),
            "documentation": str(documentation),
            "power": str(power),
        }
        done = run([checker.python, "-P", _INSIDE / "build_bundle.py", json.dumps(spec)], timeout_s=_TIMEOUT_S)
        if not done.ok:
            raise SubmissionError("the official builder refuses the run folders", cause=done.tail(12))
        refuse_private(staging, private)
        organisation = Path(done.output.strip().splitlines()[-1]).name
    return target / organisation


def write_payloads(checker: CheckerInstallation, runs: Mapping[str, Path], target: Path) -> Path:
    """Write what a registration would send of each run folder as `target`, a file each, and send nothing.

    Raises SubmissionError with the words of the official program where it refuses a run folder.
    """
    with staged_folder(target) as staging:
        words = [str(word) for name, folder in runs.items() for word in (folder, staging / f"{name}.json")]
        done = run_official(checker, "payloads", *words)
        if not done.ok:
            raise SubmissionError("the official program refuses to register a run folder", cause=done.tail(12))
    return target


def run_official(checker: CheckerInstallation, *words: str) -> Completed:
    """Run inside/runs_create.py in the environment of the checker, and return what it printed."""
    return run([checker.python, "-P", _INSIDE / "runs_create.py", *words], timeout_s=_UPLOAD_TIMEOUT_S)


def official_report(checker: CheckerInstallation, bundle: Path, report: Path, rules: EndpointsRules) -> OfficialReport:
    """Run the official checker with the seed sets and drafters of `rules` on a bundle.

    Its report is written to `report` as JSON, and the files of the rules beside it. Raises CheckerFailed where it ends
    without a report.
    """
    discard(report)
    files = {"SEED_SETS": official_seed_sets(rules), "APPROVED_DRAFTERS": official_drafters(rules)}
    env = {f"MLPERF_ENDPOINTS_{name}": str(report.with_name(f"{name.lower()}.yaml")) for name in files}
    for path, content in zip(env.values(), files.values(), strict=True):
        write_text(Path(path), json_text(content))  # JSON is YAML
    done = run([checker.python, "-P", _INSIDE / "check_bundle.py", bundle, report], timeout_s=_TIMEOUT_S, env=env)
    try:
        written = msgspec.json.decode(bytes_of(report), type=OfficialReport)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckerFailed(
            f"the official checker {checker.version} gives no report on {bundle}", cause=done.tail(12)
        ) from error
    return msgspec.structs.replace(written, version=checker.version)
