"""The submission tree of a round, in its layout, built only from what is on disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cm4vllm.common.bounded_documents import read_json
from cm4vllm.common.checking.private_words import PrivateWord, scrub
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.files import bytes_of, write_json, write_text
from cm4vllm.common.folders.owned_folders import recover
from cm4vllm.common.programs.own_program import commit_of_this_repository
from cm4vllm.common.progress import warn
from cm4vllm.common.secrets.command_lines import published_command
from cm4vllm.common.terminal_text import first_of
from cm4vllm.records.described_system import folder_name, keys_of
from cm4vllm.records.logs.detail_log import DETAIL_LOG, read_detail_log
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.records.machine import SYSTEM_FILE
from cm4vllm.records.published_server import servers_of, words_of
from cm4vllm.records.run import MLPERF_CONF, RunSettings
from cm4vllm.results.model import ComplianceTest
from cm4vllm.results.submission_trees import read_tree
from cm4vllm.rules import Division, Scenario, TreeLayout, round_terms, tree_layout
from cm4vllm.submission.campaign_software import published_facts
from cm4vllm.submission.privacy_check import inspect_tree
from cm4vllm.submission.published_program import add_program, program_folders, source_page
from cm4vllm.submission.run_files import LOGS, ScenarioRuns, copy_power, copy_supplies, measurements, read_runs
from cm4vllm.submission.submitter_pages import (
    CALIBRATION_TITLE,
    NETWORK_PAGE,
    NETWORK_TITLE,
    SUBMITTER_PAGE,
    capsule_name,
    method,
    network_page,
    quantisation,
    submitter_title,
    with_notice,
    write_overview,
)
from cm4vllm.submission.tree_writer import (
    GENERATE,
    TreeWriter,
    changed_tree,
    heading_of,
    new_tree,
    read_object,
    refuse_other,
)

#: The tree's folder in that of a job's results.
SUBMISSION = "submission"


@dataclass(frozen=True, kw_only=True)
class TreeAsked:
    """The results that go into a tree.

    `out` holds runs/ and system/; `model` names the folder below runs/<system>. `readmes` gives the scenarios and their
    README texts, `page` is summary.html of the results. `command` is the line that started the campaign,
    `server_command` the one that started the server, where it is known. `introduction` begins the submitter's page,
    `capsule` is the text of rerun.yaml; these and the page may be empty.
    """

    out: Path
    submitter: str
    model: str
    readmes: Mapping[Scenario, str]
    command: str
    commit: str = ""
    division: Division = Division.OPEN
    page: str = ""
    server_command: str = ""
    introduction: str = ""
    capsule: str = ""


def build_tree(asked: TreeAsked, *more: TreeAsked, tree: Path | None = None, add: bool = False) -> Path:
    """Build the tree of these results and return it: OUT/submission, or `tree`.

    An older tree is replaced only by a complete one. With `add` the results are added to it, and no file of another
    result becomes another one. Accuracy logs are whole in it: truncation is the step after. Raises SubmissionError when
    a record is missing, contradicts another or what the tree has, or cannot be published: privacy.py says what may not.
    """
    results = [Results.of(inputs) for inputs in (asked, *more)]
    submission = tree or asked.out / SUBMISSION
    private = sorted(
        {word for result in results for word in words_of(result.asked.out)},
        key=lambda word: (-len(word.word), word.kind),
    )
    recover(submission)
    _require_same_submission(results, submission if add else None)
    changed: list[str] = []
    with changed_tree(submission) if add else new_tree(submission, asked.submitter) as writer:
        homes = {result.home(writer.root): result.layout for result in results}
        programs = {}
        for home, layout in homes.items():
            programs[home], no_commit = add_program(home / layout.program)
            changed += no_commit
        for result in results:
            _write(writer, result, private, programs[result.home(writer.root)])
        for home, layout in homes.items():
            write_overview(writer, home, layout)
            _name_versions(home / layout.program, programs[home])
        inspect_tree(writer.root, private)
    if changed and not commit_of_this_repository():
        warn("the program in the submission is that of no known commit: it does not come from a git checkout")
    elif changed:
        warn(f"the program in the submission is not that of its commit; changed: {first_of(changed, 5)}")
    return submission


def _name_versions(folder: Path, here: str) -> None:
    """Print a warning where a tree has several versions of the program."""
    if others := [path.name for path in program_folders(folder) if path.name != here]:
        warn(
            f"the tree holds {len(others) + 1} versions of the program, because results that it had were added by "
            f"another: {folder.name}/{here} goes with the results that are added now, the others keep "
            f"{', '.join(f'{folder.name}/{name}' for name in others)}"
        )


def system_folder(out: Path) -> str:
    """Return the name of the system's folder below results/ in the tree made of `out`."""
    return folder_name(_system(out))


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of one campaign, read and checked."""

    asked: TreeAsked
    system: str
    description: Mapping[str, str]
    runs: tuple[ScenarioRuns, ...]
    layout: TreeLayout

    @classmethod
    def of(cls, asked: TreeAsked) -> Results:
        """Read what is asked for. Raises SubmissionError as build_tree does."""
        description = _system(asked.out)
        name = folder_name(description)
        runs = read_runs(
            asked.out / "runs" / name / asked.model, asked.readmes, submitter=asked.submitter, division=asked.division
        )
        settings = runs[0].performance.settings
        return cls(
            asked=asked,
            system=name,
            runs=tuple(runs),
            layout=tree_layout(settings.terms.layout),
            description=description
            | {
                key: " ".join(
                    [*(notice for notice in settings.notices if notice not in description[key]), description[key]]
                ).strip()
                for key in ("hw_notes", "sw_notes")
            },
        )

    @property
    def settings(self) -> RunSettings:
        """The settings of a run, for what all runs share."""
        return self.runs[0].performance.settings

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Return the names of the scenarios that were run."""
        return tuple(str(run.scenario) for run in self.runs)

    def home(self, root: Path) -> Path:
        """Return the submitter's folder in a tree."""
        return root / self.asked.division / self.asked.submitter


