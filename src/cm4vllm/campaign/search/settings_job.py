"""The recipe `find,mlperf,inference,server-settings`: the search over server settings, its record and table."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from cm4vllm import __version__
from cm4vllm.campaign.ledger import LEDGER_FILE, LedgerFile, State, read_ledger
from cm4vllm.campaign.planning.step_environment import differing
from cm4vllm.campaign.rehearsal import launch as simulated
from cm4vllm.campaign.rehearsal.launch import SimulatedSettings
from cm4vllm.campaign.search.halving import Chosen, HalvingPlan, halve
from cm4vllm.campaign.search.possible_gain import evidence_words, rivals
from cm4vllm.campaign.search.search_space import Candidate, SettingsInputs, Space, candidate_words, words_of
from cm4vllm.campaign.search.server_bench import ServerBench
from cm4vllm.common import input_types
from cm4vllm.common.errors import translated_os_errors
from cm4vllm.common.files import writable_folder, write_text
from cm4vllm.common.folders.owned_folders import discard
from cm4vllm.common.folders.ownership_notes import Note
from cm4vllm.common.progress import say, say_text, step
from cm4vllm.common.records import read_record, remove_record, write_record
from cm4vllm.common.settings import Settings, env_keys
from cm4vllm.common.terminal_text import columns
from cm4vllm.common.units import four_digits
from cm4vllm.loadgen.measurement import RunInputs, require_given
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.searches.settings_search import SETTINGS_FILE, STEP, Evaluation, SettingsRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.rules import Mode, Scenario, benchmark_terms, terms
from cm4vllm.serving.launch import LaunchExports, act
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.planned_servers import PLANNED_FILE

ServerAction = Literal["start", "describe"]
#: The file with the digest of what the evaluations in a folder were made from.
_INPUTS_FILE = "inputs.sha256"


class AnyRun(RunInputs, frozen=True, kw_only=True):
    """A run whose scenario and mode are chosen later."""

    scenario: input_types.Scenario = ""
    mode: input_types.RunMode = "accuracy"


class SettingsJob(Settings, frozen=True, kw_only=True):
    """All inputs of the search: its own, and those of its servers and runs."""

    asked: SettingsInputs = SettingsInputs()
    launch: LaunchSettings = LaunchSettings()
    simulated: SimulatedSettings = SimulatedSettings()
    run: AnyRun = AnyRun()

    def runs(self, scenarios: Sequence[str] = ()) -> list[RunInputs]:
        """Return a performance run of each scenario, those of the search where none are named. Raises UsageError."""
        fixed = replace(self.run, mode=str(Mode.PERFORMANCE), user_conf="", target_qps=1.0)
        names = scenarios or self.asked.scenarios.split(",")
        return [replace(fixed, scenario=str(Scenario.parse(name))) for name in names]

    def start(self, folder: Path, extra: str, action: ServerAction = "start") -> LaunchExports:
        """Start a server with further options for `vllm serve`, or describe it; return the exports of its recipe."""
        if self.asked.rehearse:
            return simulated.act(replace(self.simulated, folder=str(folder), searched=extra, action=action))
        server = replace(self.launch.server, extra=extra)
        return act(replace(self.launch, folder=str(folder), server=server, action=action))


class SettingsExports(Settings, frozen=True, kw_only=True):
    """The options of the server that the search chose, in words too, and how much better others may be."""

    extra: input_types.ExtraArgs = ""
    chosen: input_types.SearchedOptions = ""
    evidence: input_types.SearchEvidence = ""


def search_server_settings(job: SettingsJob) -> SettingsExports:
    """Search; return what the recipe exports. Raises UsageError, ServerUnsuitable and the errors of a run."""
    inputs = job.asked
    space = Space.parse(inputs.search)
    require_given(output_dir=inputs.output_dir)
    folder = writable_folder(Path(inputs.output_dir).absolute())
    _keep_what_was_made_from(folder, inputs_digest(job))
    runs, at_once = _runs(job)
    extra = job.launch.server.extra
    candidates = space.candidates(_as_it_is(space, job, folder))
    bench = ServerBench(folder, lambda place, words: job.start(place, words).record or "", extra, runs, at_once)
    noted = _Noted(inputs.results_dir)
    say(
        f"search over server settings: {space.size} candidates, "
        f"{'and' if len(candidates) > space.size else 'one of which is'} the server as it is, "
        f"{inputs.most_minutes:g} minutes at most"
    )
    try:
        with step("search over server settings"):

            def seen(evaluation: Evaluation) -> None:
                noted.add(evaluation)
                say(f"server settings: {words(evaluation)}")

            chosen = halve(candidates, bench, HalvingPlan(60 * inputs.most_minutes), seen)
    finally:
        bench.close()
    record = _record(chosen, inputs, extra, space.size)
    write_record(folder / SETTINGS_FILE, record)
    say_text(table(record))
    say(f"search over server settings: {record.summary}")
    say(f"search over server settings: {record.evidence}")
    return exports_of(record)


def exports_of(record: SettingsRecord) -> SettingsExports:
    """Return what the steps after the search get: the options of the server, and the record's words."""
    chosen = record.words or "none: the server as it is was best"
    return SettingsExports(extra=record.extra_args, chosen=chosen, evidence=record.evidence)


