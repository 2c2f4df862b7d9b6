"""A web server on this machine for a few files: byte ranges or none, redirects, errors; it counts what it sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Reply:
    """A fixed answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class FileServer:
    """``files``: what lies at a path, in memory, on disk, or a fixed answer. ``ranges``: whether parts can be had.

    ``cut``: hang up after so many bytes of an answer. ``asked``: (path, Range, Authorization) of each request;
    ``sent``: bytes of files sent.
    """

    files: dict[str, bytes | Path | Reply]
    ranges: bool = True
    cut: int | None = None
    endpoint: str = ""
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    sent: int = 0


class _Handler(BaseHTTPRequestHandler):
    site: FileServer

    def setup(self) -> None:
        """Little of what was sent waits in the connection, so that ``sent`` says what the client took."""
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        self.site.asked.append((self.path, self.headers["Range"], self.headers["Authorization"]))
        found = self.site.files.get(self.path.partition("?")[0])
        if found is None:
            found = Reply(404, b"{}")
        try:
            if isinstance(found, Reply):
                self.reply(found)
            else:
                self.send(found)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def reply(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def send(self, content: bytes | Path) -> None:
        total = content.stat().st_size if isinstance(content, Path) else len(content)
        start, stop = 0, total
        wanted = self.headers["Range"] if self.site.ranges else None
        if wanted:
            first, last = wanted.removeprefix("bytes=").split("-")
            start, stop = int(first), min(int(last) + 1, total)
            if start >= total:
                self.reply(Reply(416))
                return
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{total}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.stream(content, start, stop)

    def stream(self, content: bytes | Path, start: int, stop: int) -> None:
        if self.site.cut is not None:
            stop = min(stop, start + self.site.cut)
        if isinstance(content, bytes):
            self.wfile.write(content[start:stop])
            self.site.sent += stop - start
            return
        with content.open("rb") as file:
            file.seek(start)
            while start < stop:
                data = file.read(min(_CHUNK, stop - start))
                self.wfile.write(data)
                self.site.sent += len(data)
                start += len(data)


@contextmanager
def file_server(files: Mapping[str, bytes | Path | Reply], ranges: bool = True) -> Iterator[FileServer]:
    """A running server; its address is ``endpoint``."""
    site = FileServer(dict(files), ranges)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": site}))
    site.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
