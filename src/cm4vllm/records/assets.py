"""Records of a model and of a dataset: the facts about them that their files do not state."""

from pathlib import Path

from cm4vllm.common.errors import ModelError
from cm4vllm.common.records import Record

#: Stands in the source of a stand-in's weights, also in records of those that were trained by earlier versions.
_STAND_IN_MARK = "(cm4vllm.assets.tiny"
#: Where a stand-in comes from, in the words of its record.
STAND_IN_SOURCE = f"a tiny model on made-up samples, part of cm4vllm {_STAND_IN_MARK})"
#: Where a model without weights comes from, in the words of its record.
DUMMY_SOURCE = "random weights, made by vLLM when it starts (cm4vllm.assets.dummy)"
#: The key of a model's recipe that names the benchmark whose own model it is, by the digests of its files.
IDENTITY = "identity"
#: The keys of a dataset's recipe for a file that is not published for the benchmark, and, in words, for prompts whose
#: token ids are not those of the file.
OWN_FILE, RETOKENISED = "own_file", "tokenised_again"
#: The value of the first of them for the articles that come with cm4vllm; the user's own file has another.
ARTICLES = "articles"


class QuantizationRecord(Record, frozen=True, kw_only=True):
    """Description of a quantisation that was made here, for calibration.md and measurements.json.

    `weights`, `activations` and `kv_cache` say in words what each became, `formula` how; `layers` counts the layers
    whose weights were quantised and `layer_kinds` names their kinds. `starting_weights` are the files it began with.
    `calibration_*` are empty for a scheme that needs no samples; `calibration_tokens` counts the tokens of all used.
    """

    scheme: str
    weights: str
    activations: str
    kv_cache: str
    formula: str
    layers: int
    layer_kinds: list[str]
    ignored: list[str]
    base_model: str
    base_sha256: str
    starting_weights: str
    tools: dict[str, str]
    calibration_dataset: str = ""
    calibration_sha256: str = ""
    calibration_samples: int = 0
    calibration_tokens: int = 0


class ModelRecord(Record, frozen=True, kw_only=True):
    """A model folder. `sha256` covers names and contents of all its files; empty for a model we have no files of.

    `name` is the name under which results are published: never that of a benchmark's model unless it is that model.
    `source` says where it comes from in words a reader can follow. `weight_data_types` is read from the checkpoint.
    `min_tokens` is 2 for a model that may end its answer at once (see rules.records.Generation).
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
    quantization: QuantizationRecord | None = None

    @property
    def is_stand_in(self) -> bool:
        """Return True for the weights of stand-ins, quantised or not."""
        return _STAND_IN_MARK in self.source

    @property
    def is_dummy(self) -> bool:
        """Return True for random weights: the answers mean nothing, and each has the length that was requested."""
        return DUMMY_SOURCE in self.source

    @property
    def tokenizer_file(self) -> Path:
        """The model's tokenizer. Raises ModelError if the model has no usable tokenizer."""
        path = Path(self.path) / "tokenizer.json"
        if not self.path or not path.is_file():
            raise ModelError(
                "the tokens of this server cannot be counted without the tokenizer of its model",
                cause=f"the server gives text and no token ids, and {self.path or 'the model'} has no {path.name}",
                remedy="name the model by --vllm_model_name, a hub id or a folder with its tokenizer.json",
            )
        return path


class DatasetRecord(Record, frozen=True, kw_only=True):
    """A dataset file: a JSON list of {input, tok_input, output}, as the reference's cnn_eval.json, or of media.

    `source_sha256` is the digest of the published file that it was converted from, empty where it was made here.

    A dataset whose samples carry `media` has these in files below `media_folder`, with their digests in the rows.
    `sentences` says how sentences are split for ROUGE-Lsum: `punkt_tab` is nltk's English model, as the reference
    uses; `punkt-untrained` is the same algorithm without a model, for the datasets made by us.
    """

    name: str
    path: str
    source: str
    sha256: str
    samples: int
    max_input_tokens: int
    source_sha256: str = ""
    tokenizer_sha256: str = ""
    sentences: str = "punkt_tab"
    media_folder: str = ""
    recipe: dict[str, str] = {}

    @property
    def whose(self) -> str:
        """The owner of the dataset, in the words of pages: a user's file is not the benchmark's."""
        if OWN_FILE not in self.recipe:
            return "the benchmark's"
        return "the articles'" if self.holds_articles else "your dataset's"

    @property
    def holds_articles(self) -> bool:
        """Return True for the articles that come with cm4vllm."""
        return self.recipe.get(OWN_FILE) == ARTICLES

    def whole(self, benchmark: int) -> int:
        """Return the number of all samples: a user's file and the articles have their own, others the `benchmark`'s."""
        return self.samples if OWN_FILE in self.recipe else benchmark

    @property
    def tokenised_again(self) -> str:
        """The reason, and the model, for which prompts were tokenised again; empty where the ids are the file's."""
        return self.recipe.get(RETOKENISED, "")