def inputs_digest(job: SettingsJob) -> str:
    """Return a digest of a search's inputs: its space and time, the model, the dataset, the server's settings."""
    inputs = job.asked
    require_given(model_record=inputs.model_record)
    model = read_record(Path(inputs.model_record), ModelRecord)
    datasets = [
        read_record(Path(path), DatasetRecord).sha256
        for path in (inputs.dataset_record, inputs.performance_dataset_record)
        if path
    ]
    keys = sorted({*env_keys(ServerSettings).values(), "CM_VLLM_SERVER_PRESET", "CM_VLLM_SERVER_REPLICAS"})
    given = differing(job.launch)
    machine = [simulated.simulation_of(job.simulated)] if inputs.rehearse else []
    asked = (inputs.search, inputs.most_minutes, inputs.scenarios)
    parts = (__version__, *asked, model.sha256, datasets, {key: given.get(key, "") for key in keys}, *machine)
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def words(evaluation: Evaluation) -> str:
    """Return an evaluation in one line."""
    round_ = f"round {evaluation.round + 1}" if evaluation.round >= 0 else "first start"
    if evaluation.failure:
        return f"{candidate_words(evaluation.options)}, {round_}: dropped: {evaluation.failure.splitlines()[0]}"
    scores = ", ".join(
        f"{scenario.scenario} {four_digits(scenario.value)} {scenario.unit}" for scenario in evaluation.scenarios
    )
    return f"{candidate_words(evaluation.options)}, {round_}: {scores}, after {evaluation.took_s:.0f} s"


def table(record: SettingsRecord) -> str:
    """Return the tried settings as a table for the terminal, the best of the last round first."""
    rows = [("options", "round", "s each", *record.scenarios, "")]
    standing = {rival.number: rival.standing for rival in record.rivals}
    for evaluation in rank_evaluations(record.evaluations):
        values = {score.scenario: f"{four_digits(score.value)} {score.unit}" for score in evaluation.scenarios}
        mark = "chosen" if evaluation.options == record.chosen else standing.get(evaluation.number, "")
        rows.append(
            (
                candidate_words(evaluation.options),
                str(evaluation.round + 1) if evaluation.round >= 0 else "first",
                f"{evaluation.seconds:.0f}",
                *(values.get(scenario, "-") for scenario in record.scenarios),
                f"dropped: {evaluation.failure.splitlines()[0]}" if evaluation.failure else mark,
            )
        )
    return "\n".join(columns(rows))


