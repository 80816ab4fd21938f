"""What is known of a model and of a dataset, beside the files themselves."""

from __future__ import annotations

from cm4vllm.common.records import Record

__all__ = ["DatasetRecord", "ModelRecord"]


class ModelRecord(Record, frozen=True, kw_only=True):
    """A model folder. `sha256` covers names and contents of all its files; empty for a model we have no files of.

    `name` is the name under which results are published: never that of a benchmark's model unless it is that model.
    `source` says where it comes from in words a reader can follow. `weight_data_types` is read from the checkpoint.
    `min_tokens` is 2 for a model that may end its answer at once (see rules.benchmarks.Benchmark).
    """

    name: str
    path: str
    source: str
    sha256: str
    parameters: int | None = None
    architecture: str = ""
    weight_data_types: str = ""
    weight_transformations: str = "none"
    min_tokens: int = 1
    recipe: dict[str, str] = {}


class DatasetRecord(Record, frozen=True, kw_only=True):
    """A dataset file: a JSON list of {input, tok_input, output}, as the reference's cnn_eval.json.

    `sentences` says how sentences are split for ROUGE-Lsum: `punkt_tab` is nltk's English model, as the reference
    uses; `punkt-untrained` is the same algorithm without a model, for the datasets made by us.
    """

    name: str
    path: str
    source: str
    sha256: str
    samples: int
    max_input_tokens: int
    tokenizer_sha256: str = ""
    sentences: str = "punkt_tab"
    recipe: dict[str, str] = {}