def _require_same_submission(results: Sequence[Results], tree: Path | None) -> None:
    """Raise SubmissionError where results are of another submitter or round than each other, or than the tree.

    The same holds for another description of the same system in another division.
    """
    submitters = {added.asked.submitter: "the results" for added in results}
    rounds = {added.settings.round: "the results" for added in results}
    if tree is not None and tree.is_dir():
        for there in read_tree(tree):
            submitters.setdefault(there.submitter, "the tree")
            if there.round:
                rounds.setdefault(there.round, "the tree")
        for added in results:
            _require_same_system(tree, added)
    for title, by_name in (("submitter", submitters), ("round", rounds)):
        if len(by_name) > 1:
            raise SubmissionError(
                f"a submission is of one {title}",
                cause=", ".join(f"{name} in {where}" for name, where in by_name.items()),
                remedy=f"make a tree for each {title}: --tags={GENERATE} --submission_dir=DIR",
            )


def _require_same_system(tree: Path, added: Results) -> None:
    for division in Division:
        path = tree / division / added.asked.submitter / "systems" / f"{added.system}.json"
        if path.is_file():
            there = read_object(path)
            refuse_other(
                path.relative_to(tree).as_posix(), {**there, "division": ""}, {**added.description, "division": ""}
            )


def _write(writer: TreeWriter, results: Results, private: list[PrivateWord], version: str) -> None:
    """Write one campaign's results and its parts of the pages; `version` is the folder of the program."""
    asked, layout, home, run = results.asked, results.layout, results.home(writer.root), results.runs[0].performance
    writer.json(home / "systems" / f"{results.system}.json", results.description)
    if results.settings.model.name != results.settings.benchmark:
        writer.mapping(home / "model_mapping.json", {results.settings.model.name: results.settings.benchmark})
    _write_results(writer, results, private)
    calibration = scrub(with_notice(quantisation(results.settings.model), run.notice), private)
    writer.section(home / layout.calibration, CALIBRATION_TITLE, results.settings.model.name, calibration)
    if run.settings.network:
        name = read_detail_log(results.runs[0].performance_folder / DETAIL_LOG).text("sut_name")
        page = scrub(with_notice(network_page(results.description, name, run), run.notice), private)
        writer.section(home / NETWORK_PAGE, NETWORK_TITLE, results.system, page)
    _write_program(writer, results, private, version)
    how = method(run, asked.server_command, home=f"{layout.program}/{asked.model}/README.md")
    writer.section(
        home / SUBMITTER_PAGE,
        scrub(submitter_title(asked.submitter, run, asked.introduction), private),
        heading_of(f"{asked.model} on {results.system}", results.scenarios),
        scrub(with_notice(how, run.notice), private),
    )
    if asked.page:
        path = home / "results" / results.system / "summary.html"
        if path.exists():  # that of another campaign on the same system
            path = path.with_name(f"{path.stem}-{asked.model}-{'-'.join(results.scenarios)}{path.suffix}")
        writer.bytes(path, scrub(asked.page, private).encode())


