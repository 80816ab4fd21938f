"""The counts of the client and of its spare connections, for whoever needs these and no event loop."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SPARE", "Counts"]

#: Connections to each server that are kept open for requests to come, where each has to leave at once: as many as may
#: be issued while another one is opened (a few ms with TLS, at thousands of queries/s). While they are renewed, up to
#: twice as many.
SPARE = 16


@dataclass(slots=True)
class Counts:
    """Counts of the client so far; `at_length` of the completed answers ended with finish_reason `length`."""

    requests: int = 0
    completed: int = 0
    failed: int = 0
    retries: int = 0
    connections: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    at_once: int = 0
    at_length: int = 0
