"""The servers at --api_server through one run: the same ones as when they were probed, and the same until its end."""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from cm4vllm.common.errors import RunFailed, ServerUnsuitable
from cm4vllm.common.progress import warn
from cm4vllm.records.server import ServerIdentity, ServerRecord
from cm4vllm.serving.probing.server_identities import identities, other_content, restarts, unknown_content

#: Seconds after which a server that did not answer at the end of a run is asked again, once.
AGAIN_S = 5.0
#: The page that is read through a run, too.
_SAMPLED = "/metrics"


class RunServers:
    """The servers' reports about themselves when the run began, and the `accepted` restarts. All are empty without
    servers at --api_server, and for servers that were not asked for a report when they were probed.
    """

    def __init__(self, server: ServerRecord, title: str, *, accept_restarted: bool = False) -> None:
        """Ask the servers of a run, which messages call by its `title`.

        Raises ServerUnsuitable where one is another than when it was probed.
        """
        self.server, self.title = server, title
        self.accept_restarted = accept_restarted
        self.accepted: list[str] = []
        now = identities(self.server) if self.server.identities else {}
        if changed := other_content(self.server.identities, now):
            raise ServerUnsuitable(
                f"the {title} run cannot begin: the server has changed since the job began",
                cause="\n".join(changed),
                remedy="run the same command again: it measures the server that runs now, and what was measured on "
                "the other one is measured again",
            )
        # Of one that does not answer now the earlier report counts; the client says what is wrong with it.
        self.begin: Mapping[str, ServerIdentity] = {
            endpoint: replace(self.server.identities[endpoint], process_started_s=identity.process_started_s)
            if unknown_content(self.server.identities, {endpoint: identity})
            else identity
            for endpoint, identity in now.items()
        }

    def require_same(self, starts: Mapping[str, Sequence[float]] | None) -> list[str]:
        """Return in words the restarts that are accepted, in the run and before it.

        `starts` are the process starts that were sampled during the run, by endpoint, None where none were. Raises
        RunFailed where a server has become another one since the run began, or was started again and this is not
        accepted, and where it no longer answers what shows this; for the page that was sampled it is only said.
        """
        if not self.begin:
            return self.accepted
        end = identities(self.server)
        if unknown_content(self.begin, end):
            time.sleep(AGAIN_S)
            end = identities(self.server)
        unknown = unknown_content(self.begin, end)
        for words in unknown.pop(_SAMPLED, ()) if starts is not None else ():
            warn(f"whether it is the same process as at the begin of the {self.title} run is not known: {words}")
        again = list(dict.fromkeys(self._restarts(starts or {}, end)))
        changed = other_content(self.begin, end)
        if unknown and not changed:
            raise RunFailed(
                f"the {self.title} run is INVALID: whether its server is still the same is not known",
                cause="\n".join(words for page in unknown.values() for words in page),
                remedy="run again, and let the server run until the end",
            )
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
            if identity.process_started_s is not None and seen == sorted(seen):
                reports = [{endpoint: replace(identity, process_started_s=time)} for time in seen]
                words += [text for before, after in pairwise(reports) for text in restarts(before, after)]
        return words