def _write_results(writer: TreeWriter, results: Results, private: list[PrivateWord]) -> None:
    """Write the logs, the settings and the compliance tests of each run."""
    asked, layout, home = results.asked, results.layout, results.home(writer.root)
    facts = published_facts(asked.out)
    for measured in results.runs:
        place = home, results.system, asked.model, measured.scenario
        _require_free(writer, layout.results_of(*place))
        _logs(layout.results_of(*place), measured)
        _settings(
            layout.settings_of(*place),
            measured,
            asked.readmes[measured.scenario],
            private,
            measurements_file=layout.measurements.format(system=results.system),
            mlperf_conf=layout.mlperf_conf,
        )
        copy_power(measured.performance_folder, layout.results_of(*place), layout.settings_of(*place))
        if supplies := round_terms(results.settings.round).power.supplies:
            copy_supplies(writer, measured.performance_folder, home / supplies.format(system=results.system))
        for test in measured.tests:
            _compliance(layout.compliance_of(*place) / test.record.test, test)
        for file, content in facts.items():
            write_text(layout.settings_of(*place) / file, scrub(content, private))


def _write_program(writer: TreeWriter, results: Results, private: list[PrivateWord], version: str) -> None:
    """Write the page of the program that ran, and its capsule."""
    asked, run = results.asked, results.runs[0].performance
    command = published_command(asked.command, hosts=servers_of(asked.out))
    program = results.home(writer.root) / results.layout.program / asked.model
    writer.section(
        program / "README.md",
        f"# {asked.model}: what ran",
        heading_of(results.system, results.scenarios),
        scrub(with_notice(source_page(command, asked.commit, run, version), run.notice), private),
    )
    if asked.capsule:
        path = program / capsule_name(results.system, results.scenarios)
        writer.bytes(path, scrub(asked.capsule, private).encode())


def _require_free(writer: TreeWriter, folder: Path) -> None:
    beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
    if any(path.name.lower() == folder.name.lower() for path in beside):
        system, model, scenario = folder.parts[-3:]
        raise SubmissionError(
            f"the tree has a result of {system}, {model}, {scenario} already",
            remedy=f"remove it first: --tags={GENERATE} --remove={system}/{model}/{scenario}",
        )


def _system(out: Path) -> dict[str, str]:
    path = out / "system" / SYSTEM_FILE
    try:
        system = read_json(path)
    except (OSError, ValueError) as error:
        raise SubmissionError(f"no submission without {path}", cause=str(error), remedy=_describe(out)) from error
    keys = keys_of(str(system.get("division", ""))) if isinstance(system, dict) else keys_of("")
    if missing := [key for key in keys if not isinstance(system, dict) or not isinstance(system.get(key), str)]:
        raise SubmissionError(f"{path} lacks {', '.join(missing)}", remedy=_describe(out))
    return {key: system[key] for key in keys}


def _describe(out: Path) -> str:
    return (
        "describe the system on the machine that was measured: "
        f"--tags=get,sut,description --sut_dir={out / 'system'} --server_record={out / 'server' / 'server.json'}"
    )


def _settings(
    folder: Path,
    run: ScenarioRuns,
    readme: str,
    private: list[PrivateWord],
    *,
    measurements_file: str,
    mlperf_conf: bool,
) -> None:
    """Write what a reader needs to repeat a run: README, user.conf, the model's facts, and mlperf.conf if asked for."""
    notice = run.performance.notice
    if not readme.strip():
        raise SubmissionError(f"the README text of {run.scenario} is empty")
    write_text(folder / "README.md", with_notice(scrub(readme, private), notice))
    write_text(folder / "user.conf", with_notice(run.performance.settings.user_conf, notice, "# {}\n"))
    stated = {key: scrub(value, private) for key, value in measurements(run.performance).items()}
    write_json(folder / measurements_file, stated)
    if mlperf_conf:
        shutil.copyfile(run.performance_folder / MLPERF_CONF, folder / MLPERF_CONF)


def _logs(folder: Path, run: ScenarioRuns) -> None:
    """Copy the logs of both runs and the scores."""
    _copy(run.accuracy_folder, folder / "accuracy", (*LOGS, ACCURACY_LOG))
    _copy(run.performance_folder, folder / "performance" / "run_1", LOGS)
    scores = bytes_of(run.accuracy_folder / "accuracy.txt").decode()
    write_text(folder / "accuracy" / "accuracy.txt", with_notice(scores, run.performance.notice, "{}\n"))


def _compliance(folder: Path, test: ComplianceTest) -> None:
    """Copy what shows a compliance test: the verdict, the answers, and LoadGen's logs where the test's layout has them.

    Layouts: compliance/TEST*/README.md and run_verification.py.
    """
    for name in (test.record.file, *test.record.more_files):
        write_text(folder / name, with_notice(bytes_of(test.folder / name).decode(), test.record.notice, "{}\n"))
    _copy(test.folder, folder / "accuracy", (ACCURACY_LOG, *test.record.accuracy_files))
    if test.record.shows_logs:
        _copy(test.folder, folder / "performance" / "run_1", LOGS)


def _copy(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copy files of a run to a new folder."""
    target.mkdir(parents=True)
    for name in names:
        shutil.copyfile(source / name, target / name)
