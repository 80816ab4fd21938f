"""The files of a power session, read: what the official client and server wrote, and whether they measured anything.

The official client ends with status 0 where nothing was measured (a failed comparison of clocks, for one), so a session
is judged by its files alone. The folder is that of performance/ in a submission: power/, ranging/ and run_1/.
"""

from __future__ import annotations

import filecmp
import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from cm4vllm.common.bounded_documents import object_of
from cm4vllm.common.errors import RunFailed
from cm4vllm.common.files import mapped, open_file, text_of
from cm4vllm.records.logs.detail_log import DETAIL_LOG, Window, read_detail_log
from cm4vllm.records.power.protocol import Identity, LogLine, Totals, identity_of, log_lines, totals_of
from cm4vllm.records.power.samples import SAMPLES, SIMULATED, Samples, samples_of
from cm4vllm.records.power.statements import ServerStatement, Statement, fault_in


class Phase(StrEnum):
    """The two halves of a session, by the folder of their run: the first finds the ranges that the second is set to."""

    RANGING = "ranging"
    TESTING = "run_1"

    @property
    def key(self) -> str:
        """The name of the phase in client.json and server.json."""
        return "testing" if self is Phase.TESTING else "ranging"


_CLIENT_JSON, SERVER_JSON, PTD_LOG = "power/client.json", "power/server.json", "power/ptd_logs.txt"
_CLIENT_LOG, _SERVER_LOG = "power/client.log", "power/server.log"
_RUN = (DETAIL_LOG, "mlperf_log_summary.txt", SAMPLES)
#: The files of a session that a submission holds (compliance/check.py of mlcommons/power-dev, RESULT_PATHS).
FILES = (
    *(_CLIENT_JSON, _CLIENT_LOG, PTD_LOG, SERVER_JSON, _SERVER_LOG),
    *(f"{phase}/{name}" for phase in Phase for name in _RUN),
)
#: The files whose digests are in server.json; those of the others but the two statements are in client.json.
_OF_SERVER = (PTD_LOG, _SERVER_LOG, *(f"{phase}/{SAMPLES}" for phase in Phase))


#: The folder of a session beside that of the performance run, in our own results.
SESSION = "power-session"
#: What the client fetches, too, and the submission checkers refuse: never published.
FETCHED_ONLY = "run_1/ptd_out.txt"

#: PTDaemon's words for begin and end of a measurement.
_MARK, _COMPLETED = re.compile(r"Go with mark '(.*)'"), "Completed test"
#: The most bytes of a file that is read through: an archive of a submission may have no larger one.
_MOST_BYTES = 2**30

_GO = re.compile(r"^ptd-server (\S+ [\d:]+,\d+) \[INFO\] .*(?:sending|Sending) to ptd: 'Go,\d+,\d+,([^']*)'", re.M)


def session_beside(run: Path) -> PowerSession | None:
    """Return the session of the performance run in a folder: around it in a tree, beside it in our own results.

    A session of another run, whose log differs, is none.
    """
    if not (run / DETAIL_LOG).is_file():
        return None
    for folder in (run.parent, run.with_name(SESSION)):
        own = folder / Phase.TESTING / DETAIL_LOG
        if is_power_session(folder) and own.is_file() and filecmp.cmp(own, run / DETAIL_LOG, shallow=False):
            return PowerSession(folder)
    return None


def is_power_session(performance: Path) -> bool:
    """Return True if a performance folder holds a power session, whole or not."""
    folders = (performance / name for name in ("power", Phase.RANGING))
    return any(folder.is_dir() for folder in folders) or (performance / Phase.TESTING / SAMPLES).is_file()


