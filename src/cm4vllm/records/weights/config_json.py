"""A model's config.json, which anybody may have written: a value of another kind than it must be is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cm4vllm.common.bounded_documents import read_json
from cm4vllm.common.errors import ModelError

#: No size of a model is larger: 10**15 is a thousand times the parameters of the largest one.
_LARGEST = 10**15
_AGAIN = "copy or download the model again"


def json_object(path: Path, why: str = "a model folder needs this file") -> dict[str, Any]:
    """Return the JSON object in a file of a model. Raises ModelError; `why` says what a missing one is needed for."""
    try:
        value = read_json(path)
    except FileNotFoundError as error:
        raise ModelError(
            f"{path.parent} has no {path.name}",
            cause=why,
            remedy="give the folder that holds it: of a hub's cache, the one under snapshots/",
        ) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read", cause=str(error), remedy=_AGAIN) from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object", remedy=_AGAIN)
    return value


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under a key, empty where there is none. Raises ModelError for anything else."""
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong_kind(key, value, "an object")
    return value


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part that describes the language model: models that also see or hear have one of its own."""
    return section(config, "text_config") or config


def whole_number(config: Mapping[str, Any], key: str, least: int = 0) -> int | None:
    """Return the whole number under a key, None where there is none. Raises ModelError for anything else."""
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
        raise _wrong_kind(key, value, f"a whole number, {least} or more")
    return value


def words(config: Mapping[str, Any], key: str) -> list[str]:
    """Return the list of texts under a key, empty where there is none. Raises ModelError for anything else."""
    value = config.get(key) or []
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise _wrong_kind(key, value, "a list of texts")
    return value


def _wrong_kind(key: str, value: Any, kind: str) -> ModelError:
    """Return the error for a key of config.json whose value is not of the kind that is wanted."""
    return ModelError(
        f"the model's config.json says that {key} is {_value_in_words(value)}",
        cause=f"it must be {kind}",
        remedy=_AGAIN,
    )


def _value_in_words(value: Any) -> str:
    # repr() of a number of thousands of digits raises, and of what is nested deeply as well.
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return "a huge number" if isinstance(value, int) and abs(value) > _LARGEST else repr(value)[:60]
