"""Servers on the loopback interface that speak as the Hugging Face hub and as MLCommons' storage do."""

import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789012345678901234567890123456789"


class Files(BaseHTTPRequestHandler):
    """Sends bytes, whole or from where a Range says; `altered` changes them.

    Where `goes_on` is cleared, the second half of a large file is sent only when it is set again.
    """

    protocol_version = "HTTP/1.1"
    folder = Path()
    goes_on = threading.Event()
    piece = 1 << 16
    altered: set[str] = set()
    break_after: dict[str, int] = {}
    seen: list[tuple[str, str, dict[str, str]]] = []

    def log_message(self, *_):
        pass

    def send(self, status, data=b"", **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        with contextlib.suppress(OSError):
            for start in range(0, len(data), self.piece):
                if start > len(data) // 2:
                    self.goes_on.wait(60)
                self.wfile.write(data[start : start + self.piece])

    def send_file(self, path: Path, **headers):
        data = path.read_bytes()
        if path.name in self.altered:
            data = b"\0" * len(data)
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(asked[1]) if asked else 0
        if asked:
            headers["Content_Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if self.command == "GET" and (limit := self.break_after.pop(path.name, None)) is not None:
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start : start + limit])
            self.close_connection = True
            return
        self.send(206 if asked else 200, data[start:], Accept_Ranges="bytes", **headers)

    def do_GET(self):
        self.seen.append((self.command, self.path, dict(self.headers)))
        self.answer(unquote(self.path.partition("?")[0]))

    def do_HEAD(self):
        self.do_GET()


class Hub(Files):
    """The part of a model hub that a download uses; `owner/gated` asks for a token."""

    def answer(self, path):
        name = re.search(r"owner/[\w-]+", path)[0]
        if name == "owner/none":
            self.send(404, X_Error_Code="RepoNotFound")
        elif name == "owner/gated" and self.headers.get("Authorization") != "Bearer hf_right":
            self.send(403, X_Error_Code="GatedRepo")
        elif "no-such-branch" in path:
            self.send(404, X_Error_Code="RevisionNotFound")
        elif "/resolve/" in path:
            file = self.folder / path.rpartition("/")[2]
            self.send_file(file, ETag=f'"{hashlib.sha256(file.read_bytes()).hexdigest()}"', X_Repo_Commit=COMMIT)
        else:
            files = [self.listed(file) for file in self.folder.iterdir()]
            listed = files if "/tree/" in path else {"id": name, "modelId": name, "sha": COMMIT, "siblings": files}
            self.send(200, json.dumps(listed).encode(), Content_Type="application/json")

    def listed(self, file):
        """Describe a file as the hub does: large ones by their SHA-256, the others by git's SHA-1."""
        data = file.read_bytes()
        entry = {
            "rfilename": file.name,
            "path": file.name,
            "size": len(data),
            "type": "file",
            "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
        }
        entry["oid"] = entry["blobId"]
        if file.suffix == ".safetensors":
            entry["lfs"] = {
                "sha256": hashlib.sha256(data).hexdigest(),
                "oid": hashlib.sha256(data).hexdigest(),
                "size": len(data),
                "pointerSize": 134,
            }
        return entry


class Storage(Files):
    """MLCommons' storage: metadata/<name>.uri and .md5, and the files; `members` asks for a login."""

    def answer(self, path):
        name = path.rpartition("/")[2]
        if "members" in path and self.headers.get("cf-access-token") != "right":
            self.send(302, Location="https://mlcommons.cloudflareaccess.com/cdn-cgi/access/login/x")
        elif name.endswith(".uri") and name != "none.uri":
            host = self.headers["Host"]
            self.send(200, f"http://{host}/files{'/members' if 'members' in path else ''}\n".encode())
        elif name.endswith(".md5"):
            lines = [
                f"{hashlib.md5(file.read_bytes()).hexdigest()}  ./{file.relative_to(self.folder).as_posix()}"
                for file in sorted(self.folder.rglob("*"))
                if file.is_file()
            ]
            self.send(200, "\n".join(lines).encode())
        elif (self.folder / path.partition("/files/")[2].removeprefix("members/")).is_file():
            self.send_file(self.folder / path.partition("/files/")[2].removeprefix("members/"))
        else:
            self.send(404)


@contextlib.contextmanager
def serving(kind: type[Files], folder: Path):
    """Serve `folder`; gives the handler's class, whose attributes a test may change, with `address` set."""
    own = {"folder": folder, "seen": [], "altered": set(), "break_after": {}, "goes_on": threading.Event()}
    handler = type("One", (kind,), own)
    handler.goes_on.set()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        handler.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield handler
        finally:
            server.shutdown()
            thread.join()


def mounted(folder: Path, size: str) -> bool:
    """Mount a file system of `size` on `folder`, where this user may."""
    import shutil
    import subprocess

    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder]
    return bool(shutil.which("mount")) and not subprocess.run(words, check=False, capture_output=True).returncode
