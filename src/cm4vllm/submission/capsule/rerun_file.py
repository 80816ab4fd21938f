"""rerun.yaml, the capsule of a submission: all that its runs were made with, and what they gave.

A capsule is made from a job's records (capsule_of_results) or from a submission tree of anyone (capsule_of_tree), says
what is unknown, and holds no secret: what stands only where it was typed are variables, as in a README's commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import bytes_of, write_text
from cm4vllm.common.records import Record
from cm4vllm.common.redaction import vault
from cm4vllm.rules import Mode

__all__ = [
    "ANSWER_BYTES",
    "CAPSULE_FILE",
    "RUN_RECORDS",
    "Capsule",
    "CapsuleFigure",
    "CapsuleRun",
    "CapsuleScript",
    "CapsuleServer",
    "as_yaml",
    "read_capsule",
    "unknown_fields",
    "write_capsule",
]

#: The name of a capsule among a job's results.
CAPSULE_FILE = "rerun.yaml"
#: What a capsule of a job's own records says that it was made from.
RUN_RECORDS = "run records"
#: Bytes of the digest of each answer in CapsuleRun.answers.
ANSWER_BYTES = 3
_SCHEMA = "schema"
_DEEPEST = 32


class CapsuleScript(Record, frozen=True, kw_only=True):
    """A script of CM that took part."""

    alias: str
    uid: str
    variations: str = ""
    version: str = ""


class CapsuleServer(Record, frozen=True, kw_only=True):
    """The server: how it was started, where that is known. `packages` are those of its environment."""

    software: str = ""
    version: str = ""
    command: list[str] = []
    env: dict[str, str] = {}
    endpoints: int = 1
    packages: dict[str, str] = {}
    contents: dict[str, str] = {}


class CapsuleFigure(Record, frozen=True, kw_only=True):
    """A figure with the interval in which the run's own spread lets it be expected, with 99 %; None if not known."""

    value: float
    unit: str
    low: float | None = None
    high: float | None = None


class CapsuleRun(Record, frozen=True, kw_only=True):
    """One LoadGen run. `sampling` are the parameters of generation, `settings` those that LoadGen used.

    `client` says how the queries were sent, `doubts` what makes it doubtful as an instrument, other load on the machine
    among it. `answers` holds three bytes of the SHA-256 of each answer, in the order of
    the dataset, in base64; empty where they are not known. `logs` maps each log to its SHA-256 before truncation.
    """

    scenario: str
    mode: str
    loadgen_version: str
    user_conf: str
    seeds: dict[str, int]
    settings: dict[str, Any]
    sampling: dict[str, Any]
    client: dict[str, Any] = {}
    valid: bool | None = None
    figures: dict[str, CapsuleFigure] = {}
    scores: dict[str, float] = {}
    doubts: list[str] = []
    logs: dict[str, str] = {}
    answers: str = ""

    @property
    def name(self) -> str:
        return f"{self.scenario} {self.mode}"


class Capsule(Record, frozen=True, kw_only=True):
    """The capsule of the results of one model on one system.

    `made_from` says of what; `program` names version, commit and address of cm4vllm or of what else ran, `command` is
    the command that was typed. `packages` are those of the program's environment, `contents` a digest of what each
    installed. `machine` are facts of the machine. `unknown` lists the fields that nothing states.
    """

    made_from: str
    round: str
    division: str
    submitter: str
    system: str
    benchmark: str
    rehearsal: bool
    program: dict[str, str]
    command: list[str]
    scripts: list[CapsuleScript]
    packages: dict[str, str]
    contents: dict[str, str]
    model: dict[str, str]
    dataset: dict[str, str]
    server: CapsuleServer
    machine: dict[str, str]
    runs: list[CapsuleRun]
    unknown: list[str] = []


def write_capsule(path: Path, capsule: Capsule) -> None:
    """Write a capsule as YAML, whole or not at all."""
    write_text(path, as_yaml(capsule))


def as_yaml(capsule: Capsule) -> str:
    """Return the text of rerun.yaml. No secret of the run under way is in it."""
    clean = vault().cleaned({_SCHEMA: capsule.SCHEMA, **msgspec.to_builtins(capsule)}, by_name=False)
    text: str = yaml.safe_dump(clean, sort_keys=False, allow_unicode=True, width=110)
    notice = f"# {REHEARSAL_NOTICE}\n" if capsule.rehearsal else ""
    return f"{notice}# Run again: cm run script --tags=replay,mlperf --capsule={CAPSULE_FILE}\n{text}"


def read_capsule(path: Path) -> Capsule:
    """Read a capsule. Raises UsageError where the file is none of this version."""
    again = "make it again from the results or the tree: cm run script --tags=generate,mlperf,capsule --input=FOLDER"
    try:
        fields = _value(bytes_of(path))
    except OSError as error:
        raise UsageError(
            f"cannot read the capsule {path}",
            cause=str(error.strerror),
            remedy=f"give a {CAPSULE_FILE}, a folder of results, or a submission tree",
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a capsule", cause=str(error), remedy=again) from error
    if not isinstance(fields, dict) or fields.pop(_SCHEMA, None) != Capsule.SCHEMA:
        raise UsageError(
            f"{path} is not a capsule of this version of cm4vllm",
            cause=f"it has no line `{_SCHEMA}: {Capsule.SCHEMA}`",
            remedy=again,
        )
    try:
        return msgspec.convert(fields, Capsule)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UsageError(f"{path} is not a capsule", cause=str(error), remedy=again) from error


def _value(data: bytes) -> Any:
    """Return the value of a YAML text. Raises YAMLError, and ValueError for a text that no capsule has.

    libyaml overflows the stack on a text that is nested deep, and a text with references may stand for one of any
    length: neither is loaded.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(data, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it refers to a part of itself: *{event.anchor}")
    return yaml.load(data, Loader=loader)  # noqa: S506 both are safe loaders


def unknown_fields(capsule: Capsule, *, expected: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the paths of fields that nothing states; `expected` names the keys that a mapping should have."""
    found = []
    for name, value in msgspec.structs.asdict(capsule).items():
        keys = expected.get(name, ())
        if name != "unknown" and not keys and value in ("", [], {}):
            found.append(name)
        found += [f"{name}.{key}" for key in keys if not _part(value, key)]
    for run in capsule.runs:
        found += [
            f"runs.{run.name}.{key}"
            for key in expected.get("runs", ())
            if getattr(run, key) in ("", [], {}, None) and (key != "answers" or run.mode == Mode.ACCURACY)
        ]
        found += [
            f"runs.{run.name}.figures.{name}: the run's own spread"
            for name, figure in run.figures.items()
            if figure.low is None and run.mode == Mode.PERFORMANCE
        ]
    return found


def _part(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return value.get(key)
    return True if isinstance(value, list) else getattr(value, key)
