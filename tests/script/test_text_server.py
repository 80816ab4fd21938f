"""The main job against a server that gives text and no token ids: both scenarios, its records and its pages."""

import json
from pathlib import Path

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.rules import benchmark_terms
from gateway import Gateway
from listing_server import listing_url
from text_server import MODEL, TextServer, answer_words, prompt_text, save_model, tokenizer

SECRET = "sk-very-secret-value-4"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model's folder, and a dataset of the benchmark's size whose references are the server's answers."""
    folder = tmp_path_factory.mktemp("text")
    reader, rows = tokenizer(), []
    for index in range(benchmark_terms("v6.1", "llama3.1-8b").samples):
        prompt = prompt_text(index)
        rows.append(
            {
                "input": prompt,
                "tok_input": reader.encode(prompt).ids,
                "output": "".join(answer_words(prompt, 256)[:128]).strip(),
            }
        )
    (folder / "dataset.json").write_text(json.dumps(rows))
    return save_model(folder / MODEL), folder / "dataset.json"


def job(cm, files, endpoint, *flags):
    model, dataset = files
    return cm.main_job(
        f"--api_server={endpoint}",
        f"--vllm_model_name={MODEL}",
        f"--dataset_path={dataset}",
        "--max_model_len=2048",
        "--max_in_flight=32",
        "--output_dir=results",
        "--test_query_count=64",
        "--max_test_duration=3",
        "--offline_target_qps=100",
        "--server_target_qps=50",
        "--run_checker=no",
        *flags,
        tags=f",_vllm,_performance-only,_path.{model}",
        timeout_s=400,
    )


@pytest.fixture
def of_another_model(files, tmp_path):
    """A dataset of the user's own, of 345 rows, whose token ids are those of another model."""
    rows = json.loads(files[1].read_text())[:345]
    own = tmp_path / "prompts.json"
    own.write_text(json.dumps([{**row, "tok_input": [1 + token for token in row["tok_input"]]} for row in rows]))
    return files[0], own


def test_a_job_behind_a_gateway_says_everywhere_how_tokens_were_counted_and_that_prompts_were_tokenised_again(
    cm, files, of_another_model, monkeypatch
):
    monkeypatch.setenv("MY_OWN", SECRET)
    with TextServer(extra=lambda count: count // 60) as server, Gateway(server.endpoint, "/team/a", SECRET) as gateway:
        done = job(cm, of_another_model, gateway.endpoint, "--api_key_env=MY_OWN")
    assert done.code == 0, done.output
    assert "gives text and no token ids" in done.output
    records = [json.loads(path.read_text()) for path in cm.cwd.glob("results/test/runs/*/*/*/*/run.json")]
    assert len(records) == 2
    for record in records:
        assert record["settings"]["server"]["dialect"]["prompts"] == "text"
        assert record["settings"]["server"]["access"]["key_env"] == "MY_OWN"
        assert record["client"]["failed"] == 0
        assert record["client"]["text"]["answers"] >= 64
        assert 0 < record["client"]["text"]["apart"] < 0.02 * record["client"]["text"]["server_tokens"]
    page = (cm.cwd / "results/test/summary.html").read_text()
    for text in (page, done.output):
        words = " ".join(text.split())
        assert "gives text and no token ids" in words
        assert "both counts differ by 0." in words
    for path in (path for path in cm.cwd.rglob("*") if path.is_file()):
        assert SECRET not in path.read_text(errors="replace"), path
    rows, published = (json.loads(path.read_text()) for path in (_dataset(records[0]), files[1]))
    assert [row["tok_input"] for row in rows] == [row["tok_input"] for row in published[:345]]
    pages = [path.read_text() for path in cm.cwd.glob("results/test/**/README.md")]
    for text in (done.output, page, *pages):
        words = " ".join(text.split())
        assert "tokenised for another model" in words and "tokenised again for" in words
    page = " ".join(page.split())
    assert "64 of your dataset&#39;s 345 samples" in page
    assert "of the benchmark's" not in page and "of the benchmark&#39;s" not in page
    assert "a result needs the 13,368 samples" in " ".join(done.output.split())


def _dataset(record):
    return Path(record["settings"]["dataset"]["path"])


def test_a_result_of_the_closed_division_takes_no_prompts_of_another_model(cm, of_another_model):
    flags = ("--division=closed", "--plan")
    done = job(cm, of_another_model, listing_url(), *flags)
    assert done.code == 0, done.output
    reasons = " ".join(done.output.split())
    assert "closed division, a valid run would be refused: the prompts of prompts.json were tokenised for" in reasons
    done = job(cm, of_another_model, listing_url(), *flags, "--execution_mode=valid")
    done.refused_with(UsageError.exit_code, "the prompts of prompts.json were tokenised for another model", "remedy")