def rank_evaluations(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the last evaluation of each candidate: those of the latest round first, of these the best first."""
    last = {
        evaluation.number: evaluation for evaluation in sorted(evaluations, key=lambda evaluation: evaluation.round)
    }
    return sorted(
        last.values(), key=lambda evaluation: (evaluation.score is None, -evaluation.round, -(evaluation.score or 0.0))
    )


class _Noted:
    """Enters evaluations into the ledger of a job, each once; into none where the recipe runs by itself."""

    def __init__(self, results: str) -> None:
        self._file: LedgerFile | None = None
        if results:
            with translated_os_errors("read", Path(results) / LEDGER_FILE, "--output_dir"):
                run = read_ledger(Path(results)).run
            self._file = LedgerFile(Path(results), run) if run else None

    def add(self, evaluation: Evaluation) -> None:
        name = f"{STEP}: {candidate_words(evaluation.options)}, " + (
            f"round {evaluation.round + 1}" if evaluation.round >= 0 else "first start"
        )
        if self._file is not None and name not in self._file.ledger.states:
            state = State.FAILED if evaluation.failure else State.DONE
            self._file.enter(name, state, took_s=evaluation.took_s, why=words(evaluation))


def _runs(job: SettingsJob) -> tuple[list[RunInputs], RunInputs]:
    """Return the inputs of a performance run of each scenario, and of one that LoadGen issues at once."""
    asked = job.runs()
    first = asked[0]
    at_once = next(
        scenario
        for scenario in benchmark_terms(first.round, first.model).scenarios
        if terms(first.round, first.model, scenario, Mode.PERFORMANCE).at_once
    )
    return sorted(asked, key=lambda run: run.scenario != str(at_once)), job.runs([str(at_once)])[0]


def _as_it_is(space: Space, job: SettingsJob, folder: Path) -> Candidate:
    """Return the values that the server has without the search, of the options whose values its command line states."""
    job.start(folder, job.launch.server.extra, "describe")
    given = read_record(folder / PLANNED_FILE, ServerRecord).options
    return {
        name: value for axis in space.axes if isinstance(value := given.get(name := axis.option.option), int | float)
    }


def _keep_what_was_made_from(folder: Path, digest: str) -> None:
    """Remove the evaluations of an earlier command that were made from something else; other files are kept."""
    path = folder / _INPUTS_FILE
    if path.exists() and path.read_text(encoding="utf-8").strip() == digest:
        return
    for left in folder.glob("candidate-*"):
        for place in [place for place in left.glob("*") if Note.of(place).files]:
            discard(place)
        discard(left)
    remove_record(folder / SETTINGS_FILE, SettingsRecord)
    write_text(path, f"{digest}{os.linesep}")


def _record(outcome: Chosen, inputs: SettingsInputs, extra: str, candidates: int) -> SettingsRecord:
    best, as_it_is, others = outcome.best, outcome.as_it_is, rivals(outcome.evaluations, outcome.best.number)
    gain = best.score / as_it_is.score if best.score and as_it_is is not None and as_it_is.score else None
    chosen = words_of(best.options)
    return SettingsRecord(
        search=inputs.search,
        minutes=inputs.most_minutes,
        scenarios=inputs.scenarios.split(","),
        candidates=candidates,
        untried=outcome.untried,
        chosen=dict(best.options),
        words=" ".join(chosen),
        extra_args=" ".join(filter(None, (extra, *chosen))),
        gain=round(gain, 4) if gain is not None else None,
        stopped=outcome.stopped,
        cost_s=round(sum(evaluation.took_s for evaluation in outcome.evaluations), 3),
        starts=sum(evaluation.start_s > 0 or bool(evaluation.failure) for evaluation in outcome.evaluations),
        start_s=round(max(evaluation.start_s for evaluation in outcome.evaluations), 3),
        evaluations=list(outcome.evaluations),
        rivals=others,
        evidence=evidence_words(others, outcome.untried),
        simulated=inputs.rehearse,
    )
