"""The statements of a power session, client.json and server.json: the form of each, and whether both agree.

The form is that in which the official programs write what their checker reads: ptd_client_server/lib/summary.py and
compliance/check.py of mlcommons/power-dev.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any
from uuid import UUID

import msgspec

_Some = msgspec.Meta(min_length=1)
#: The moments of a phase in s: by the clock of the day, and by a clock that only rises.
_Moments = Annotated[list[tuple[float, float]], msgspec.Meta(min_length=3)]
#: The most s by which the clocks of client and server may differ (compliance/check.py, TIME_DELTA_TOLERANCE).
_CLOCKS_S = 0.8
#: The command by which the client asks for the server's clock; each of them notes its own.
_TIME = "time"


class Message(msgspec.Struct):
    """A command, and the reply to it."""

    cmd: str
    reply: str


class Identifiers(msgspec.Struct):
    """The identifiers of both programs in a session."""

    client: UUID
    server: UUID


class Moments(msgspec.Struct):
    """The moments at which the parts of both phases began and ended."""

    ranging: _Moments
    testing: _Moments


class Analyzer(msgspec.Struct):
    """The configuration of an analyzer: PTDaemon's number of its kind, and PTDaemon's command line."""

    device_type: int
    command: list[str]


class Statement(msgspec.Struct):
    """The parts that are in both client.json and server.json."""

    messages: Annotated[list[Message], _Some]
    phases: Moments
    results: dict[str, str]
    session_name: Annotated[str, _Some]
    sources: Annotated[dict[str, str], _Some]
    timezone: int
    uuid: Identifiers
    version: Annotated[str, _Some]


class ServerStatement(Statement):
    """The parts of server.json; servers of before 2025 write the configuration of their analyzer without a list."""

    ptd_messages: Annotated[list[Message], _Some]
    ptd_config: Analyzer | Annotated[list[Analyzer], _Some]


def fault_in(content: Mapping[str, Any], kind: type[Statement]) -> str:
    """Return the first fault in the form of client.json or server.json; empty where the form is right."""
    try:
        msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def contradictions(client: Mapping[str, Any], server: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
    """Yield each part that client.json and server.json do not state alike: its name, the client's, the server's.

    None where a form is wrong: `fault_in` names it.
    """
    try:
        own, other = (_parts_of_both(msgspec.convert(content, Statement)) for content in (client, server))
    except msgspec.ValidationError:
        return
    for name in own:
        if name in other and not _is_alike(own[name], other[name]):
            yield name, own[name], other[name]


def _parts_of_both(stated: Statement) -> dict[str, object]:
    """Return all parts that both state, by name."""
    phases = {"ranging": stated.phases.ranging, "testing": stated.phases.testing}
    return {
        "session_name": stated.session_name,
        "uuid: client": stated.uuid.client,
        "uuid: server": stated.uuid.server,
        "messages": len(stated.messages),
        **{
            f"messages: {number}": (message.cmd, message.reply if message.cmd != _TIME else "")
            for number, message in enumerate(stated.messages)
        },
        **{f"results: {file}": digest for file, digest in stated.results.items()},
        **{f"phases: {phase}": len(moments) for phase, moments in phases.items()},
        **{
            f"phases: {phase} {number}": moment
            for phase, moments in phases.items()
            for number, (moment, _) in enumerate(moments)
        },
    }


def _is_alike(own: object, other: object) -> bool:
    if isinstance(own, float) and isinstance(other, float):
        return abs(own - other) <= _CLOCKS_S
    return own == other
