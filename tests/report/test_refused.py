import dataclasses

import pytest
from msgspec.structs import replace

from cm4vllm.common.checking.checks import Stage
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.records import read_record
from cm4vllm.records.accuracy import ACCURACY_FILE, ACCURACY_TEXT, AccuracyRecord
from cm4vllm.records.assets import DUMMY_SOURCE
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.records.logs.detail_log import DETAIL_LOG
from cm4vllm.records.logs.run_logs import SUMMARY_LOG
from cm4vllm.records.run import RUN_FILE, Piece, RunRecord
from cm4vllm.records.server import Simulation
from cm4vllm.report.tree_texts import measurement_readmes
from cm4vllm.results.campaign_results import load
from cm4vllm.results.checks import CHECKS, findings
from cm4vllm.results.run_folders import SYSTEM_FILE, chosen_folder, read_runs
from cm4vllm.rules import Division, ExecutionMode, Scenario


def run_file(out, scenario, mode):
    return next(out.glob(f"runs/*/*/{scenario}/{mode}")) / RUN_FILE


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"settings__terms__round": "v6.0"}, "differ in their round"),
        ({"settings__terms__benchmark": "llama2-70b-99"}, "differ in their benchmark"),
        ({"settings__model__sha256": "00" * 32}, "differ in their model"),
        ({"settings__dataset__sha256": "00" * 32}, "differ in their dataset"),
        ({"settings__server__version": "0.31.0"}, "differ in their server software"),
        ({"loadgen_version": "5.0"}, "differ in their LoadGen version"),
        ({"settings__rehearsal": False, "notice": ""}, "mixes rehearsals with full runs"),
        ({"notice": ""}, "does not say truly"),
    ],
)
def test_a_run_that_does_not_fit_is_refused(out, change, fields, says):
    change(run_file(out, "Server", "performance"), RunRecord, **fields)
    with pytest.raises(SubmissionError) as caught:
        load(out)
    assert says in str(caught.value)


@pytest.mark.parametrize("part", ["lower", "upper", "met", "absent"])
def test_targets_of_another_variant_are_refused(out, change, part):
    path = run_file(out, "Server", "accuracy").with_name(ACCURACY_FILE)
    scores = read_record(path, AccuracyRecord).scores
    last = {
        "lower": [replace(scores[-1], lower=1.0)],
        "upper": [replace(scores[-1], upper=None)],
        "met": [replace(scores[-1], met=not scores[-1].met)],
        "absent": [],
    }[part]
    change(path, AccuracyRecord, scores=[*scores[:-1], *last])
    with pytest.raises(SubmissionError, match=r"targets are not those of llama3\.1-8b"):
        load(out)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"division": Division.CLOSED}, "the command's --division is open, that of campaign.json is closed"),
        ({"benchmark": "llama2-70b-99"}, "the command's --model is llama3.1-8b"),
        ({"command": "cm run script", "benchmark": "llama2-70b-99"}, "the runs' benchmark is llama3.1-8b"),
        ({"round": "v6.0"}, "the runs' round is v6.1"),
        ({"command": "cm run script --execution_mode=valid"}, "the command's --execution_mode is valid"),
        ({"command": "cm run script", "execution_mode": ExecutionMode.VALID}, "the runs' rehearsal is True"),
        ({"submitter": "Someone"}, "the system description's submitter is not-stated"),
    ],
)
def test_a_campaign_that_is_not_of_these_runs_is_refused(out, change, fields, says):
    change(out / CAMPAIGN_FILE, CampaignRecord, **fields)
    with pytest.raises(SubmissionError) as caught:
        load(out)
    assert says in str(caught.value)


def test_a_mapped_model_has_no_place_in_the_closed_division(out, change):
    change(out / CAMPAIGN_FILE, CampaignRecord, division=Division.CLOSED, command="cm run script")
    (out / "system" / "system.json").unlink()
    load(out)  # a rehearsal is no result
    change(out.glob(f"runs/*/*/*/*/{RUN_FILE}"), RunRecord, settings__rehearsal=False)
    with pytest.raises(SubmissionError, match="cannot stand in the closed division"):
        load(out)


def test_a_target_that_nobody_gave_is_loadgens_own(out, change):
    change(run_file(out, "Offline", "performance"), RunRecord, settings__target_qps=0.0)
    performance = load(out).results[0].performance
    assert performance is not None and performance.target_source == "LoadGen's default"


PIECES = [
    Piece(began_at="2026-11-20T10:00:00+00:00", answers=answers, duration_s=1.0, sha256="00" * 32)
    for answers in (40, 24)
]


