import io
import json
import re
from collections.abc import Callable
from pathlib import Path

from cm4vllm.common.records import read_record
from cm4vllm.records.accuracy import ACCURACY_FILE, AccuracyRecord
from cm4vllm.records.campaign import CAMPAIGN_FILE, CampaignRecord
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.report.final_table import final_table
from cm4vllm.report.summary import write_summary
from cm4vllm.report.tree_texts import measurement_readmes
from cm4vllm.results.campaign_results import load
from cm4vllm.results.judgement.campaign_verdict import Kind, findings
from cm4vllm.rules import Scenario

Change = Callable[..., None]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class AsciiFile(io.StringIO):
    encoding = "ascii"


def test_plain_text_has_aligned_columns_and_no_colour(real_runs: Path) -> None:
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


def test_it_names_places_and_verdicts(real_runs: Path) -> None:
    text = final_table(load(real_runs), stream=io.StringIO())
    assert f"logs:    {next(real_runs.glob('runs/*/*'))}" in text
    assert "tree:    not built" in text and f"report:  {real_runs / 'summary.html'}" in text
    assert "checker: passed for round v6.1" in text
    assert "not stated:" not in text  # a rehearsal states nothing
    assert "ROUGE2 12.25 (≥ 15.748425): not met" in text and "mapped to the benchmark llama3.1-8b" in text


def test_the_last_lines_are_what_was_measured_where_the_page_is_and_what_to_do_next(real_runs: Path) -> None:
    *_, offline, server, empty, page, following = final_table(load(real_runs), stream=io.StringIO()).splitlines()
    assert offline.startswith("Offline  ") and server.startswith("Server  ") and not empty
    assert page == f"report:  {real_runs / 'summary.html'}"
    assert following.startswith("next:    ")


def test_a_result_says_what_it_does_not_state_and_what_makes_it_doubtful(published: Path, change: Change) -> None:
    text = final_table(load(published), stream=io.StringIO())
    assert "not stated: " in text and "the server's command" in text
    path = next(published.glob("runs/*/*/Server/performance")) / RUN_FILE
    change(path, RunRecord, client__self_check=None)
    doubt = "WARNING Server: the client was not checked before the run"
    assert doubt in final_table(load(published), stream=io.StringIO())


def test_a_rehearsal_claims_no_precision_of_which_it_could_warn(out: Path, change: Change) -> None:
    change(next(out.glob("runs/*/*/Server/performance")) / RUN_FILE, RunRecord, client__self_check=None)
    report = load(out)
    assert "WARNING" not in final_table(report, stream=io.StringIO())
    assert "Server client" in [finding.subject for finding in findings(report)]  # the page has it


def test_published_rates_keep_their_units(published: Path) -> None:
    text = final_table(load(published), stream=io.StringIO())
    assert re.search(r"Offline +1,871\.84 tokens/s +6\.31 +valid", text)
    assert re.search(r"Server +1,954\.36 tokens/s +6\.89 +valid", text)
    assert "REHEARSAL" not in text


def test_an_invalid_result_says_why(out: Path, change: Change) -> None:
    path = next(out.glob("runs/*/*/Server/performance")) / RUN_FILE
    change(path, RunRecord, client__failed=2)
    text = final_table(load(out), stream=io.StringIO())
    assert re.search(r"Server .* INVALID ", text) and "Server is INVALID: 2 of " in text


def test_a_metric_that_is_not_scored_is_named_with_the_reason_on_every_page(out: Path, change: Change) -> None:
    path = next(out.glob("runs/*/*/Offline/accuracy")) / ACCURACY_FILE
    scores = read_record(path, AccuracyRecord).scores
    change(path, AccuracyRecord, scores=scores[1:], unscored={"ROUGE1": "its <words> cannot be counted"})
    report = load(out)
    text = final_table(report, stream=io.StringIO())
    assert "ROUGE1: not scored: its <words> cannot be counted" in text
    assert re.search(r"Offline .* targets met, 1 not scored", text)
    finding = next(listed for listed in findings(report) if listed.subject == "Offline accuracy")
    assert finding.kind is not Kind.GOOD and "ROUGE1 is not scored: its <words>" in finding.text
    write_summary(report)
    page = (out / "summary.html").read_text(encoding="utf-8")
    assert "ROUGE1 is not scored: its &lt;words&gt; cannot be counted" in page
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["results"][0]["unscored"] == {"ROUGE1": "its <words> cannot be counted"}
    assert "ROUGE1 | not scored" in measurement_readmes(load(out))[Scenario.OFFLINE]


def test_a_terminal_gets_colour_and_the_same_words(real_runs: Path) -> None:
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


def test_an_ascii_stream_gets_ascii(real_runs: Path) -> None:
    text = final_table(load(real_runs), stream=AsciiFile())
    assert text.isascii() and "(>= 15.748425)" in text


def test_records_cannot_drive_the_terminal(out: Path, change: Change) -> None:
    for path in out.glob(f"runs/*/*/*/*/{RUN_FILE}"):
        change(path, RunRecord, settings__model__name="evil\x1b[2J[/name]")
    change(out / CAMPAIGN_FILE, CampaignRecord, commit="\x1b[0m")
    assert "\x1b" not in final_table(load(out), stream=io.StringIO())
    coloured = final_table(load(out), stream=Terminal())
    assert "evil[/name]" in coloured
    assert "\x1b[2J" not in coloured


def test_a_scenario_that_was_not_run_is_listed(out: Path) -> None:
    import shutil

    shutil.rmtree(next(out.glob("runs/*/*/Offline")))
    assert re.search(r"^Offline +not measured$", final_table(load(out), stream=io.StringIO()), re.MULTILINE)
