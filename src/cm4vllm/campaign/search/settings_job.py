"""The recipe `find,mlperf,inference,server-settings`: the search over server settings, its record and table."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from cm4vllm import __version__
from cm4vllm.campaign.ledger import LEDGER_FILE, LedgerFile, State, read_ledger
from cm4vllm.campaign.rehearsal import launch as simulated
from cm4vllm.campaign.search.halving import Chosen, HalvingPlan, halve
from cm4vllm.campaign.search.possible_gain import evidence_words, rivals
from cm4vllm.campaign.search.search_space import SEARCH_MINUTES, Candidate, Space, shown, words_of
from cm4vllm.campaign.search.server_bench import EXTRA, SERVER_FOLDER, ServerBench, Start
from cm4vllm.common import input_types
from cm4vllm.common.errors import translated_os_errors
from cm4vllm.common.files import writable_folder, write_text
from cm4vllm.common.folders.owned_folders import discard
from cm4vllm.common.folders.ownership_notes import Note
from cm4vllm.common.progress import say, say_text, step
from cm4vllm.common.records import read_record, remove_record, write_record
from cm4vllm.common.settings import Key, Settings, env_keys
from cm4vllm.common.terminal_text import columns
from cm4vllm.common.units import four_digits
from cm4vllm.loadgen.measurement import RunInputs, require_given
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.searches.settings_search import CHOSEN, EVIDENCE, SETTINGS_FILE, STEP, Evaluation, SettingsRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.rules import Mode, Scenario, benchmark_terms, terms
from cm4vllm.serving.launch import act
from cm4vllm.serving.launch_settings import LaunchSettings
from cm4vllm.serving.options.arguments import ServerSettings
from cm4vllm.serving.planned_servers import PLANNED_FILE

#: The file with the digest of what the evaluations in a folder were made from.
_INPUTS_FILE = "inputs.sha256"


class SettingsInputs(Settings, frozen=True, kw_only=True):
    """Inputs that the recipe reads from its environment, beside those of a server and of a run."""

    search: input_types.Search
    minutes: input_types.SearchMinutes = None
    scenarios: Annotated[str, Key("CM_MLPERF_SEARCH_SCENARIOS")]
    results_dir: input_types.ResultsDir = ""
    output_dir: input_types.OutputDir = ""
    dataset_record: input_types.DatasetRecordPath = ""
    performance_dataset_record: input_types.PerformanceDatasetRecordPath = ""
    model_record: input_types.ModelRecordPath = ""
    rehearse: input_types.Rehearse = ""

    @property
    def most_minutes(self) -> float:
        """The minutes after which no further evaluation begins."""
        return SEARCH_MINUTES if self.minutes is None else self.minutes


def search_server_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Search; return what the recipe exports. Raises UsageError, ServerUnsuitable and the errors of a run."""
    inputs = SettingsInputs.of(env)
    space = Space.parse(inputs.search)
    require_given(output_dir=inputs.output_dir)
    folder = writable_folder(Path(inputs.output_dir).absolute())
    _keep_what_was_made_from(folder, inputs_digest(env))
    start = simulated.act if inputs.rehearse else _start
    runs, at_once = _runs(env)
    candidates = space.candidates(_as_it_is(space, start, env, folder))
    bench = ServerBench(folder, start, env, runs, at_once)
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
    record = _record(chosen, inputs, str(env.get(EXTRA) or ""), space.size)
    write_record(folder / SETTINGS_FILE, record)
    say_text(table(record))
    say(f"search over server settings: {record.summary}")
    say(f"search over server settings: {record.evidence}")
    return exports_of(record)


def _start(env: Mapping[str, str]) -> Mapping[str, str]:
    """Start a server with these settings; return the exports of its recipe."""
    return act(LaunchSettings.of(env)).env()


def exports_of(record: SettingsRecord) -> dict[str, str]:
    """Return the keys for the steps after the search: the options of the server, and the record's words."""
    return {
        EXTRA: record.extra_args,
        CHOSEN: record.words or "none: the server as it is was best",
        EVIDENCE: record.evidence,
    }


