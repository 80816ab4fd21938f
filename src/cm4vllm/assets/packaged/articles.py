"""Two hundred short articles with a summary each: a dataset of the kind of CNN/DailyMail that needs no download.

They were written for cm4vllm by a language model; people and events are made up, and the licence is that of cm4vllm.
They stand for no benchmark's dataset: their number is theirs, and a result is refused with them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cm4vllm.assets.samples.prompt_tokens import chat_prompt, with_token_ids
from cm4vllm.assets.samples.published_formats import rows_of, write_rows
from cm4vllm.common.errors import DatasetError
from cm4vllm.common.files import sha256_of
from cm4vllm.common.progress import step
from cm4vllm.records.assets import ARTICLES, OWN_FILE, DatasetRecord, ModelRecord
from cm4vllm.rules import BenchmarkTerms

SAMPLES = 200
#: The size of the dataset, measured with the tokens of SmolLM2.
DISK_BYTES = 300_000
_FILE = Path(__file__).with_name("articles.json")
_QUESTION = "Summarize this article in one sentence.\n\n{input}"
#: The scorer of benchmarks whose answers are summaries, each sample alike.
_SUMMARIES = "rouge"


def require_summaries(benchmark: BenchmarkTerms, kind: str = "dataset") -> None:
    """Raise DatasetError for a benchmark whose answers are no summaries, and for another kind of set than evaluation's.

    `kind` is that of `DatasetSettings`.
    """
    if kind != "dataset":
        raise DatasetError(
            "the articles are an evaluation set alone",
            cause="a model that was calibrated on them would be judged by what it has seen",
            remedy="give a set of your own: _path.FILE among the tags of get,dataset",
        )
    if benchmark.media is not None or benchmark.scorer != _SUMMARIES or benchmark.columns:
        raise DatasetError(
            f"the articles cannot stand for the dataset of {benchmark.name}",
            cause="their answers are summaries, which ROUGE alone scores",
            remedy="leave --model out: llama3.1-8b sums up articles, too",
        )


def articles_dataset(model: ModelRecord, benchmark: BenchmarkTerms, folder: Path) -> DatasetRecord:
    """Write the articles as prompts of a model's chat template, with its tokens. Raises DatasetError, ModelError."""
    path, place = folder / "articles.json", Path(model.path)
    with step(f"the dataset of {SAMPLES} articles"):
        rows = with_token_ids(_rows(place), place, "articles", "")
        write_rows(path, rows)
    return DatasetRecord(
        name="articles",
        path=str(path),
        source="written for cm4vllm by a language model (cm4vllm.assets.packaged.articles)",
        sha256=sha256_of(path),
        source_sha256=sha256_of(_FILE),
        samples=len(rows),
        max_input_tokens=max(len(row["tok_input"]) for row in rows),
        tokenizer_sha256=sha256_of(place / "tokenizer.json"),
        sentences="punkt-untrained",
        recipe={OWN_FILE: ARTICLES},
    )


def _rows(model: Path) -> list[Mapping[str, Any]]:
    """Return the articles with the template of a model's prompts."""
    instruction = chat_prompt(model, _QUESTION)
    return [{**row, "instruction": instruction} for row in rows_of(_FILE)]
