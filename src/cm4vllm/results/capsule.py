"""A capsule: results of one model on one system, with all that they were made with.

A curve of MLPerf Endpoints has a result for each of its points. The results are those of the model, without what only
this machine has: logs, records and folders. A capsule is made from a job's records or from a submission tree of anyone,
says what is unknown, and holds no secret: what stands only where it was typed are variables, as in a README's commands.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from cm4vllm.common.records import Record
from cm4vllm.records.vllm.given_options import OptionValue
from cm4vllm.results.model import Accuracy, Performance, Result

#: The origin of a capsule that a job's own records gave.
RUN_RECORDS = "run records"
#: The beginning of the round of a curve, before the version of its rules.
CURVE = "MLPerf Endpoints"


class CapsuleScript(Record, frozen=True, kw_only=True):
    """A script of CM that took part."""

    alias: str
    uid: str
    variations: str = ""
    version: str = ""


#: An option of vLLM's scheduler, which its whole configuration has, and its metrics do not.
_OF_SCHEDULER = "max-num-seqs"


class CapsuleServer(Record, frozen=True, kw_only=True):
    """The server, and how it was started if that is known. `packages` are those of its environment.

    `options` are those that a server at --api_server states, but for names of files.

    `container` has the image that it ran from, its digest, and the engine with its version; empty where there was none.
    """

    software: str = ""
    version: str = ""
    command: list[str] = []
    options: dict[str, OptionValue] = {}
    env: dict[str, str] = {}
    endpoints: int = 1
    max_model_len: int | None = None
    packages: dict[str, str] = {}
    contents: dict[str, str] = {}
    container: dict[str, str] = {}

    @property
    def states_no_options(self) -> bool:
        """Return True for a vLLM at --api_server of unknown configuration: it states at most the part of its cache."""
        return self.software == "vLLM" and not self.command and _OF_SCHEDULER not in self.options


class Capsule(Record, frozen=True, kw_only=True):
    """The results of one model on one system, with all inputs that they were made from.

    `made_from` names their origin, `notice` what every page says of them; `program` names version, commit and address
    of cm4vllm or of the program that ran instead, `command` is the command that was typed. `packages` are those of the
    program's environment, `contents` a digest of the files of each. `machine` is the description of the system.
    `unknown` lists the fields that nothing states.
    """

    SCHEMA: ClassVar[int] = 2

    made_from: str
    round: str
    division: str
    submitter: str
    system: str
    benchmark: str
    rehearsal: bool
    notice: str = ""
    program: dict[str, str]
    command: list[str]
    scripts: list[CapsuleScript]
    packages: dict[str, str]
    contents: dict[str, str]
    model: dict[str, str]
    dataset: dict[str, str]
    server: CapsuleServer
    machine: dict[str, Any]
    results: list[Result]
    unknown: list[str] = []

    @property
    def title(self) -> str:
        return f"{self.model.get('name', '')} on {self.system}"

    @property
    def of_curve(self) -> bool:
        """Return True for a curve of MLPerf Endpoints."""
        return self.round.startswith(CURVE)


def unknown_fields(capsule: Capsule, *, expected: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the paths of fields that nothing states; `expected` names the keys that a part should have."""
    names = []
    for name, value in msgspec.structs.asdict(capsule).items():
        keys = expected.get(name, ())
        if name not in ("unknown", "notice") and not keys and value in ("", [], {}):
            names.append(name)
        if name != "results":
            names += [
                f"{name}.{key}"
                for key in keys
                if not (value.get(key) if isinstance(value, dict) else getattr(value, key))
            ]
    for result in capsule.results:
        if not result.user_conf and "user_conf" in expected["results"]:
            names.append(f"{result.scenario}.user_conf")
        names += (
            f"{name}" for part in result.parts.values() for name in _unknown_facts(result, part, expected["results"])
        )
    return names


def _unknown_facts(result: Result, part: Performance | Accuracy, keys: tuple[str, ...]) -> Iterator[str]:
    name = f"{result.scenario} {part.mode}"
    yield from (
        f"{name}.{key}"
        for key in ("sampling", "client", "logs", *(["answers"] if isinstance(part, Accuracy) else []))
        if key in keys and not getattr(part.conditions, key)
    )
    if isinstance(part, Performance):
        lacking = [figure.name for figure in part.figures.values() if figure.why_no_interval]
        if len(lacking) > 1 and not any(figure.interval for figure in part.figures.values()):
            yield f"{name}: the intervals of its figures"
        else:
            yield from (f"{name}.{figure}: its interval" for figure in lacking)
