"""The servers at --api_server through one run: the same ones as when they were probed, and the same until its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

from msgspec.structs import replace

from cm4vllm.common.errors import RunFailed, ServerUnreachable, ServerUnsuitable
from cm4vllm.records.server import ServerIdentity, ServerRecord
from cm4vllm.serving.server_identities import identities, other_content, restarts

__all__ = ["RunServers"]


class RunServers:
    """The servers' reports about themselves when the run began, and the `accepted` restarts. All are empty without
    servers at --api_server, and for servers that were not asked for a report when they were probed.
    """

    def __init__(self, server: ServerRecord, title: str, *, accept_restarted: bool = False) -> None:
        """Ask the servers of a run, which messages call by its `title`.

        Raises ServerUnsuitable where one is another than when it was probed.
        """
        self.server, self.title = server, title
        self.begin: Mapping[str, ServerIdentity] = self.server.identities
        self.accept_restarted = accept_restarted
        self.accepted: list[str] = []
        if self.begin:
            with suppress(ServerUnreachable):  # the client reports it
                self.begin = identities(self.server)
        if changed := other_content(self.server.identities, self.begin):
            raise ServerUnsuitable(
                f"the {title} run cannot begin: the server has changed since the job began",
                cause="\n".join(changed),
                remedy="run the same command again: it measures the server that runs now, and what was measured on "
                "the other one is measured again",
            )

    def require_same(self, starts: Mapping[str, Sequence[float]]) -> list[str]:
        """Return in words the restarts that are accepted, in the run and before it.

        `starts` are the process starts that were sampled during the run, by endpoint. Raises RunFailed where a server
        has become another one since the run began, or was started again and this is not accepted.
        """
        if not self.begin:
            return self.accepted
        end: Mapping[str, ServerIdentity] = {}
        with suppress(ServerUnreachable):
            end = identities(self.server)
        again = list(dict.fromkeys(self._restarts(starts, end)))
        changed = other_content(self.begin, end) if end else []
        if changed or (again and not self.accept_restarted):
            raise RunFailed(
                f"the {self.title} run is INVALID: a server has changed during it",
                cause="\n".join([*changed, *again]),
                remedy="run again while the server stays as it is",
            )
        return [*self.accepted, *again]

    def _restarts(self, starts: Mapping[str, Sequence[float]], end: Mapping[str, ServerIdentity]) -> list[str]:
        """Return the restarts. Where starts are seen again, or become earlier, several processes answer in turn."""
        words: list[str] = []
        for endpoint, identity in self.begin.items():
            last = end[endpoint].process_started_s if endpoint in end else None
            seen = [time for time in (identity.process_started_s, *starts.get(endpoint, ()), last) if time is not None]
            steps = [pair for pair in pairwise(seen) if pair[0] != pair[1]]
            if identity.process_started_s is not None and seen == sorted(seen):
                for before, after in steps:
                    words += restarts(
                        {endpoint: replace(identity, process_started_s=before)},
                        {endpoint: replace(identity, process_started_s=after)},
                    )
        return words
