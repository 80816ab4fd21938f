import io
import json
import re
import shutil
from dataclasses import replace
from html import unescape

import msgspec
import pytest

from cm4vllm import DUMMY_NOTICE, SIMULATED_NOTICE, STAND_IN_NOTICE
from cm4vllm.common.checking.findings import Severity
from cm4vllm.common.errors import SubmissionError
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.accuracy import ACCURACY_FILE, AccuracyRecord
from cm4vllm.records.assets import ARTICLES, DUMMY_SOURCE, OWN_FILE, STAND_IN_SOURCE
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.records.checker import CHECKER_FILE, CheckerRecord, CheckerRun
from cm4vllm.records.client import TextCounts
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.records.server import Dialect, Prompts, ServerRecord, Simulation
from cm4vllm.report.final_table import final_table, next_step
from cm4vllm.report.summary import render, write_summary
from cm4vllm.report.tree_texts import measurement_readmes
from cm4vllm.results.campaign_results import load
from cm4vllm.results.judgement.campaign_verdict import findings, findings_on_rehearsal, headline, missing
from cm4vllm.rules import Scenario

pytestmark = pytest.mark.xdist_group("runs-report")  # one process makes the runs of these files


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


class AsciiFile(io.StringIO):
    encoding = "ascii"


def test_plain_text_has_aligned_columns_and_no_colour(real_runs):
    text = final_table(load(real_runs), stream=io.StringIO())
    assert "\x1b" not in text
    lines = text.splitlines()
    first = lines.index("*** REHEARSAL, NOT A RESULT ***") + 1
    head, rule, offline, server = lines[first : first + 4]
    starts = [match.start() for match in re.finditer(r"\S+", rule)]
    names = [head[start:].split("  ")[0].strip() for start in starts]
    assert names == ["scenario", "metric", "samples/s", "result", "TTFT p99", "TPOT p99", "accuracy"]
    assert offline.startswith("Offline ") and server.startswith("Server ")
    assert all(line[start - 1] == " " for line in (offline, server) for start in starts[1:])
    assert "tokens/s" in offline and "valid" in offline and "no limit" in offline
    assert "< 2,000 ms" in server and "left)" in server


def test_it_names_places_and_verdicts(real_runs):
    text = final_table(load(real_runs), stream=io.StringIO())
    assert f"logs:    {next(real_runs.glob('runs/*/*'))}" in text
    assert "tree:    not built" in text
    assert "checker: passed for round v6.1" in text
    assert "not stated:" not in text  # a rehearsal states nothing
    *_, offline, server, empty, page, following = text.splitlines()
    assert offline.startswith("Offline  ") and server.startswith("Server  ") and not empty
    assert page == f"report:  {real_runs / 'summary.html'}"
    assert following.startswith("next:    the same command with --execution_mode=valid")
    assert "ROUGE2 12.25 (≥ 15.748425): not met" in text and "mapped to the benchmark llama3.1-8b" in text


def test_a_result_says_what_it_does_not_state_and_what_makes_it_doubtful(published, change):
    text = final_table(load(published), stream=io.StringIO())
    assert "not stated: " in text and "the server's command" in text
    path = next(published.glob("runs/*/*/Server/performance")) / RUN_FILE
    change(path, RunRecord, client__self_check=None)
    doubt = "WARNING Server: the client was not checked before the run"
    assert doubt in final_table(load(published), stream=io.StringIO())


def test_a_rehearsal_claims_no_precision_of_which_it_could_warn(out, change):
    change(next(out.glob("runs/*/*/Server/performance")) / RUN_FILE, RunRecord, client__self_check=None)
    report = load(out)
    assert "WARNING" not in final_table(report, stream=io.StringIO())
    assert "Server client" in [finding.field for finding in findings(report)]  # the page has it


def test_an_invalid_result_says_why(out, change):
    path = next(out.glob("runs/*/*/Server/performance")) / RUN_FILE
    change(path, RunRecord, client__failed=2)
    text = final_table(load(out), stream=io.StringIO())
    assert re.search(r"Server .* INVALID ", text) and "Server is INVALID: 2 of " in text