class PowerSession:
    """A session that has ended, in a folder. A file is read when it is asked for; a missing or unreadable one is empty.

    Samples and windows are read once, for all checks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.samples, self.window, self._go = cache(self._samples), cache(self._window), cache(self._go_time)

    @cached_property
    def client(self) -> Mapping[str, Any]:
        """Return client.json of the session, empty where it cannot be read."""
        return object_of(self.folder / _CLIENT_JSON)

    @cached_property
    def server(self) -> Mapping[str, Any]:
        """Return server.json of the session, empty where it cannot be read."""
        return object_of(self.folder / SERVER_JSON)

    @cached_property
    def ptd_log(self) -> tuple[LogLine, ...]:
        """The lines of PTDaemon's log on the begin, the end and the uncertainty of measurements."""
        return tuple(log_lines(self.text(PTD_LOG)))

    @property
    def ptd_messages(self) -> list[Mapping[str, Any]]:
        """The commands that PTDaemon got, and its replies, in their order."""
        messages = self.server.get("ptd_messages")
        return [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []

    @cached_property
    def identities(self) -> tuple[Identity, ...]:
        """The analyzers that PTDaemon named, each as often as the server asked."""
        identities = (
            identity_of(str(message.get("reply"))) for message in self.ptd_messages if message.get("cmd") == "Identify"
        )
        return tuple(identity for identity in identities if identity is not None)

    @cached_property
    def analyzers(self) -> tuple[Mapping[str, Any], ...]:
        """The configuration of each analyzer; servers of before 2025 write that of one without a list."""
        config = self.server.get("ptd_config")
        listed = config if isinstance(config, list) else [config]
        return tuple(analyzer for analyzer in listed if isinstance(analyzer, dict))

    @property
    def totals(self) -> list[Totals]:
        """The means that PTDaemon stated, in their order: the first is that of ranging, the last that of testing."""
        replies = [str(message.get("reply")) for message in self.ptd_messages]
        return [totals for reply in replies if (totals := totals_of(reply, "Watts"))]

    @property
    def missing_parts(self) -> Mapping[str, tuple[str, ...]]:
        """The parts that files lack, or have in another form, by file: without them checks have nothing to read."""
        without = [name for name in FILES if name not in (_CLIENT_JSON, SERVER_JSON, *self.stated_digests())]
        client, server = fault_in(self.client, Statement), fault_in(self.server, ServerStatement)
        lacking = {
            _CLIENT_JSON: [client] if client else [f"results: {name}" for name in without if name not in _OF_SERVER],
            SERVER_JSON: [server] if server else [f"results: {name}" for name in without if name in _OF_SERVER],
            _CLIENT_LOG: [] if self.name in self.text(_CLIENT_LOG) else [f"the session {self.name}"],
            _SERVER_LOG: [f"Go of {phase.key}" for phase in Phase if self._go(phase) is None],
        }
        if not server:
            lacking[SERVER_JSON] += [] if self.identities else ["a reply to Identify"]
            lacking[SERVER_JSON] += [] if len(self.totals) >= len(Phase) else ["two replies to Watts"]
        for phase in Phase:
            lacking[f"{phase}/{DETAIL_LOG}"] = [] if self.window(phase) else ["power_begin, power_end"]
        for name in FILES:
            if not self.text(name).strip():
                lacking[name] = ["any text"]
        return {file: tuple(keys) for file, keys in lacking.items() if keys and file not in self.missing}

    @property
    def name(self) -> str:
        """The name that the server gave the session: it is in the logs. Empty where it is not stated."""
        name = self.server.get("session_name")
        return name if isinstance(name, str) else ""

    @property
    def missing(self) -> tuple[str, ...]:
        """The files of a submission that the session lacks."""
        return tuple(name for name in FILES if not (self.folder / name).is_file())

    @cached_property
    def simulated(self) -> tuple[str, ...]:
        """The files that name the simulated analyzer, whatever they are called."""
        files = (path for path in sorted(self.folder.rglob("*")) if path.is_file() and not path.is_symlink())
        return tuple(str(path.relative_to(self.folder)) for path in files if _names(path, SIMULATED.encode()))

    def _samples(self, phase: Phase) -> Samples:
        """Return the samples of a phase; none where they cannot be read."""
        return samples_of(self.text(f"{phase}/{SAMPLES}"))

    def _window(self, phase: Phase) -> Window | None:
        """Return the measured window of a phase; None where LoadGen's log does not state it."""
        try:
            return read_detail_log(self.folder / phase / DETAIL_LOG).window
        except RunFailed:
            return None

    def start_of(self, phase: Phase) -> datetime | None:
        """Return when the server sent `Go` for a phase, by the server's clock, in UTC; None if it cannot be read."""
        local, zone = self._go(phase), self.server.get("timezone")
        try:
            return local + timedelta(seconds=zone) if local and isinstance(zone, int | float) else None
        except (ValueError, OverflowError):
            return None

    def _go_time(self, phase: Phase) -> datetime | None:
        """Return when the server sent `Go` for a phase, by the local time of its log; None if it cannot be read."""
        for stamp, mark in _GO.findall(self.text(_SERVER_LOG)):
            if mark.endswith(f"_{phase.key}") and self.name in mark:
                try:
                    return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)
                except ValueError:
                    return None
        return None

    def logged_window(self, phase: Phase) -> tuple[datetime | None, datetime | None]:
        """Return begin and end of the measurement of a phase by PTDaemon's log; None for what it does not state."""
        begin: datetime | None = None
        for line in self.ptd_log:
            mark = _MARK.fullmatch(line.text)
            if begin is None and mark and mark[1].endswith(f"_{phase.key}") and self.name in mark[1]:
                begin = line.at
            elif begin is not None and (mark or line.text == _COMPLETED):
                return begin, None if mark else line.at
        return begin, None

    def stated_digests(self) -> dict[str, str]:
        """Return the SHA-1 of each file as client.json and server.json state it."""
        stated: dict[str, str] = {}
        for part in (self.client, self.server):
            results = part.get("results")
            stated |= {str(name): str(value) for name, value in results.items()} if isinstance(results, dict) else {}
        return stated

    def changed_files(self) -> Iterator[tuple[str, str, str]]:
        """Yield each published file whose SHA-1 is not the stated one: its name, its own digest and the stated one."""
        stated = self.stated_digests()
        for name in FILES:
            path = self.folder / name
            if name in stated and path.is_file():
                own = _sha1(path) if path.stat().st_size <= _MOST_BYTES else f"none, with {path.stat().st_size:,} bytes"
                if own != stated[name]:
                    yield name, own, stated[name]

    def text(self, name: str) -> str:
        """Return the text of a file; empty where it does not exist, or is too large to be one."""
        try:
            return text_of(self.folder / name)
        except OSError:
            return ""


def _names(path: Path, word: bytes) -> bool:
    if path.stat().st_size > _MOST_BYTES:
        return False
    with mapped(path) as data:
        return data.find(word) >= 0


def _sha1(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.sha1(usedforsecurity=False)).hexdigest()


def reasons_unmeasured(session: PowerSession) -> tuple[str, ...]:
    """Return why a session that has ended measured nothing, one reason each; none where it measured."""
    reasons = []
    if missing := session.missing:
        reasons.append(f"it lacks {', '.join(missing)}")
    for phase in Phase:
        window, samples = session.window(phase), session.samples(phase)
        if window is None:
            reasons.append(f"LoadGen's log in {phase}/ states no power_begin and power_end")
            continue
        inside = samples.within(window.begin, window.end)
        if not any(sample.usable for sample in inside):
            reasons.append(f"no sample above zero lies in the measured window of {phase}/")
        if wrong := next((sample for sample in inside if sample.impossible), None):
            reasons.append(f"a sample of {phase}/ states {wrong.watts:g} W")
    return tuple(reasons)
