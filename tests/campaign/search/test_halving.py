"""The search over server settings: its space, successive halving, and what is left of it after an interruption."""

import pytest
from msgspec.structs import replace

from cm4vllm.campaign.kept_results import kept_result
from cm4vllm.campaign.ledger import LedgerFile, State, read_ledger
from cm4vllm.campaign.planning.step_environment import StepEnvironment
from cm4vllm.campaign.planning.steps import Product, Step
from cm4vllm.campaign.search.halving import HalvingPlan, halve
from cm4vllm.campaign.search.possible_gain import evidence_words, rivals
from cm4vllm.campaign.search.projection import FullLength
from cm4vllm.campaign.search.search_space import Space, candidate_words
from cm4vllm.campaign.search.server_bench import ServerBench, bracket
from cm4vllm.campaign.search.settings_job import (
    SettingsJob,
    _keep_what_was_made_from,
    _Noted,
    exports_of,
    inputs_digest,
    rank_evaluations,
    table,
)
from cm4vllm.common.errors import InvalidResult, ServerUnsuitable, UsageError
from cm4vllm.common.files import write_text
from cm4vllm.common.folders.owned_folders import begun_folder
from cm4vllm.common.records import read_record, write_record
from cm4vllm.loadgen.measurement import RunInputs
from cm4vllm.records.searches.settings_search import SETTINGS_FILE, Evaluation, Score, SettingsRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.rules import LatencyLimits
from cm4vllm.serving.options.arguments import ServerSettings
from simulated.prober import SimulatedProber, offline_rate
from simulated.settings_bench import SimulatedBench, tokens_per_s, with_settings
from simulated.systems import Batching, Paged

SPACE = "max-num-seqs:32..128,max-num-batched-tokens:512..2048"
SYSTEM = Paged(
    step_s=0.03,
    each_s=0.0001,
    token_s=2e-5,
    kv_tokens=30_000,
    max_num_batched_tokens=512,
    max_num_seqs=32,
    prompt_least=50,
    prompt_most=250,
    noise=0.05,
)


# --- the space -------------------------------------------------------------------------------------------------------


def test_candidates_lie_on_a_logarithmic_grid_with_both_ends():
    space = Space.parse("max-num-seqs:128..1024, --max_num_batched_tokens:2048..16384,gpu-memory-utilization:0.8..0.95")
    values = [axis.values for axis in space.axes]
    assert values == [(128, 256, 512, 1024), (2048, 4096, 8192, 16384), (0.8, 0.8718, 0.95)]
    assert space.size == len(space.candidates({})) - 1 == 48


def test_the_server_as_it_is_comes_first_and_is_not_tried_twice():
    space = Space.parse(SPACE)
    candidates = space.candidates({"max-num-seqs": 64, "max-num-batched-tokens": 1024})
    assert candidates[0] == {}
    assert len(candidates) == 9
    assert {"max-num-seqs": 64, "max-num-batched-tokens": 1024} not in candidates
    corners = {(corner["max-num-seqs"], corner["max-num-batched-tokens"]) for corner in candidates[1:5]}
    assert corners == {(32, 512), (32, 2048), (128, 512), (128, 2048)}
    assert candidate_words(candidates[1]).startswith("--max-num-seqs=")
    assert candidate_words({}) == "as without the search"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-sequences:1..8", "max-num-seqs"),
        ("port:1..8", "these can: max-num-seqs"),
        ("max-num-seqs:8", "has no range"),
        ("max-num-batched-tokens:1048577..8", "max-num-batched-tokens:8..1048577"),
        ("max-num-seqs:8..8", "give --max_num_seqs=8 in its place"),
        ("block-size:8..8", "give --extra_args=--block-size=8 in its place"),
        ("max-num-seqs:..8", "no whole number"),
        ("max-num-seqs:0..8", "from 1 on"),
        ("gpu-memory-utilization:0.5..nan", "to 1"),
        ("max-num-seqs:1..8,max_num_seqs:2..4", "more than once"),
        (",".join(f"{name}:1..2000000" for name in ("max-num-seqs", "block-size", "max-num-batched-tokens")), "cannot"),
    ],
)
def test_a_space_that_is_none_is_refused(text, words):
    with pytest.raises(UsageError) as error:
        Space.parse(text)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"CM_VLLM_SERVER_MAX_NUM_SEQS": "256"}, "given: --max_num_seqs=256"),
        ({"CM_VLLM_SERVER_EXTRA_ARGS": "--max_num_seqs=256"}, "in --extra_args"),
        ({"CM_VLLM_SERVER_EXTRA_ARGS": "--max-num-batched-tokens 256"}, "max-num-batched-tokens, which is given"),
    ],
)
def test_an_option_that_is_given_is_not_searched_for(env, words):
    with pytest.raises(UsageError, match="--search varies") as error:
        Space.parse(SPACE).require_free(ServerSettings.of(env))
    assert words in str(error.value)
    Space.parse(SPACE).require_free(ServerSettings(extra="--block-size=16"))