def test_a_metric_that_is_not_scored_is_named_with_the_reason_on_every_page(out, change):
    path = next(out.glob("runs/*/*/Offline/accuracy")) / ACCURACY_FILE
    scores = read_record(path, AccuracyRecord).scores
    change(path, AccuracyRecord, scores=scores[1:], unscored={"ROUGE1": "its <words> cannot be counted"})
    report = load(out)
    text = final_table(report, stream=io.StringIO())
    assert "ROUGE1: not scored: its <words> cannot be counted" in text
    assert re.search(r"Offline .* targets met, 1 not scored", text)
    finding = next(listed for listed in findings(report) if listed.field == "Offline accuracy")
    assert finding.severity is not Severity.GOOD and "ROUGE1 is not scored: its <words>" in finding.what
    write_summary(report)
    page = (out / "summary.html").read_text(encoding="utf-8")
    assert "ROUGE1 is not scored: its &lt;words&gt; cannot be counted" in page
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["results"][0]["unscored"] == {"ROUGE1": "its <words> cannot be counted"}
    assert "ROUGE1 | not scored" in measurement_readmes(load(out))[Scenario.OFFLINE]


def test_a_terminal_gets_colour_and_the_same_words(real_runs):
    report = load(real_runs)
    coloured = final_table(report, stream=Terminal())
    assert "\x1b[" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert "REHEARSAL, NOT A RESULT" in bare and "checker: passed" in bare
    above, _, rest = final_table(report, stream=io.StringIO()).partition("*** REHEARSAL")
    for line in (*above.splitlines(), *rest.partition("report:")[2].splitlines()):
        assert " ".join(line.split()) in " ".join(bare.split())  # long lines are wrapped there
    lines = [*bare.partition("┏")[0].splitlines(), *bare.partition("┘")[2].splitlines()]
    assert all(len(line) <= 80 or max(map(len, line.split())) > 40 for line in lines)  # paths stay whole


def test_an_ascii_stream_gets_ascii(real_runs):
    text = final_table(load(real_runs), stream=AsciiFile())
    assert text.isascii() and "(>= 15.748425)" in text


def test_records_cannot_drive_the_terminal(out, change):
    change(out.glob(f"runs/*/*/*/*/{RUN_FILE}"), RunRecord, settings__model__name="evil\x1b[2J[/name]")
    change(out / CAMPAIGN_FILE, CampaignRecord, commit="\x1b[0m")
    assert "\x1b" not in final_table(load(out), stream=io.StringIO())
    coloured = final_table(load(out), stream=Terminal())
    assert "evil[/name]" in coloured
    assert "\x1b[2J" not in coloured


def test_a_scenario_that_was_not_run_is_listed(out):
    shutil.rmtree(next(out.glob("runs/*/*/Offline")))
    assert re.search(r"^Offline +not measured$", final_table(load(out), stream=io.StringIO()), re.MULTILINE)


# --- campaign_verdict


PASSED = CheckerRecord(
    commit="b66003e1",
    round="v4.1",
    passed=True,
    runs=[
        CheckerRun(
            name="submission_checker", argv=[], status=0, results=2, errors=[], warnings=[], crashed=False, passed=True
        )
    ],
)


REFUSED = msgspec.structs.replace(PASSED.runs[0], passed=False, errors=["seeds"], status=1)
FAULTY = msgspec.structs.replace(PASSED.runs[0], name="old", passed=False, status=1, own_fault="TypeError: a")


@pytest.fixture
def result(published):
    return load(published)


def with_first(report, **fields):
    """Return a report with other fields of the performance of its first result."""
    first, *others = report.results
    results = replace(first, performance=replace(first.performance, **fields)), *others
    return replace(report, submission=replace(report.submission, results=results))


def test_an_open_result_below_the_closed_targets_is_valid_and_says_so(result):
    report = replace(result, checker=PASSED)
    assert headline(report) == "A valid result in the open division"
    kinds = {f.field: f.severity for f in findings(report)}
    assert kinds["Offline performance"] is Severity.GOOD and kinds["Offline accuracy"] is Severity.NOTE


def test_a_result_whose_client_was_the_bottleneck_says_so_first(result):
    run = result.results[0].performance.run
    slow = msgspec.structs.replace(run.client.self_check, capacity_qps=0.1)
    run = msgspec.structs.replace(run, client=msgspec.structs.replace(run.client, self_check=slow))
    report = replace(with_first(result, run=run), checker=PASSED)
    assert headline(report) == "Valid in the open division, but DOUBTFUL: see Offline client"
    assert "may have been the bottleneck" in next(f.what for f in findings(report) if f.field == "Offline client")


