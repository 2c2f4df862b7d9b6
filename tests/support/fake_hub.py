"""A Hugging Face hub on this machine: one repository, byte ranges, and faults on request."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


@dataclass
class FakeHub:
    """``files`` of the repository ``owner/repo``. ``ranges``: the Range header of each file request.

    ``tokens``: the Authorization header of each request. ``sha256`` replaces the true one. ``status`` is the
    answer of the API. ``cut``: send only so many bytes of a file's first request, then hang up.
    """

    files: dict[str, bytes]
    endpoint: str = ""
    ranges: list[str | None] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    sha256: str | None = None
    lfs: bool = True
    status: int = 200
    body: bytes | None = None
    cut: int | None = None

    def info(self) -> bytes:
        """What the API says of the repository."""
        siblings: list[dict[str, object]] = []
        for name, data in self.files.items():
            item: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": "b" * 40}
            if self.lfs:
                sha256 = self.sha256 or hashlib.sha256(data).hexdigest()
                item["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 134}
            siblings.append(item)
        info = {"id": "owner/repo", "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
        return json.dumps(info).encode()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.hub.tokens.append(self.headers["Authorization"])
        path = self.path.partition("?")[0]
        if path == "/api/models/owner/repo":
            self.answer(self.hub.status, self.hub.info() if self.hub.body is None else self.hub.body)
        elif match := re.fullmatch(f"/owner/repo/resolve/{COMMIT}/(.+)", path):
            self.send_file(self.hub.files[match[1]])
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def send_file(self, data: bytes) -> None:
        wanted = self.headers["Range"]
        self.hub.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if wanted else {}
        if self.hub.cut is None:
            self.answer(206 if wanted else 200, data[start:], headers)
            return
        cut, self.hub.cut = self.hub.cut, None
        self.answer(206 if wanted else 200, data[start : start + cut], {"Content-Length": str(len(data) - start)})
        self.close_connection = True


@contextmanager
def fake_hub(files: dict[str, bytes]) -> Iterator[FakeHub]:
    """A running hub with ``files``; its address is ``endpoint``."""
    hub = FakeHub(files)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
