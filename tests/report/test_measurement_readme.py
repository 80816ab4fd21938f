import html
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cm4vllm.common.number_texts import number, rate
from cm4vllm.common.records import write_record
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.records.software import SoftwareRecord
from cm4vllm.report.summary import render
from cm4vllm.report.tree_texts import block, code, escape, measurement_readmes
from cm4vllm.results.campaign_results import load
from cm4vllm.rules import Scenario

Change = Callable[..., None]


def test_a_rehearsal_says_so_first_and_last(real_runs: Path) -> None:
    texts = measurement_readmes(load(real_runs))
    assert list(texts) == [Scenario.OFFLINE, Scenario.SERVER]
    for text in texts.values():
        lines = text.splitlines()
        assert lines[0] == lines[-1] == "**REHEARSAL, NOT A RESULT**"
        assert "64 of the benchmark's 13,368 samples" in text


def test_a_result_does_not_call_itself_a_rehearsal(published: Path) -> None:
    for text in measurement_readmes(load(published)).values():
        assert text.startswith("# ") and "REHEARSAL" not in text.upper()


def test_rates_carry_their_own_units(published: Path) -> None:
    """The published README of this run says: `Samples per second`: `1871.84`."""
    offline, server = measurement_readmes(load(published)).values()
    assert "**1,871.84 tokens/s**" in offline and "| 6.31 samples/s |" in offline
    assert "**1,954.36 tokens/s**" in server and "| 6.89 samples/s |" in server
    assert "1,871.84 samples" not in offline and "1,954.36 samples" not in server


def test_targets_are_those_of_the_variant_with_both_bounds(published: Path) -> None:
    """The published README held a 99.9 entry against the targets of 99, and left out that it misses them."""
    text = measurement_readmes(load(published))[Scenario.OFFLINE]
    assert "| ROUGE1 | 41.6468 | ≥ 44.3867688 | **not met** |" in text
    assert "| TOKENS_PER_SAMPLE | 296.5 | ≥ 265.005 and ≤ 323.895 | met |" in text


def test_latencies_stand_against_their_limits(published: Path) -> None:
    offline, server = measurement_readmes(load(published)).values()
    assert "| TTFT, 99th percentile | 319.5 ms; limit 2,000 ms, 84.0% left |" in server
    assert "| TPOT, 99th percentile | 76.9 ms; limit 200 ms, 61.6% left |" in server
    assert "no limit in the Offline scenario" in offline


def test_a_mapped_model_is_not_called_the_benchmarks(real_runs: Path) -> None:
    for text in measurement_readmes(load(real_runs)).values():
        assert "`tiny-llama`, **not** the benchmark's own model" in text
        assert "mapped to\n> the benchmark `llama3.1-8b`" in text


def test_it_tells_how_to_run_it_again(real_runs: Path) -> None:
    text = measurement_readmes(load(real_runs))[Scenario.SERVER]
    assert "cm run script \\\n    --tags=run-mlperf,inference,_vllm,_r6.1 \\\n" in text
    assert 'python -m vllm.entrypoints.openai.api_server \\\n    --model="${MODEL:?}" \\\n' in text
    assert "VLLM_CPU_KVCACHE_SPACE=1" in text and "/srv/" not in text
    assert "MLPerf LoadGen 6.0.17" in text and "vLLM 0.32.0" in text and "torch 2.13.0+cpu" in text
    assert "The client asked it at `/inference/v1/generate`." in text
    assert "its processes had 10 more niceness" in text
    assert "ab" * 32 in text and "cd" * 32 in text
    assert "0.8 of the rate of the Offline accuracy run" in text


def test_every_number_of_the_run_is_there(real_runs: Path) -> None:
    texts = measurement_readmes(load(real_runs))
    for m in load(real_runs).results:
        assert m.performance and m.accuracy and m.accuracy.record
        result, client = m.performance, m.performance.run.client
        numbers = [
            rate(result.tokens_per_second),
            rate(result.samples_per_second),
            number(result.samples),
            number(client.requests),
            *(number(s.value) for s in m.accuracy.record.scores),
        ]
        assert [n for n in numbers if n not in texts[m.scenario]] == []


def test_what_was_not_measured_says_so(out: Path) -> None:
    for path in ("campaign.json", "system/system.json"):
        (out / path).unlink()
    root = next(out.glob("runs/*/*"))
    shutil.rmtree(root / "Offline" / "performance")
    shutil.rmtree(root / "Server" / "accuracy")
    offline, server = measurement_readmes(load(out)).values()
    assert re.search(r"### Performance\n\nNot measured\.", offline)
    assert re.search(r"### Accuracy\n\nNot measured\.", server)
    assert "The system is not described." in server and "the command that started the runs" in server