# --- successive halving ----------------------------------------------------------------------------------------------


def searched(minutes=40.0, kept=None, system=SYSTEM, seen=lambda evaluation: None):
    bench = SimulatedBench(system, None, FullLength(60.0, 3), kept=kept or {})
    return halve(
        Space.parse(SPACE).candidates({}), bench, HalvingPlan(60 * minutes, least_s=5.0, most_s=60.0), seen
    ), bench


@pytest.fixture(scope="module")
def chosen():
    return searched()[0]


def test_the_best_settings_are_found(chosen):
    true = {
        evaluation.number: tokens_per_s(with_settings(SYSTEM, evaluation.options), 60.0, seed=3, noise=1)[0]
        for evaluation in chosen.evaluations
    }
    assert true[chosen.best.number] >= 0.97 * max(true.values())
    assert true[chosen.best.number] > 1.1 * true[0]
    assert chosen.best.score / chosen.as_it_is.score == pytest.approx(true[chosen.best.number] / true[0], rel=0.05)
    others = rivals(chosen.evaluations, chosen.best.number)
    assert {evaluation.number for evaluation in others} == set(true) - {chosen.best.number}
    assert all(true[evaluation.number] / true[chosen.best.number] <= evaluation.most for evaluation in others)
    assert {evaluation.round for evaluation in others} == {0, 1, 2}


def test_each_round_measures_fewer_candidates_for_longer_and_the_server_as_it_is_in_all(chosen):
    rounds = {}
    for evaluation in chosen.evaluations:
        rounds.setdefault(evaluation.round, []).append(evaluation)
    assert sorted(rounds) == [-1, 0, 1, 2]
    assert [len(rounds[key]) for key in sorted(rounds)] == [1, 10, 5, 3]
    assert rounds[1][0].seconds > 2 * rounds[0][0].seconds
    assert all(0 in {evaluation.number for evaluation in done} for done in rounds.values())
    assert rounds[0][0].start_s == 0, "the server of the trial still runs"


@pytest.mark.parametrize("minutes", [4.0, 40.0])
def test_the_budget_is_kept_and_what_is_not_tried_is_counted(minutes):
    chosen, _ = searched(minutes)
    assert sum(evaluation.took_s for evaluation in chosen.evaluations) <= 60 * minutes
    assert chosen.untried == 10 - len({evaluation.number for evaluation in chosen.evaluations})
    assert (chosen.untried == 0) is (minutes == 40.0)


def test_a_candidate_that_does_not_start_is_recorded_and_dropped():
    chosen, _ = searched(system=Paged(step_s=0.03, kv_tokens=5000, max_num_batched_tokens=512, noise=0.05))
    failed = [evaluation for evaluation in chosen.evaluations if evaluation.failure]
    assert {evaluation.options["max-num-batched-tokens"] for evaluation in failed} == {2048}
    assert {evaluation.round for evaluation in failed} == {0}
    assert all(evaluation.score is None and evaluation.failure == "no room for the KV cache" for evaluation in failed)
    with pytest.raises(ServerUnsuitable, match="no server settings") as error:
        searched(system=Paged(kv_tokens=1000))
    assert "no room for the KV cache" in error.value.cause


def test_after_an_interruption_nothing_is_measured_again_and_the_same_is_found(chosen):
    made = {(evaluation.number, evaluation.round): evaluation for evaluation in chosen.evaluations}
    half = dict(list(made.items())[:6])
    again, bench = searched(kept=half)
    assert bench.measured == len(made) - 6
    assert [(evaluation.number, evaluation.round) for evaluation in again.evaluations[:6]] == list(half)
    assert searched(kept=made)[1].measured == 0