def test_answers_that_came_in_pieces_are_of_the_open_division(out, change):
    change(run_file(out, "Server", "accuracy"), RunRecord, pieces=PIECES)
    (submission,) = [read_runs(out, chosen_folder(out))]
    closed = dataclasses.replace(submission, division=Division.CLOSED)
    for given, severity in ((submission, Severity.NOTE), (closed, Severity.ERROR)):
        (finding,) = [candidate for candidate in findings(given) if candidate.code == "ANSWERS-IN-PIECES"]
        assert finding.severity is severity
        assert finding.what == "the answers of the Server accuracy run came in 2 pieces: 40 + 24"
    text = measurement_readmes(load(out))[Scenario.SERVER]
    assert "its answers came in 2 pieces" in text and "| 1 | 2026-11-20T10:00:00+00:00 | 40 |" in text


SIMULATION = Simulation(profile="p", title="a machine", sha256="0", seed=0, faults="", source="none", system={})


def broken(out, change):
    """Return for the code of each check how the rehearsal in `out` is made to break its rule."""
    server, offline = run_file(out, "Server", "performance"), run_file(out, "Offline", "performance")
    scores = run_file(out, "Server", "accuracy").with_name(ACCURACY_FILE)
    system = out / SYSTEM_FILE

    def run(**fields):
        return lambda: change(server, RunRecord, **fields)

    def everywhere(**fields):
        change(out.glob(f"runs/*/*/*/*/{RUN_FILE}"), RunRecord, **fields)

    def closed(**fields):
        everywhere(**fields)
        change(out / CAMPAIGN_FILE, CampaignRecord, division=Division.CLOSED)

    return {
        "RUNS-DIFFER": run(settings__server__packages={"torch": "1"}),
        "REHEARSAL-MIXED": run(settings__rehearsal=False),
        "REHEARSAL-NOTICE": lambda: change(scores, AccuracyRecord, notice=""),
        "RECORD-PLACE": lambda: offline.write_bytes(server.read_bytes()),
        "RECORD-TERMS": run(settings__terms__benchmark="llama4"),
        "LOADGEN-NAME": run(settings__terms__loadgen_name="llama3.1-8b"),
        "LOG-CHANGED": lambda: (server.parent / SUMMARY_LOG).write_text("another"),
        "ANSWERS-IN-PIECES": run(pieces=PIECES),
        "SERVER-SIMULATED": lambda: everywhere(settings__server__simulated=SIMULATION),
        "WEIGHTS-DUMMY": run(settings__model__source=DUMMY_SOURCE),
        "CAMPAIGN-DIFFERS": lambda: change(out / CAMPAIGN_FILE, CampaignRecord, round="v6.0"),
        "CLOSED-MAPPED": lambda: closed(settings__rehearsal=False),
        "CLOSED-IDENTITY": lambda: closed(settings__model__name="llama3.1-8b"),
        "CLOSED-LENGTHS": lambda: closed(settings__max_tokens=64),
        "LOG-SCENARIO": lambda: (server.parent / DETAIL_LOG).write_bytes((offline.parent / DETAIL_LOG).read_bytes()),
        "LOG-SEEDS": lambda: everywhere(settings__terms__round="v6.0"),
        "LOG-MIN-DURATION": lambda: everywhere(settings__rehearsal=False, notice=""),
        "LOG-TARGET-QPS": run(settings__target_qps=11.45),
        "TOKENS-RATE": run(client__completion_tokens=1000),
        "SCORES-LOG": lambda: change(scores, AccuracyRecord, log_sha256="00" * 32),
        "TOKEN-WIDTH": lambda: change(scores, AccuracyRecord, tokens=2 * read_record(scores, AccuracyRecord).tokens),
        "SCORES-TARGETS": lambda: change(scores, AccuracyRecord, scores=[]),
        "RUN-MISSING": server.unlink,
        "SCORES-MISSING": scores.unlink,
        "LOG-MISSING": (server.parent / SUMMARY_LOG).unlink,
        "SYSTEM-DIFFERS": lambda: system.write_text(system.read_text().replace("vLLM 0", "vLLM 9")),
        "MODEL-FOLDER": run(settings__model__name="another"),
    }


#: Checks of run folders; those of written trees are in tests/results/test_mutations.py.
OF_RUNS = [code for code, check in CHECKS.items() if check.stage in (Stage.ALWAYS, Stage.SUBMITTED)]


@pytest.mark.parametrize("code", OF_RUNS)
def test_every_check_finds_what_it_is_for_and_nothing_in_a_good_folder(out, change, code):
    folder = chosen_folder(out)
    for accuracy in out.glob("runs/*/*/*/accuracy"):
        (accuracy / ACCURACY_TEXT).write_text("")
    scenarios = [Scenario.OFFLINE, Scenario.SERVER]
    assert [str(finding) for finding in findings(read_runs(out, folder, scenarios), Stage.SUBMITTED)] == []
    broken(out, change)[code]()
    own = [finding for finding in findings(read_runs(out, folder, scenarios), Stage.SUBMITTED) if finding.code == code]
    assert any(finding.severity is CHECKS[code].severity for finding in own)
    assert all(finding.what and finding.rule.text for finding in own)
