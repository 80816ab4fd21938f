"""Writing and reading of rerun.yaml: a capsule, the results of a job with the command that repeats it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.bounded_documents import read_yaml
from cm4vllm.common.errors import UsageError
from cm4vllm.common.folders.owned_folders import write_noted
from cm4vllm.common.secrets.redaction import vault
from cm4vllm.results.capsule import Capsule
from cm4vllm.results.figures import Figure, Figures
from cm4vllm.results.log_folders import terms_of
from cm4vllm.results.model import Result
from cm4vllm.rules import Mode

#: The name of a capsule among a job's results.
CAPSULE_FILE = "rerun.yaml"
_SCHEMA = "schema"
#: Fields of a result that the capsule states once for all results, and fields that stay on the machine.
_SHARED = ("round", "division", "submitter", "system", "model", "benchmark")
_NOT_WRITTEN = ("folder", "terms", "run", "record", "detail")


def write_capsule(path: Path, capsule: Capsule) -> None:
    """Write a capsule as YAML, whole or not at all."""
    write_noted(path, as_yaml(capsule))


def as_yaml(capsule: Capsule) -> str:
    """Return the text of rerun.yaml. No secret of the run under way is in it."""
    fields = msgspec.structs.asdict(capsule)
    shared = {"model": capsule.model.get("name", ""), **{name: fields[name] for name in _SHARED if name != "model"}}
    fields["results"] = [_written_fields(result, shared) for result in capsule.results]
    clean = vault().cleaned(
        {_SCHEMA: capsule.SCHEMA, **msgspec.to_builtins(fields, enc_hook=_builtin_value)}, by_name=False
    )
    notice = f"# {REHEARSAL_NOTICE}\n" if capsule.rehearsal else ""
    again = "" if capsule.of_curve else f"# Run again: cm run script --tags=replay,mlperf --capsule={CAPSULE_FILE}\n"
    return f"{notice}{again}{yaml.safe_dump(clean, sort_keys=False, allow_unicode=True, width=110)}"


def _builtin_value(value: Any) -> dict[Any, Any] | float:
    """Return a mapping that cannot be changed as a dict, and a number of another library as Python's."""
    return dict(value) if isinstance(value, Mapping) else float(value)


def _written_fields(part: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of the model as the file has it, without fields that are `known` or have their default."""
    fields = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if field.name in _NOT_WRITTEN or value == known.get(field.name, default):
            continue
        if isinstance(value, Figures):
            value = [_written_fields(figure, {}) for figure in value.values()]
        fields[field.name] = _written_fields(value, {}) if dataclasses.is_dataclass(value) else value
    return fields


def read_capsule(path: Path) -> Capsule:
    """Read a capsule. Raises UsageError where the file is none of this version."""
    again = "make it again from the results or the tree: cm run script --tags=generate,mlperf,capsule --input=FOLDER"
    try:
        fields = read_yaml(path)
        schema = fields.pop(_SCHEMA, None) if isinstance(fields, dict) else None
        if schema == Capsule.SCHEMA:
            # Fields that the capsule states once for all results.
            shared = {**{name: fields.get(name) for name in _SHARED}, "model": fields["model"].get("name", "")}
            fields["results"] = [{**shared, "folder": "", **result} for result in fields["results"]]
            return _with_terms(msgspec.convert(fields, Capsule, dec_hook=_decode))
    except OSError as error:
        raise UsageError(
            f"cannot read the capsule {path}",
            cause=str(error.strerror),
            remedy=f"give a {CAPSULE_FILE}, a folder of results, or a submission tree",
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is not a capsule", cause=str(error), remedy=again) from error
    stated = f"no line `{_SCHEMA}:`" if schema is None else f"schema {schema}"
    raise UsageError(
        f"{path} is not a capsule of this version of cm4vllm",
        cause=f"it has {stated}, this version reads schema {Capsule.SCHEMA}",
        remedy=again,
    )


def _decode(kind: type, value: Any) -> Any:
    return Figures(msgspec.convert(value, list[Figure])) if kind is Figures else kind(value)


def _with_terms(capsule: Capsule) -> Capsule:
    """Apply the rules to what a capsule states of each run."""

    def known(result: Result) -> Result:
        terms = {mode: terms_of(result.round, result.benchmark, result.scenario, mode) for mode in Mode}
        performance, accuracy = result.performance, result.accuracy
        return dataclasses.replace(
            result,
            performance=performance and dataclasses.replace(performance, terms=terms[Mode.PERFORMANCE]),
            accuracy=accuracy and dataclasses.replace(accuracy, terms=terms[Mode.ACCURACY]),
        )

    return msgspec.structs.replace(capsule, results=[known(result) for result in capsule.results])