# --- a paced scenario ------------------------------------------------------------------------------------------------

TIGHT = LatencyLimits(ttft_ms=500, tpot_ms=30, latency_ms=None, source="a test")
#: TPOT alone binds, far below the rate at which samples are answered that come at once.
BOUND = Batching(step_s=0.02, each_s=0.0002, prefill_s=0.0, sequences=512)


def test_brackets_from_below_and_from_far_above_close_around_the_same_rate():
    brackets = []
    for start in (25.0, 100.0):
        prober = SimulatedProber(BOUND, TIGHT, FullLength(60.0, 3))
        brackets.append(last := bracket(prober, "Server", start, TIGHT, 200.0))
        assert last.low <= last.value <= last.high <= 1.2 * last.low
        assert prober.clock_s <= 1.25 * 200.0
    assert brackets[0].value == pytest.approx(brackets[1].value, rel=0.02)
    assert offline_rate(BOUND) > 2 * brackets[0].value, "the limit of TPOT binds far below what the server can do"


def test_a_rate_that_never_passes_or_answers_that_never_come_are_said():
    full, slow = FullLength(60.0, 3), Batching(step_s=0.05)
    result = bracket(SimulatedProber(slow, TIGHT, full), "Server", 5.0, TIGHT, 60.0)
    assert (result.low, result.value) == (None, result.high)
    with pytest.raises(InvalidResult, match="no query was counted"):
        bracket(SimulatedProber(Batching(shortest=900, longest=999), TIGHT, full), "Server", 5.0, TIGHT, 4.0)


def test_settings_of_a_scenario_with_limits_are_chosen_by_the_rate_that_keeps_them_and_not_by_tokens():
    system = Paged(step_s=0.012, kv_tokens=30_000, prompt_least=50, noise=0.05)
    bench = SimulatedBench(system, TIGHT, FullLength(60.0, 3))
    chosen = halve(Space.parse("max-num-seqs:8..64").candidates({}), bench, HalvingPlan(60 * 20))
    assert chosen.best.options == {"max-num-seqs": 64} or not chosen.best.options
    rate = chosen.best.scenarios[0]
    assert rate.low <= rate.value <= rate.high
    trial = chosen.evaluations[0].scenarios[0]
    assert (trial.low, trial.high) == (None, None)
    assert sum(evaluation.took_s for evaluation in chosen.evaluations) <= 60 * 20


def test_settings_that_keep_the_limits_at_no_rate_are_not_chosen():
    slow = Paged(step_s=0.05, kv_tokens=30_000, noise=0.05)
    bench = SimulatedBench(slow, TIGHT, FullLength(60.0, 3))
    with pytest.raises(ServerUnsuitable, match="no server settings") as error:
        halve(Space.parse("max-num-seqs:8..64").candidates({}), bench, HalvingPlan(60 * 20))
    assert "no rate was found at which a candidate keeps the limits" in error.value.cause


@pytest.mark.parametrize("failed", ["the server ended", ""])
def test_what_a_longer_round_refuses_is_not_chosen_by_a_short_one(failed):
    """Of three in the last round one keeps its limits: the round before compares those that did not fail since."""
    values = {0: [0.98, 0.41], 1: [1.0], 2: [1.03, None], 3: [1.02, None], 4: [0.82]}
    kept = {}
    for number, rounds in values.items():
        for round_, value in enumerate(rounds):
            ends = {"low": value, "high": 1.1 * (value or 0.4)}
            score = Score(scenario="Server", value=value or 0.43, unit="queries/s", **ends)
            outcome = {"score": None if failed and not value else score.value, "failure": "" if value else failed}
            kept[number, round_] = replace(evaluation(number, round_, 1.0), scenarios=[score], **outcome)
    kept[0, -1] = replace(kept[0, 0], round=-1)
    bench = SimulatedBench(SYSTEM, TIGHT, FullLength(60.0, 3), kept=kept)
    chosen = halve(Space.parse("max-num-seqs:8..64").candidates({}), bench, HalvingPlan(60 * 60))
    assert bench.measured == 0
    assert (chosen.best.number, chosen.best.round) == (1, 0)
    assert chosen.as_it_is.number == 0


