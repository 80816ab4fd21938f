"""Proof that a running server reads token ids as the tokenizer of a model does."""

from http import HTTPStatus
from pathlib import Path

from cm4vllm.assets.tokenizer_file import read_tokenizer
from cm4vllm.common.errors import ServerUnsuitable
from cm4vllm.records.assets import ModelRecord
from cm4vllm.records.server import ServerRecord
from cm4vllm.serving.probing.server_access import not_measurable
from cm4vllm.serving.probing.server_requests import ask, error_words, json_object, sites_of

#: For an address that must answer at once.
_SHORT_S = 10.0
#: Statuses for token ids that a vocabulary does not have.
_NO_SUCH_IDS = (400, 422)
#: About how many token ids a vocabulary is compared by.
_SPREAD = 64


def check_vocabulary(server: ServerRecord, model: ModelRecord) -> None:
    """Prove that the server reads token ids as the tokenizer of `model` does: that it can be that model at all.

    Ids from all over the vocabulary are turned into text by both; letters and digits are compared, because spaces and
    broken characters depend on options of the decoder. Raises ServerUnsuitable when they differ. A server that is no
    vLLM cannot be asked; its record says so (`unchecked`).
    """
    if server.software != "vLLM" or not server.version:
        return
    tokenizer = read_tokenizer(Path(model.path) / "tokenizer.json")
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    ids = list(range(0, size, max(1, size // _SPREAD)))
    site = sites_of(server)[0]
    status, answer = ask(site, "POST", "/detokenize", {"model": server.model_name, "tokens": ids}, _SHORT_S)
    if status not in (HTTPStatus.OK, *_NO_SUCH_IDS):
        raise not_measurable(site.endpoint, f"its /detokenize answers HTTP {status} {error_words(site, answer)}")
    refused = status in _NO_SUCH_IDS
    theirs = error_words(site, answer) if refused else str(json_object(site, "/detokenize", answer).get("prompt"))
    if _letters(tokenizer.decode(ids, skip_special_tokens=False)) != _letters(theirs):
        raise ServerUnsuitable(
            f"the server at {server.endpoint} does not serve {model.name}",
            cause=f"it decodes the token ids {ids[1]}, {ids[2]}, {ids[3]}, ... differently from that model's tokenizer",
            remedy=f"name the model it serves with --vllm_model_name (a hub id or a folder), and its dataset with "
            f"--dataset_path, or --dataset=tiny of run-mlperf,inference for the tiny model's; or serve {model.path}",
        )


def _letters(text: str) -> str:
    return "".join(character for character in text if character.isalnum())
