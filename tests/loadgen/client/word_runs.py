"""Runs against a server that gives text: their dataset and model, and the contents of their logs."""

import json

from cm4vllm.common.files import sha256_of
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.logs.run_logs import ACCURACY_LOG, read_accuracy_log
from text_server import MODEL, answer_words, prompt_text, save_model, tokenizer

SAMPLES = 64


def word_records(folder):
    """Return the dataset whose prompts the text server reads, and the model whose tokenizer counts."""
    reader = tokenizer()
    rows = [
        {"input": prompt_text(i), "tok_input": reader.encode(prompt_text(i)).ids, "output": "x"} for i in range(SAMPLES)
    ]
    path = folder / "dataset.json"
    path.write_text(json.dumps(rows))
    dataset = DatasetRecord(
        name="words",
        path=str(path),
        source="made by the test",
        sha256=sha256_of(path),
        samples=SAMPLES,
        max_input_tokens=42,
        sentences="punkt-untrained",
    )
    model = ModelRecord(name=MODEL, path=str(save_model(folder / "model")), source="made by the test", sha256="")
    return dataset, model


def expected(index, most=128):
    """Return the ids that the tokenizer makes of the answer to a sample."""
    return tokenizer().encode("".join(answer_words(prompt_text(index), 2 * most)[:most])).ids


def logged(folder):
    return {index: tokens.tolist() for index, tokens, _ in read_accuracy_log(folder / ACCURACY_LOG)}
