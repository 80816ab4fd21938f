"""Tokenizers that were saved with padding or truncation, as libraries leave them in tokenizer.json after a call."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from cm4vllm.common.files import sha256_of
from cm4vllm.loadgen.process.runner import run
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_accuracy_log, read_performance
from cm4vllm.serving.probing.server_probe import probe
from text_server import MODEL, TextServer, answer_words, prompt_text, save_model, tokenizer

SAMPLES = 64
SOURCES = Path(__file__).parents[3]


def padded(reader):
    reader.enable_padding(length=64)


def padded_to_a_multiple(reader):
    reader.enable_padding(direction="left", pad_to_multiple_of=8)


def cut_to_8(reader):
    reader.enable_truncation(8)


def cut_to_110(reader):
    reader.enable_truncation(110)


def cut_and_padded(reader):
    reader.enable_truncation(110, stride=2, strategy="only_first")
    reader.enable_padding(length=110)


@pytest.fixture
def settings_of(make_settings, tmp_path):
    """Make the settings of a run over texts, of a model whose tokenizer.json was saved after `save` had set it."""

    def make(server, scenario, mode, save):
        folder = save_model(tmp_path / "model")
        saved = Tokenizer.from_file(str(folder / "tokenizer.json"))
        save(saved)
        saved.save(str(folder / "tokenizer.json"))
        path, reader = tmp_path / "dataset.json", tokenizer()
        texts = [prompt_text(index) for index in range(SAMPLES)]
        path.write_text(json.dumps([{"input": t, "tok_input": reader.encode(t).ids, "output": "x"} for t in texts]))
        dataset = DatasetRecord(
            name="words",
            path=str(path),
            source="made by the test",
            sha256=sha256_of(path),
            samples=SAMPLES,
            max_input_tokens=42,
            sentences="punkt-untrained",
        )
        made = make_settings(server.endpoint, scenario, mode, stream_interval=int(scenario == "Server"))
        return replace(
            made,
            server=probe(server.endpoint, MODEL, text=True, max_model_len=2048),
            dataset=dataset,
            model=ModelRecord(name=MODEL, path=str(folder), source="made by the test", sha256=""),
        )

    return make


def answer_ids(index, most=128):
    return tokenizer().encode("".join(answer_words(prompt_text(index), 2 * most)[:most])).ids


SAVED = [padded, padded_to_a_multiple, cut_to_8, cut_to_110, cut_and_padded]


@pytest.mark.parametrize("save", SAVED)
def test_what_was_saved_with_a_tokenizer_changes_neither_ids_nor_counts(tmp_path, settings_of, save):
    with TextServer(counts=False) as server:
        run(settings_of(server, "Offline", "accuracy", save), tmp_path / "run")
    logged = {index: ids.tolist() for index, ids, _ in read_accuracy_log(tmp_path / "run" / ACCURACY_LOG)}
    assert logged == {index: answer_ids(index) for index in range(SAMPLES)}


@pytest.mark.parametrize("save", SAVED)
@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_the_tokens_of_a_server_that_counts_none_are_those_of_its_text(tmp_path, settings_of, save, scenario):
    with TextServer(counts=False) as server:
        record = run(settings_of(server, scenario, "performance", save), tmp_path / "run")
    mean = sum(len(answer_ids(index)) for index in range(SAMPLES)) / SAMPLES
    assert record.client.completion_tokens / record.client.completed == mean
    figures = read_performance(tmp_path / "run").figures
    if scenario == "Offline":
        assert figures["tokens_per_sample"] == pytest.approx(mean, rel=1e-3)
    else:
        assert figures["tpot_mean"] > 0


@pytest.mark.parametrize("save", SAVED)
def test_the_counts_of_a_server_agree_with_those_of_a_saved_tokenizer(tmp_path, settings_of, save):
    with TextServer() as server:
        record = run(settings_of(server, "Offline", "performance", save), tmp_path / "run")
    assert record.client.text.difference == 0
    assert record.client.least_more == record.client.most_more == 0


def test_a_tokenizer_is_opened_in_one_place_only():
    opened = {
        str(path.relative_to(SOURCES))
        for folder in ("src", "script", "automation", "benchmarks")
        for path in (SOURCES / folder).rglob("*.py")
        if re.search(r"\bTokenizer\.from_(file|str|buffer|pretrained)", path.read_text(encoding="utf-8"))
    }
    assert opened == {"src/cm4vllm/assets/tokenizer_file.py"}
