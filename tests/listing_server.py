"""A server that lists one model, for plans of jobs on running servers: more is not asked before a job runs."""

import threading
from functools import cache
from http.server import ThreadingHTTPServer

from loopback_server import Handler


class _Lists(Handler):
    def do_GET(self) -> None:
        self.send(200, b'{"object": "list", "data": [{"id": "m", "object": "model"}]}', "application/json")


class _Server(ThreadingHTTPServer):
    daemon_threads = True


@cache
def listing_url() -> str:
    """Return the address of a server in this process that lists one model, started once, until the process ends.

    Nothing waits for its thread, and nothing ends it: a test may fork this process, and its copy has no such thread.
    """
    server = _Server(("127.0.0.1", 0), _Lists)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