@pytest.mark.parametrize(
    ("checker", "verdict", "text"),
    [
        (None, "Valid in the open division, but not complete: see Official checker", "not run"),
        (PASSED, "A valid result in the open division", "passed for round v4.1 (submission_checker: passed)"),
        (
            msgspec.structs.replace(PASSED, passed=False, runs=[REFUSED]),
            "Not a valid submission: see Official checker",
            "refused for round v4.1 (submission_checker: refused with 1 error)",
        ),
        (
            msgspec.structs.replace(PASSED, runs=[*PASSED.runs, FAULTY]),
            "A valid result in the open division",
            "passed for round v4.1 (submission_checker: passed, old: no verdict, it ended by a fault of its own)",
        ),
        (
            CheckerRecord(commit="", round="v4.1", passed=False, unavailable="no network"),
            "Valid in the open division, but not complete: see Official checker",
            "not run: no network",
        ),
    ],
)
def test_the_verdict_of_the_checker_is_a_part_of_that_on_the_result(result, checker, verdict, text):
    report = replace(result, checker=checker)
    assert (headline(report), findings(report)[-1].what) == (verdict, text)


def test_an_invalid_run_is_bad_in_a_result_and_a_note_in_a_rehearsal(result, real_runs):
    for report, kind in ((result, Severity.ERROR), (load(real_runs), Severity.NOTE)):
        invalid = with_first(report, loadgen_valid=False, loadgen_reasons=("minimum duration not met",))
        finding = findings(invalid)[0]
        assert finding.severity is kind and finding.what.startswith("INVALID (minimum duration not met)")


def test_a_checker_refuses_a_rehearsal_for_being_short(real_runs):
    report = load(real_runs)
    assert report.checker is not None
    short = msgspec.structs.replace(
        report.checker.runs[0], passed=False, status=1, errors=["SUMMARY: submission has errors"]
    )
    report = replace(report, checker=msgspec.structs.replace(report.checker, passed=False, runs=[short]))
    assert findings_on_rehearsal(report) == []
    assert findings(report)[-1].severity is Severity.GOOD
    assert "only length findings, expected of a rehearsal" in findings(report)[-1].what
    assert "SUMMARY" not in final_table(report, stream=io.StringIO())  # what is expected is not listed
    slow = msgspec.structs.replace(short, errors=["Failed extra check for TTFT and TPOT. Obtained: TTFT 99-tile: 5"])
    report = replace(report, checker=msgspec.structs.replace(report.checker, runs=[slow]))
    assert "only length and latency findings" in findings(report)[-1].what
    broken = msgspec.structs.replace(short, errors=["no such file"])
    report = replace(report, checker=msgspec.structs.replace(report.checker, runs=[broken]))
    assert "submission_checker: no such file" in final_table(report, stream=io.StringIO())


def test_gaps_are_named_in_words(result, real_runs):
    assert {"Accelerator topology", "the model's SHA-256: its files are not on this machine"} <= set(missing(result))
    gaps = missing(load(real_runs))
    assert gaps.count("Submitter") == 1 and "Cooling" in gaps and "the model's number of parameters" not in gaps
    assert missing(replace(result, system={}))[0] == "the description of the system"


def test_a_shortened_run_is_named_on_every_page_of_a_rehearsal(real_runs):
    report = load(real_runs)
    assert report.shortened == {}
    words = "7 queries in place of 768; LoadGen's verdict needs 662"
    run = report.results[0].performance.run
    settings = msgspec.structs.replace(run.settings, shortened=words)
    report = with_first(report, run=msgspec.structs.replace(run, settings=settings))
    named = next(f for f in findings(report) if f.field == f"{settings.title} run")
    assert (named.severity, named.what) == (Severity.NOTE, f"shortened: {words}")
    assert f"{settings.title} is shortened: {words}" in final_table(report, stream=io.StringIO())


# --- the line that ends a job names the command or the flag that comes next


SIMULATION = Simulation(profile="p", title="4 GPUs", sha256="0" * 64, seed=0, faults="", source="measured", system={})


@pytest.mark.parametrize(
    ("notice", "fields", "words"),
    [
        (STAND_IN_NOTICE, {"settings__model__source": STAND_IN_SOURCE}, "--vllm_model_name="),
        (DUMMY_NOTICE, {"settings__model__source": DUMMY_SOURCE}, "--vllm_model_name="),
        ("", {"settings__dataset__recipe": {OWN_FILE: ARTICLES}}, "--vllm_model_name="),
        (SIMULATED_NOTICE, {"settings__server__simulated": SIMULATION}, "without --rehearse"),
    ],
)
def test_what_is_no_benchmarks_model_leads_to_a_real_one(published, change, notice, fields, words):
    change(published.glob(f"runs/*/*/*/*/{RUN_FILE}"), RunRecord, notice=notice, **fields)
    change(published.glob("runs/*/*/*/*/accuracy.json"), AccuracyRecord, notice=notice)
    assert words in next_step(load(published))