# --- what it leaves --------------------------------------------------------------------------------------------------


def evaluation(number, round_, score, **fields):
    given = {"options": {"max-num-seqs": 8 * number} if number else {}, "seconds": 10.0, "took_s": 70.0}
    scores = [] if score is None else [Score(scenario="Offline", value=score, unit="tokens/s")]
    return Evaluation(number=number, round=round_, score=score, scenarios=scores, start_s=60.0, **given, **fields)


MADE = [
    evaluation(0, -1, 90.0),
    evaluation(0, 0, 100.0),
    evaluation(1, 0, None, failure="the server of x did not start; CUDA out of memory"),
    evaluation(2, 0, 120.0),
    evaluation(3, 0, 80.0),
    evaluation(2, 1, 118.0),
    evaluation(0, 1, 101.0),
]


RIVALS = rivals(MADE, 2)


def record(**fields):
    asked = {"search": "max-num-seqs:8..24", "minutes": 10.0, "scenarios": ["Offline"], "candidates": 3, "untried": 0}
    words = {"words": "--max-num-seqs=16", "extra_args": "--block-size=16 --max-num-seqs=16"}
    chosen = {"chosen": {"max-num-seqs": 16}, "gain": 1.168, "stopped": "all rounds were made", **words}
    spent = {"cost_s": 490.0, "starts": 7, "start_s": 60.0, "evaluations": MADE}
    evidence = {"rivals": RIVALS, "evidence": evidence_words(RIVALS, 0)}
    return SettingsRecord(**{**asked, **chosen, **spent, **evidence, **fields})


def test_the_table_has_each_candidate_once_the_chosen_one_first_and_why_one_was_dropped():
    lines = table(record()).splitlines()
    assert len(lines) == 1 + 4
    assert lines[1].startswith("--max-num-seqs=16") and lines[1].endswith("chosen")
    assert lines[2].startswith("as without the search") and lines[2].endswith("no bound")
    assert lines[4].endswith("dropped: the server of x did not start; CUDA out of memory")
    assert [evaluation.number for evaluation in rank_evaluations(MADE)] == [2, 0, 3, 1]


def test_the_steps_after_it_get_the_options_chosen_with_those_given():
    assert exports_of(record()).extra == "--block-size=16 --max-num-seqs=16"
    assert exports_of(record()).evidence.startswith(
        "For 2 of 2 tried settings the records have no bound, as for the server as it is: its Offline value has no"
    )
    assert "1.168 times the server as it is" in record().summary
    assert record(simulated="a-machine").summary.startswith("SIMULATED, with the times of a-machine: ")
    as_it_is = record(chosen={}, words="", extra_args="")
    assert exports_of(as_it_is).chosen == "none: the server as it is was best"


def test_each_evaluation_is_an_entry_of_the_ledger_once(tmp_path):
    LedgerFile(tmp_path, "the command").enter("server settings search", State.RUNNING)
    for _ in range(2):
        noted = _Noted(str(tmp_path))
        for evaluation in MADE[:3]:
            noted.add(evaluation)
    entered = {name: state.last for name, state in read_ledger(tmp_path).states.items()}
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 1 + 3
    assert entered["server settings search: --max-num-seqs=8, round 1"].state is State.FAILED
    assert "CUDA out of memory" in entered["server settings search: --max-num-seqs=8, round 1"].why
    assert {evaluation.run for evaluation in entered.values()} == {"the command"}
    assert replace(MADE[1], took_s=1.0).overhead_s == 0


