"""The submission tree of a round, in its layout, built only from what is on disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cm4vllm.common.command_lines import published_command
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import json_of, staged_folder, write_json, write_text
from cm4vllm.common.progress import warn
from cm4vllm.hardware.description import KEYS, folder_name
from cm4vllm.loadgen.wheel import MLPERF_CONF
from cm4vllm.results.model import ComplianceTest
from cm4vllm.rules import Division, Scenario
from cm4vllm.submission.calibration import calibration_page
from cm4vllm.submission.inspection import inspect_tree, servers_of, words_of
from cm4vllm.submission.layouts import layout_named
from cm4vllm.submission.measurements import measurements
from cm4vllm.submission.privacy import PrivateWord, scrubbed
from cm4vllm.submission.runs import ACCURACY_LOG, LOGS, ScenarioRuns, read_runs
from cm4vllm.submission.software import published_facts
from cm4vllm.submission.sources import PROGRAM_FOLDER, source_page, write_program
from cm4vllm.submission.system import SYSTEM_FILE

__all__ = ["TreeAsked", "build_tree", "system_folder"]

_DESCRIBE = "describe the system again: --tags=get,sut,description"


@dataclass(frozen=True, kw_only=True)
class TreeAsked:
    """What a tree is built of.

    `out` holds runs/ and system/; `model` names the folder below runs/<system>. `readmes` gives the scenarios and their
    README texts, `extra_files` other texts by their path below the submitter's folder. `command` is the line that
    started the campaign.
    """

    out: Path
    submitter: str
    model: str
    readmes: Mapping[Scenario, str]
    command: str
    commit: str = ""
    division: Division = Division.OPEN
    extra_files: Mapping[str, str] | None = None


def build_tree(asked: TreeAsked) -> Path:
    """Build OUT/submission again and return it; an older tree is replaced only by a complete one.

    Accuracy logs are whole in it: truncation is the step after. Raises SubmissionError when a record is missing,
    contradicts another, or cannot be published: privacy.py says what may not.
    """
    if asked.division is not Division.OPEN:
        raise SubmissionError("no submission to the closed division yet", remedy="give --division=open",
                              cause="what it forbids is not checked beforehand yet")
    system = _system(asked.out)
    name = system_folder(asked.out)
    runs = read_runs(asked.out / "runs" / name / asked.model, asked.readmes, submitter=asked.submitter,
                     division=asked.division)
    settings = runs[0].performance.settings
    layout = layout_named(settings.terms.layout)
    submission = asked.out / "submission"
    private = words_of(asked.out)
    facts = published_facts(asked.out)
    with staged_folder(submission) as staging:
        home = staging / asked.division / asked.submitter
        write_json(home / "systems" / f"{name}.json", _marked(system, runs[0].performance.settings.notices))
        if settings.model.name != settings.benchmark:
            write_json(home / "model_mapping.json", {settings.model.name: settings.benchmark})
        for run in runs:
            place = home, name, asked.model, run.scenario
            _logs(layout.results_of(*place), run)
            _settings(layout.settings_of(*place), run, asked.readmes[run.scenario], private,
                      measurements_file=layout.measurements.format(system=name), mlperf_conf=layout.mlperf_conf)
            for test in run.tests:
                _compliance(layout.compliance_of(*place) / test.record.test, test)
            for file, content in facts.items():
                write_text(layout.settings_of(*place) / file, scrubbed(content, private))
        calibration = calibration_page(settings.model, runs[0].performance.notice)
        write_text(home / layout.calibration, scrubbed(calibration, private))
        command = published_command(asked.command, hosts=servers_of(asked.out))
        page = source_page(asked.model, command, asked.commit, runs[0].performance)
        write_text(home / layout.program / asked.model / "README.md", scrubbed(page, private))
        changed = write_program(home / layout.program / PROGRAM_FOLDER)
        for path, text in (asked.extra_files or {}).items():
            write_text(home / _inside(path), scrubbed(text, private))
        inspect_tree(staging, private)
    if changed:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        warn(f"the program in the submission is not that of its commit: {', '.join(changed[:5])}{more} differ")
    return submission


def system_folder(out: Path) -> str:
    """Return the name of the system's folder below results/ in the tree made of `out`."""
    return folder_name(_system(out))