def test_a_result_leads_to_its_check_and_then_to_the_archive(published, real_runs, change):
    assert next_step(load(published)) == ""  # no tree was built
    tree = published / "submission"
    (tree / "open" / "NeuralMagic").mkdir(parents=True)
    assert next_step(load(published)) == f"cm run script --tags=check,mlperf,results --input={tree}"
    shutil.copy(real_runs / CHECKER_FILE, published / CHECKER_FILE)
    assert next_step(load(published)) == f"cm run script --tags=pack,mlperf,submission --submission_dir={tree}"
    refused = read_record(published / CHECKER_FILE, CheckerRecord)
    change(published / CHECKER_FILE, CheckerRecord, passed=False)
    assert next_step(load(published)) == ""
    write_record(published / CHECKER_FILE, refused)
    change(next(published.glob(f"runs/*/*/Server/performance/{RUN_FILE}")), RunRecord, client__failed=1)
    assert next_step(load(published)) == ""


# --- the token count's method: shown on every page; runs with different methods make no page


TEXT = Dialect(prompts=Prompts.TEXT, done=False, left_out=["min_tokens"])
COUNTS = TextCounts(
    answers=64,
    server_tokens=8000,
    tokenizer_tokens=7990,
    apart=24,
    prompt_tokens=6000,
    server_prompt_tokens=6064,
    prompts_changed=3,
)
NAMES = {"software": "SGLang", "version": "0.5.5", "owned": False, "argv": [], "packages": {}}


@pytest.fixture
def counted(out, change):
    """The folder of a rehearsal against a server that gives text."""
    change(
        runs(out),
        RunRecord,
        client__text=COUNTS,
        settings__server__dialect=TEXT,
        **{f"settings__server__{name}": value for name, value in NAMES.items()},
    )
    change(out / "server" / "server.json", ServerRecord, dialect=TEXT, **NAMES)
    return out


def runs(out):
    return sorted(out.glob(f"runs/*/*/*/*/{RUN_FILE}"))


def test_every_page_says_it(counted):
    readmes = measurement_readmes(load(counted))
    pages = [*readmes.values(), unescape(render(load(counted))), final_table(load(counted), stream=io.StringIO())]
    for page in pages:
        text = " ".join(page.replace("\\", "").split())
        assert "The server gives text and no token ids." in text
        assert "Prompts were sent as text" in text and "takes no min_tokens:" in text
        assert "both counts differ by 0.3% over 64 answers" in text
        assert "3 are other token ids" in text and "counts 6,064 tokens of prompts" in text
    assert all("SGLang 0.5.5" in page for page in pages[:-1])
    assert all("vLLM 0.5.5" not in page for page in pages)


def test_what_the_server_could_not_be_asked_stands_on_every_page(counted, change):
    unknown = {"software": "", "version": "", "unchecked": ["whether it caches prompt prefixes: /metrics is missing"]}
    change(runs(counted), RunRecord, **{f"settings__server__{name}": value for name, value in unknown.items()})
    change(counted / "server" / "server.json", ServerRecord, **unknown)
    readmes = measurement_readmes(load(counted))
    for page in [*readmes.values(), unescape(render(load(counted))), final_table(load(counted), stream=io.StringIO())]:
        assert "not checked: whether it caches prompt prefixes" in " ".join(page.split())
    assert not any(line.strip() == "- Server:" for page in readmes.values() for line in page.splitlines())


def test_a_server_that_lists_ids_is_said_to(real_runs):
    for page in (*measurement_readmes(load(real_runs)).values(), render(load(real_runs))):
        assert "Token ids are those that the server lists" in page
    assert "Token counts" not in {finding.field for finding in findings(load(real_runs))}


def test_without_usage_it_says_so_and_no_difference(counted, change):
    uncounted = TextCounts(answers=0, server_tokens=0, tokenizer_tokens=0, apart=0)
    change(runs(counted), RunRecord, client__text=uncounted, settings__server__dialect__usage=False)
    page = unescape(render(load(counted)))
    assert "does not count them either" in page and "open division alone" in page
    assert "both counts differ" not in page


def test_runs_that_were_counted_in_two_ways_do_not_belong_together(counted, change):
    change(runs(counted)[0], RunRecord, settings__server__dialect=None, client__text=None)
    with pytest.raises(SubmissionError, match="way of counting"):
        load(counted)
