"""A power session before the runs: it measures nothing, and finds faults before the sessions that take hours.

Its files are those of any session, and cannot be changed later: what they say of the analyzer must fit how it is read,
and no word in them may be private.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.redaction import vault
from cm4vllm.power.making import Site, make_session, preflight_run, several_analyzers
from cm4vllm.power.session import FILES, Phase, PowerSession
from cm4vllm.submission.privacy import PrivateWord, first_private

__all__ = ["make_preflight", "require_publishable", "require_wiring"]

#: How long the two runs of it stand for; the simulated analyzer needs no more for a few samples.
_SECONDS, _SIMULATED_S = 10.0, 3.0
#: PTDaemon's value for a reading that it did not get.
_NO_READING_W = -1.0
#: A home folder of somebody, as the path of a program of the director may hold it.
_HOME = re.compile(r"/(?:home|Users)/[^/\s'\",]+")


def make_preflight(site: Site, target: Path, words: Sequence[PrivateWord]) -> PowerSession:
    """Make a session without a measurement in `target`. Raises what make_session raises, UsageError, SubmissionError.

    With the simulated analyzer its pauses are shortened: what is to be found are ports and words.
    """
    seconds = _SIMULATED_S if site.simulated else _SECONDS
    session = make_session(replace(site, debug=site.simulated), target, partial(preflight_run, seconds=seconds))
    require_wiring(session)
    require_publishable(session, words)
    return session


def require_wiring(session: PowerSession) -> int:
    """Return the number of channels that are read.

    Raises UsageError where the analyzer cannot measure as it is configured and wired.
    """
    if (count := len(session.analyzers)) > 1:
        raise several_analyzers(count)
    stated = max((identity.channels for identity in session.identities), default=1)
    wanted = _configured(session) or stated
    for phase in Phase:
        for sample in session.samples(phase).samples:
            read = len(sample.channels) or 1
            if read != wanted:
                raise UsageError(
                    f"the analyzer gives {read} channels of {wanted}",
                    cause=f"{phase}/spl.txt; PTDaemon states {stated}",
                    remedy="give the channels that are wired: --channel=FIRST,NUMBER of run,mlperf,power,server",
                )
            for name, reading in (sample.channels or {"of one": sample.total}).items():
                if reading.watts < _NO_READING_W:
                    raise UsageError(
                        f"channel {name} of the analyzer reads {reading.watts:g} W",
                        cause="a machine that runs draws power: its current is wired the wrong way round, or not "
                        "steadily",
                        remedy="mend the wiring of that channel",
                    )
    return wanted


def require_publishable(session: PowerSession, words: Sequence[PrivateWord]) -> None:
    """Raise SubmissionError where a file of the session holds a private word: they are published as they are."""
    for name in FILES:
        for number, line in enumerate(session.text(name).splitlines(), 1):
            if private := _private(line, words):
                raise SubmissionError(
                    f"{name}, line {number}, of a power session names {private}",
                    cause="the files of a session are published as they are, and each session would hold it",
                    remedy="name PTDaemon and its device by paths without it, and start the power server elsewhere; no "
                    "key may stand in a setting of the session",
                )


def _private(line: str, words: Sequence[PrivateWord]) -> str:
    """Return the private part of a line in words; empty where nothing is private."""
    if word := first_private(line, words):
        return f"this machine's {word.kind} {word.shown}" if word.kind != "secret" else "a secret"
    if vault().clean(line) != line:
        return "a secret"
    home = _HOME.search(line)
    return f"the home folder {home[0]}" if home else ""


def _configured(session: PowerSession) -> int:
    """Return the number of channels that the server was configured for; 0 where its configuration names none."""
    channels = [analyzer.get("channel") for analyzer in session.analyzers]
    return next((int(channel[1]) for channel in channels if isinstance(channel, list) and len(channel) == 2), 0)