def test_a_search_is_kept_while_what_it_was_made_from_is_the_same(tmp_path, make_settings):
    run = make_settings("http://127.0.0.1:1", "Server", "performance")
    write_record(tmp_path / "model.json", run.model)
    write_record(tmp_path / "dataset.json", run.dataset)
    env = {
        "CM_MLPERF_OUTPUT_DIR": str(tmp_path / "search"),
        "CM_VLLM_SEARCH": "max-num-seqs:8..24",
        "CM_VLLM_SEARCH_MINUTES": "10",
        "CM_MLPERF_SEARCH_SCENARIOS": "Offline",
        "CM_ML_MODEL_RECORD": str(tmp_path / "model.json"),
        "CM_DATASET_RECORD": str(tmp_path / "dataset.json"),
    }
    step = Step(name="server settings search", tags="find", product=Product.SETTINGS)
    known = inputs_digest(SettingsJob.of(env))
    assert kept_result(step, step.inputs, StepEnvironment(env), known).exports is None
    (tmp_path / "search").mkdir()
    write_record(tmp_path / "search" / SETTINGS_FILE, record())
    assert kept_result(step, step.inputs, StepEnvironment(env), known).exports == exports_of(record())
    for changed in ({"CM_VLLM_SEARCH_MINUTES": "11"}, {"CM_VLLM_SERVER_DTYPE": "float32"}):
        again = kept_result(step, step.inputs, StepEnvironment(env | changed), known)
        assert (again.exports, again.why_not) == (None, "its inputs have changed")
    machine = {"CM_MLPERF_REHEARSE": "2-core-cpu-tiny"}
    seeds = {inputs_digest(SettingsJob.of({**env, **machine, "CM_MLPERF_REHEARSE_SEED": seed})) for seed in ("0", "1")}
    assert len({*seeds, known}) == 3, "another simulated server is another input"


# --- candidates measured on servers that are started for them: simulated ones, by real LoadGen runs


PROFILE = """
title: a test's
source: assumed
derivation: [none]
benchmark: llama3.1-8b
vllm: 0.32.0
system: {}
server: {step_s: 0.02, each_s: 0.0, token_s: 0.0, noise: 0.0, max_num_seqs: 64, max_num_batched_tokens: 512,
  max_model_len: 2048, kv_tokens: 100000}
prompts: {shares: [0, 1], tokens: [20, 20]}
answers: {shares: [0, 1], tokens: [30, 30]}
"""


@pytest.mark.timing  # a busy machine reads the server's counter too rarely in 5 s
def test_a_candidate_is_measured_on_a_server_that_is_started_with_its_options(tmp_path, make_settings):
    run = make_settings("http://127.0.0.1:1", "Offline", "performance")
    (tmp_path / "machine.yaml").write_text(PROFILE)
    for name in ("model", "dataset"):
        write_record(tmp_path / f"{name}.json", getattr(run, name))
    records = {f"{name}_record": str(tmp_path / f"{name}.json") for name in ("model", "dataset")}
    inputs = RunInputs(scenario="Offline", mode="performance", num_workers=1, **records)
    env = {"CM_MLPERF_REHEARSE": str(tmp_path / "machine.yaml"), "CM_ML_MODEL_RECORD": records["model_record"]}
    job = SettingsJob.of(env)
    bench = ServerBench(tmp_path / "search", lambda *place: job.start(*place).record, "", [inputs], inputs)
    try:
        made = bench.measure(1, {"max-num-seqs": 2}, 0, 5.0)
        server = read_record(tmp_path / "search" / "candidate-001" / "server" / "server.json", ServerRecord)
    finally:
        bench.close()
    assert made.failure == ""
    assert server.simulated.title == "a test's" and server.argv[-1] == "--max-num-seqs=2"
    # Two answers at a time give 100 tokens/s, less where this machine is busy, and more in a part of the run in which
    # the server makes up for an earlier delay; three at a time would give 150, and all 64 of the profile 3,200.
    assert 30 < made.scenarios[0].value < 3 / 0.02
    assert made.took_s < 5 + 30, "the server gives up what is still open when the run is ended"


@pytest.mark.parametrize("mine", ["trial/notes.txt", "own/a/b"])
def test_candidates_of_other_inputs_are_removed_and_files_of_the_user_among_them_kept(tmp_path, capsys, mine):
    place = tmp_path / "candidate-001"
    with begun_folder(place / "trial"):
        write_text(place / "trial" / "log", "measured")
    _keep_what_was_made_from(tmp_path, "1")
    assert [path.name for path in tmp_path.iterdir()] == ["inputs.sha256"]
    write_text(place / mine, "mine")
    _keep_what_was_made_from(tmp_path, "1")
    assert (place / mine).read_text() == "mine"
    _keep_what_was_made_from(tmp_path, "2")
    assert (tmp_path / "kept-candidate-001" / mine).read_text() == "mine" and not place.exists()
    assert "kept-candidate-001" in capsys.readouterr().out
