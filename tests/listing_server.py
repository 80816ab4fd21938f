"""A server that lists one model, for plans of jobs on running servers: more is not asked before a job runs."""

import atexit
import subprocess
import sys
from functools import cache

#: A process of its own: a test may fork this one, which must not have threads then.
_CODE = """
import http.server, signal
from cm4vllm.common.programs.processes import die_with_parent

die_with_parent(signal.SIGKILL)

class Lists(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        text = b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lists)
print(server.server_port, flush=True)
server.serve_forever()
"""


@cache
def listing_url() -> str:
    """Return the address of a server that lists one model, started once for this process, and ended with it."""
    process = subprocess.Popen([sys.executable, "-P", "-c", _CODE], stdout=subprocess.PIPE, text=True)
    atexit.register(_end, process)
    assert process.stdout is not None
    with process.stdout as output:
        return f"http://127.0.0.1:{int(output.readline())}"


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