def inputs_digest(env: Mapping[str, str]) -> str:
    """Return a digest of a search's inputs: its space and time, the model, the dataset, the server's settings."""
    inputs = SettingsInputs.of(env)
    require_given(model_record=inputs.model_record)
    model = read_record(Path(inputs.model_record), ModelRecord)
    datasets = [
        read_record(Path(path), DatasetRecord).sha256
        for path in (inputs.dataset_record, inputs.performance_dataset_record)
        if path
    ]
    keys = sorted({*env_keys(ServerSettings).values(), "CM_VLLM_SERVER_PRESET", "CM_VLLM_SERVER_REPLICAS"})
    server = {key: str(env.get(key) or "") for key in keys}
    machine = [simulated.simulation_of(env)] if inputs.rehearse else []
    asked = (inputs.search, inputs.most_minutes, inputs.scenarios)
    parts = (__version__, *asked, model.sha256, datasets, server, *machine)
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


def words(evaluation: Evaluation) -> str:
    """Return an evaluation in one line."""
    round_ = f"round {evaluation.round + 1}" if evaluation.round >= 0 else "first start"
    if evaluation.failure:
        return f"{shown(evaluation.options)}, {round_}: dropped: {evaluation.failure.splitlines()[0]}"
    scores = ", ".join(
        f"{scenario.scenario} {four_digits(scenario.value)} {scenario.unit}" for scenario in evaluation.scenarios
    )
    return f"{shown(evaluation.options)}, {round_}: {scores}, after {evaluation.took_s:.0f} s"


def table(record: SettingsRecord) -> str:
    """Return the tried settings as a table for the terminal, the best of the last round first."""
    rows = [("options", "round", "s each", *record.scenarios, "")]
    standing = {rival.number: rival.standing for rival in record.rivals}
    for evaluation in ranked(record.evaluations):
        values = {score.scenario: f"{four_digits(score.value)} {score.unit}" for score in evaluation.scenarios}
        mark = "chosen" if evaluation.options == record.chosen else standing.get(evaluation.number, "")
        rows.append(
            (
                shown(evaluation.options),
                str(evaluation.round + 1) if evaluation.round >= 0 else "first",
                f"{evaluation.seconds:.0f}",
                *(values.get(scenario, "-") for scenario in record.scenarios),
                f"dropped: {evaluation.failure.splitlines()[0]}" if evaluation.failure else mark,
            )
        )
    return "\n".join(columns(rows))


def ranked(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
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
        name = f"{STEP}: {shown(evaluation.options)}, " + (
            f"round {evaluation.round + 1}" if evaluation.round >= 0 else "first start"
        )
        if self._file is not None and name not in self._file.ledger.states:
            state = State.FAILED if evaluation.failure else State.DONE
            self._file.enter(name, state, took_s=evaluation.took_s, why=words(evaluation))


def searched_envs(env: Mapping[str, Any], scenarios: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the environment of a performance run of each scenario, those of the search where none are named.

    Raises UsageError for an unknown scenario.
    """
    keys = env_keys(RunInputs)
    asked = scenarios or str(env.get("CM_MLPERF_SEARCH_SCENARIOS") or "").split(",")
    fixed = {keys["mode"]: str(Mode.PERFORMANCE), keys["user_conf"]: "", keys["target_qps"]: "1"}
    return [{**env, **fixed, keys["scenario"]: str(Scenario.parse(name))} for name in asked]


def _runs(env: Mapping[str, str]) -> tuple[list[RunInputs], RunInputs]:
    """Return the inputs of a performance run of each scenario, and of one that LoadGen issues at once."""
    asked = [RunInputs.of(run) for run in searched_envs(env)]
    first = asked[0]
    at_once = next(
        scenario
        for scenario in benchmark_terms(first.round, first.model).scenarios
        if terms(first.round, first.model, scenario, Mode.PERFORMANCE).at_once
    )
    ordered = sorted(asked, key=lambda run: run.scenario != str(at_once))
    return ordered, RunInputs.of(searched_envs(env, [str(at_once)])[0])


def _as_it_is(space: Space, start: Start, env: Mapping[str, str], folder: Path) -> Candidate:
    """Return the values that the server has without the search, of the options whose values its command line states."""
    start({**env, "CM_VLLM_SERVER_ACTION": "describe", SERVER_FOLDER: str(folder)})
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
