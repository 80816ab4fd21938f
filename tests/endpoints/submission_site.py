"""A site that takes runs as that of MLCommons does, and a proxy that leads nowhere; both note the requests."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site:
    """Registered runs by their ids, with the bodies of their archives; `asked` are the requests in their order.

    A run of which `refused` is the number, from 1 on, gets no archive.
    """

    def __init__(self, refused=0):
        self.asked, self.runs, self.archives, self.tokens, self._refused = [], {}, {}, set(), refused
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": self}))
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def create(self, payload):
        name = f"run-{len(self.runs) + 1}"
        self.runs[name] = payload
        return {"id": name}

    def store(self, name, body):
        if name == f"run-{self._refused}":
            return False
        self.archives[name] = body
        return True


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *_):
        pass

    def _body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status, content=None):
        body = json.dumps(content).encode() if content is not None else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _note(self):
        self.site.asked.append(f"{self.command} {self.path}")
        if token := self.headers.get("X-API-Key"):
            self.site.tokens.add(token)

    def do_CONNECT(self):
        self._note()
        self._answer(403)

    def do_POST(self):
        self._note()
        self._answer(201, self.site.create(json.loads(self._body())))

    def do_GET(self):
        self._note()
        name = self.path.split("/")[2]
        self._answer(200, {"upload_url": f"{self.site.address}/stored/{name}", "archive_uri": f"made://{name}"})

    def do_PUT(self):
        self._note()
        self._answer(200 if self.site.store(self.path.split("/")[2], self._body()) else 500)

    def do_DELETE(self):
        self._note()
        self.site.runs.pop(self.path.split("/")[2], None)
        self._answer(204)