def test_an_invalid_result_says_why(out: Path, change: Change) -> None:
    path = next(out.glob("runs/*/*/Server/performance")) / RUN_FILE
    change(path, RunRecord, client__failed=2, client__failures={"HTTP 500: `oops` | <b>": 2})
    text = measurement_readmes(load(out))[Scenario.SERVER]
    assert "Why it is not valid:" in text and "requests failed" in text
    assert "- 2 times HTTP 500: \\`oops\\` \\| &lt;b&gt;" in text


def test_a_hostile_name_stays_a_name(out: Path, change: Change) -> None:
    name = "x<script>alert(1)</script>`|`\n# heading"
    for path in out.glob(f"runs/*/*/*/*/{RUN_FILE}"):
        change(path, RunRecord, settings__model__name=name)
    text = measurement_readmes(load(out))[Scenario.SERVER]
    outside_code = re.sub(r"(`+).*?[^`]\1(?!`)", "", text)
    assert "<script>" not in outside_code and "\n# heading" not in text


@pytest.mark.parametrize("value", ["plain", "a`b", "``", "a|b", "`", ""])
def test_code_spans_cannot_be_closed_from_within(value: str) -> None:
    span = code(value)
    match = re.fullmatch(r"(`+) ?(.*?) ?\1", span)
    assert (match is None) == (value == "")
    if match:
        assert match[2].replace("\\|", "|") == value and match[1] not in value


def test_blocks_cannot_be_closed_from_within() -> None:
    assert block("a\n```\nb").splitlines() == ["````bash", "a", "```", "b", "````"]


def test_plain_text_is_no_markup() -> None:
    assert escape("a_b*c*[x](y)<i>&") == "a\\_b\\*c\\*\\[x\\](y)&lt;i&gt;&amp;"


@pytest.fixture
def noted(out: Path, change: Callable[..., None]) -> Path:
    """The rehearsal's folder, with what a campaign notes of software and a model that has a fingerprint."""
    write_record(out / "system" / "software.json", SOFTWARE)
    for path in out.glob("runs/*/*/*/*/run.json"):
        change(path, RunRecord, settings__model__recipe={"hub": "owner/m", "files": "config.json:716:1795371058303"})
    return out


SOFTWARE = SoftwareRecord(
    python="3.11.7 (main, Jan 1 2026) [GCC 12]",
    platform="Linux-6.1.0-x86_64-with-glibc2.36",
    cm="4.2.0",
    cm4vllm="0.1.0",
    commit="0123abcd",
    url="https://github.com/example/cm4vllm",
    packages={"cmind": "4.2.0"},
    os={},
    server_python="3.12.1",
    server_packages={"vllm": "0.32.0"},
)


def test_a_reader_gets_what_helps_to_reproduce_and_nothing_internal(noted: Path) -> None:
    page = re.sub(r'<span class="whole">(.*?)</span>', r"\1", html.unescape(render(load(noted), published=True)))
    for text in (*measurement_readmes(load(noted)).values(), page):
        assert (
            "pip install cmind==4.2.0\ncm pull repo --url=https://github.com/example/cm4vllm --checkout=0123abcd\n"
        ) in text
        for word in ("Linux-6.1.0-x86", "with-glibc2.36", "3.11.7 (main, Jan 1 2026)", "owner/m", "Hub id"):
            assert word in text, word
        assert "1795371058303" not in text and "Recipe" not in text
    page = html.unescape(render(load(noted)))
    assert "cmind==4.2.0" in page and "vllm==0.32.0" in page


@pytest.mark.parametrize("record", [{"url": ""}, {"commit": "0123abcd+changes"}, {"commit": ""}])
def test_a_program_that_nobody_can_pull_is_taken_from_the_submission(noted: Path, record: dict[str, str]) -> None:
    write_record(noted / "system" / "software.json", msgspec.structs.replace(SOFTWARE, **record))
    text = measurement_readmes(load(noted))[Scenario.OFFLINE]
    assert 'cm add repo --path="${SUBMISSION:?}/open/not-stated/src/cm4vllm"\n' in text
    assert "`$SUBMISSION` is the folder of the submission" in text and "cm pull" not in text
