"""The token count's method: shown on every page; runs with different methods make no page."""

import io
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

from cm4vllm.common.errors import SubmissionError
from cm4vllm.records.client import TextCounts
from cm4vllm.records.run import RUN_FILE, RunRecord
from cm4vllm.records.server import Dialect, Prompts, ServerRecord
from cm4vllm.report.final_table import final_table
from cm4vllm.report.summary import render
from cm4vllm.report.tree_texts import measurement_readmes
from cm4vllm.results.campaign_results import load
from cm4vllm.results.judgement.campaign_verdict import findings

Change = Callable[..., None]

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
def counted(out: Path, change: Change) -> Path:
    """The folder of a rehearsal against a server that gives text."""
    for path in runs(out):
        change(
            path,
            RunRecord,
            client__text=COUNTS,
            settings__server__dialect=TEXT,
            **{f"settings__server__{name}": value for name, value in NAMES.items()},
        )
    change(out / "server" / "server.json", ServerRecord, dialect=TEXT, **NAMES)
    return out


def runs(out: Path) -> list[Path]:
    return sorted(out.glob(f"runs/*/*/*/*/{RUN_FILE}"))


def test_every_page_says_it(counted: Path) -> None:
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


def test_what_the_server_could_not_be_asked_stands_on_every_page(counted: Path, change: Change) -> None:
    unknown = {"software": "", "version": "", "unchecked": ["whether it caches prompt prefixes: /metrics is missing"]}
    for run in runs(counted):
        change(run, RunRecord, **{f"settings__server__{name}": value for name, value in unknown.items()})
    change(counted / "server" / "server.json", ServerRecord, **unknown)
    readmes = measurement_readmes(load(counted))
    for page in [*readmes.values(), unescape(render(load(counted))), final_table(load(counted), stream=io.StringIO())]:
        assert "not checked: whether it caches prompt prefixes" in " ".join(page.split())
    assert not any(line.strip() == "- Server:" for page in readmes.values() for line in page.splitlines())


def test_a_server_that_lists_ids_is_said_to(real_runs: Path) -> None:
    for page in (*measurement_readmes(load(real_runs)).values(), render(load(real_runs))):
        assert "Token ids are those that the server lists" in page
    assert "Token counts" not in {finding.subject for finding in findings(load(real_runs))}


def test_without_usage_it_says_so_and_no_difference(counted: Path, change: Change) -> None:
    uncounted = TextCounts(answers=0, server_tokens=0, tokenizer_tokens=0, apart=0)
    for path in runs(counted):
        change(path, RunRecord, client__text=uncounted, settings__server__dialect__usage=False)
    page = unescape(render(load(counted)))
    assert "does not count them either" in page and "open division alone" in page
    assert "both counts differ" not in page


def test_runs_that_were_counted_in_two_ways_do_not_belong_together(counted: Path, change: Change) -> None:
    change(runs(counted)[0], RunRecord, settings__server__dialect=None, client__text=None)
    with pytest.raises(SubmissionError, match="way of counting"):
        load(counted)