def _system(out: Path) -> dict[str, str]:
    path = out / "system" / SYSTEM_FILE
    try:
        system = json_of(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SubmissionError(f"no submission without {path}", cause=str(error), remedy=_DESCRIBE) from error
    missing = [key for key in KEYS if not isinstance(system, dict) or not isinstance(system.get(key), str)]
    if missing:
        raise SubmissionError(f"{path} lacks {', '.join(missing)}", remedy=_DESCRIBE)
    return {key: system[key] for key in KEYS}


def _marked(system: dict[str, str], notices: list[str]) -> dict[str, str]:
    """Return the description with the runs' notices in its remarks."""
    return system | {key: " ".join([*(notice for notice in notices if notice not in system[key]), system[key]]).strip()
                     for key in ("hw_notes", "sw_notes")}


def _settings(folder: Path, run: ScenarioRuns, readme: str, private: list[PrivateWord], *, measurements_file: str,
              mlperf_conf: bool) -> None:
    """Write what a reader needs to repeat a run: README, user.conf, the model's facts, and mlperf.conf if asked for."""
    notice = run.performance.notice
    if not readme.strip():
        raise SubmissionError(f"the README text of {run.scenario} is empty")
    write_text(folder / "README.md", _noticed(scrubbed(readme, private), notice, "> **{}**\n\n"))
    write_text(folder / "user.conf", _noticed(run.performance.settings.user_conf, notice, "# {}\n"))
    stated = {key: scrubbed(value, private) for key, value in measurements(run.performance).items()}
    write_json(folder / measurements_file, stated)
    if mlperf_conf:
        shutil.copyfile(run.performance_folder / MLPERF_CONF, folder / MLPERF_CONF)


def _logs(folder: Path, run: ScenarioRuns) -> None:
    """Copy the logs of both runs and the scores."""
    accuracy, performance = folder / "accuracy", folder / "performance" / "run_1"
    for source, target, names in ((run.accuracy_folder, accuracy, (*LOGS, ACCURACY_LOG)),
                                  (run.performance_folder, performance, LOGS)):
        target.mkdir(parents=True)
        for name in names:
            shutil.copyfile(source / name, target / name)
    scores = (run.accuracy_folder / "accuracy.txt").read_text(encoding="utf-8")
    write_text(accuracy / "accuracy.txt", _noticed(scores, run.performance.notice, "{}\n"))


def _compliance(folder: Path, test: ComplianceTest) -> None:
    """Copy what shows a compliance test: the verdict, the answers, and LoadGen's logs where the test's layout has them.

    Layouts: compliance/TEST*/README.md and run_verification.py.
    """
    verdict = (test.folder / test.record.file).read_text(encoding="utf-8")
    write_text(folder / test.record.file, _noticed(verdict, test.record.notice, "{}\n"))
    copied = [("accuracy", (ACCURACY_LOG,)), *([("performance/run_1", LOGS)] if test.record.shows_logs else [])]
    for place, names in copied:
        (folder / place).mkdir(parents=True)
        for name in names:
            shutil.copyfile(test.folder / name, folder / place / name)


def _noticed(text: str, notice: str, line: str) -> str:
    """Put a rehearsal's notice before a text that does not carry it yet."""
    return text if notice in text else line.format(notice) + text


def _inside(path: str) -> PurePosixPath:
    inside = PurePosixPath(path)
    if inside.is_absolute() or ".." in inside.parts or not inside.parts:
        raise SubmissionError(f"{path} is not a path below the submitter's folder")
    return inside
