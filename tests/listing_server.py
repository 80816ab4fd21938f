"""A server that lists one model, for plans of jobs on running servers: more is not asked before a job runs."""

import threading
from functools import cache

from loopback_server import Handler, LoopbackServer


class _Lists(Handler):
    def do_GET(self) -> None:
        self.send(200, b'{"object": "list", "data": [{"id": "m", "object": "model"}]}', "application/json")


@cache
def listing_url() -> str:
    """Return the address of a server in this process that lists one model, started once, until the process ends."""
    server = LoopbackServer().start(_Lists)
    threading._register_atexit(server.server.shutdown)  # type: ignore[attr-defined] # its thread would be waited for
    return f"http://127.0.0.1:{server.port}"
