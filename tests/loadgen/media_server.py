"""A server in a thread that answers each POST by what a test says: the frame of the servers of clips and pictures."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MediaServer:
    """Subclasses define `answered`; `endpoint` is the URL while the server is entered."""

    def answered(self, path, headers, body) -> tuple[int, bytes]:
        """Return the status and the body of the answer to a request."""
        raise NotImplementedError

    def __enter__(self):
        media = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, sent = media.answered(self.path, self.headers, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
