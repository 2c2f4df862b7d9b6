"""Reads parts of files from web servers: the standard library's client, byte ranges, and what goes wrong in one line.

It knows nothing of models. The token of the hub goes to the hub's own address only, never to one it redirects to.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NoReturn, Protocol, Self
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from foredraft.errors import InvalidValue, ModelFileError
from foredraft.gguf_types import printable

TIMEOUT = 20.0
"""Seconds without an answer after which a server counts as silent."""
DEADLINE = 120.0
"""Seconds that one answer may take altogether."""
FIRST_PIECE = 1 << 20
MOST_PIECE = 3 << 20
"""Pieces double up to this size, so that no more than 3 MiB are read beyond what is needed."""
_CHUNK = 1 << 16
_HUB = "https://huggingface.co"
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_PORTS = {"http": 80, "https": 443}
_HEADERS = {"User-Agent": "foredraft", "Accept-Encoding": "identity"}


class Stream(Protocol):
    """Bytes that come one after the other."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; empty at the end."""

    def close(self) -> None:
        """Fetch no more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes [``start``, ``stop``) of a file of ``total`` bytes; None = the server does not say."""

    stream: Stream
    start: int
    stop: int | None
    total: int | None


Fetch = Callable[[str, int, int], Answer]
"""(address, first byte, last byte wanted) -> the answer, which may hold the whole file. Raises ModelFileError."""


def refuse(place: str, what: str) -> NoReturn:
    """Raise the one-line error about a file at ``place``."""
    raise ModelFileError(f"{printable(place)}: {what}")


def is_address(spec: str) -> bool:
    """True if ``spec`` is meant as an address on the web."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", spec) is not None


def shown(url: str) -> str:
    """``url`` for a message: without a user's name, a password, or the signature behind the question mark."""
    parts = urlsplit(url)
    return printable(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")), 300)


def checked(url: str) -> str:
    """``url`` if it is one that can be asked; InvalidValue otherwise."""
    try:
        parts = urlsplit(url)
        good = parts.scheme.lower() in _PORTS and bool(parts.hostname) and "@" not in parts.netloc
        good = good and (parts.port or 1) > 0 and url.isascii() and url.isprintable() and " " not in url
    except ValueError:  # a port that is no number, brackets that do not match
        good = False
    if not good:
        without = re.sub(r"//[^/]*@", "//", url)
        allowed = "http://HOST/PATH or https://HOST/PATH, without user name, other signs percent-encoded"
        raise InvalidValue("address", printable(without, 200), allowed)
    return url


def endpoint() -> str:
    """The address of the hub: ``$HF_ENDPOINT``, else Hugging Face's own."""
    url = os.environ.get("HF_ENDPOINT", "").rstrip("/") or _HUB
    try:
        return checked(url)
    except InvalidValue as error:
        raise InvalidValue("HF_ENDPOINT", error.value, error.allowed) from None


# --- one request --------------------------------------------------------------------------------------------


def fetch(url: str, first: int, last: int) -> Answer:
    """Ask for bytes [first, last] of ``url``. A server that knows no ranges sends the file from its beginning."""
    request = Request(checked(url), headers={"Range": f"bytes={first}-{last}", **_HEADERS})  # noqa: S310  checked
    _authorise(request)
    try:
        response = _opened(request)
    except HTTPError as error:
        error.close()
        refuse(shown(url), _meaning(error.code))
    except (OSError, HTTPException, ValueError) as error:
        refuse(shown(url), _reason(error))
    body = _Body(response, shown(url))
    if response.status == 206:
        return _ranged(url, body, response.headers.get("Content-Range", ""))
    length = response.headers.get("Content-Length", "")
    total = int(length) if re.fullmatch("[0-9]{1,18}", length) else None
    return Answer(body, 0, total, total)


def _opened(request: Request) -> HTTPResponse:
    """The answer, once its header is there. urllib bounds the wait for each byte only, so a server that sends its
    header drop by drop could hold up the caller for ever: the wait as a whole is bounded here."""
    found = SimpleQueue[HTTPResponse | Exception]()

    def ask() -> None:
        try:
            found.put(build_opener(_Redirects).open(request, timeout=TIMEOUT))
        except Exception as error:  # noqa: BLE001  raised again where somebody waits
            found.put(error)

    Thread(target=ask, daemon=True).start()
    try:
        answer = found.get(timeout=1.25 * TIMEOUT)
    except Empty:
        raise TimeoutError from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _ranged(url: str, body: _Body, header: str) -> Answer:
    match = _RANGE.fullmatch(header.strip())
    numbers = [int(number) for number in match.groups()] if match else []
    if not numbers or not numbers[0] <= numbers[1] < numbers[2]:
        body.close()
        refuse(shown(url), f"the server sends a part without saying which ({printable(header, 60)!r}); get the file")
    return Answer(body, numbers[0], numbers[1] + 1, numbers[2])


class _Redirects(HTTPRedirectHandler):
    """Follows to http(s) only, and takes the token along only to where it belongs."""

    def redirect_request(self, req: Request, *answer: Any) -> Request | None:
        """The next request after ``answer``: its stream, status, reason, headers, and the new address."""
        stream, code, reason, headers, address = answer
        if urlsplit(address).scheme.lower() not in _PORTS:
            raise HTTPError(req.full_url, code, reason, headers, stream)
        request = super().redirect_request(req, stream, code, reason, headers, address)
        if request is not None:
            _authorise(request)
        return request


def _authorise(request: Request) -> None:
    """Add ``$HF_TOKEN`` if the request goes to the hub; urllib takes such a header to no other address."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token or _origin(urlsplit(request.full_url)) != _origin(urlsplit(endpoint())):
        return
    if not token.isascii() or not token.isprintable():
        raise InvalidValue("HF_TOKEN", "(not shown)", "letters, digits and underscores on one line")
    request.add_unredirected_header("Authorization", f"Bearer {token}")


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(scheme, 0)


def _meaning(code: int) -> str:
    """What an answer's status says, and what to do."""
    if code in (401, 403):
        return f"the server refuses ({code}): private, gated or not there; accept its terms, then set HF_TOKEN"
    if code in (404, 410):
        return f"no such file on the server ({code}); check the address"
    if code == 416:
        return "the file on the server is empty or changed while it was read (416); try again"
    if code == 429:
        return "the server has had too many requests (429); wait a little, then try again"
    if 300 <= code < 400:
        return f"redirects in a circle or to what is neither http nor https ({code}); give the file's own address"
    return f"the server answers with an error ({code}); try again later"


def _reason(error: Exception) -> str:
    """Why there was no answer."""
    inner = error.reason if isinstance(error, URLError) else error
    if isinstance(inner, TimeoutError):
        return f"no whole answer within {TIMEOUT:.0f} s; check the network and try again"
    if isinstance(inner, socket.gaierror):
        return "its host is not found; check the address and the network"
    if isinstance(inner, ssl.SSLError):
        return "its certificate is not trusted or the encryption failed; check the address and the clock"
    if isinstance(inner, OSError):
        return f"cannot be reached ({printable(inner.strerror or str(inner), 80)}); check the network or proxy"
    return f"the answer makes no sense ({printable(str(inner), 80)}); check the address or the proxy"


class _Body:
    """What follows an answer's header, with a limit on the time it takes."""

    def __init__(self, response: HTTPResponse, place: str) -> None:
        self._response, self._place = response, place
        self._end = time.monotonic() + DEADLINE

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes."""
        if time.monotonic() > self._end:
            refuse(self._place, f"took more than {DEADLINE:.0f} s; try again on a faster network")
        try:
            return self._response.read1(min(size, _CHUNK))
        except (OSError, HTTPException, ValueError) as error:
            refuse(self._place, _reason(error))

    def close(self) -> None:
        """Hang up."""
        self._response.close()


# --- a file, read from its beginning ------------------------------------------------------------------------


class RemoteFile:
    """The beginning of the file at ``url``, fetched in pieces as it is read. ``size``: of the whole file, in bytes.

    Without ranges the one answer is read as far as needed. Leaving the ``with`` block hangs up.
    """

    def __init__(self, url: str, fetch: Fetch, first: int = FIRST_PIECE) -> None:
        self._url, self._fetch, self._piece = url, fetch, first
        self._at = 0
        self._stream: Stream | None = None
        self.size = self._ask()

    def _ask(self) -> int:
        """Open the next piece; the size of the whole file."""
        answer = self._fetch(self._url, self._at, self._at + self._piece - 1)
        self._piece = max(self._piece, min(2 * self._piece, MOST_PIECE))
        if answer.stop is None or not answer.total or answer.start != self._at:
            answer.stream.close()
            if answer.start != self._at:
                refuse(shown(self._url), "the server sends another part than was asked for; download the file")
            if answer.total == 0:
                refuse(shown(self._url), "is empty (0 bytes) on the server; check the address")
            refuse(shown(self._url), "the server does not say how large the file is; download it")
        self._stream, self._stop = answer.stream, answer.stop
        return answer.total

    def read(self, size: int, /) -> bytes:
        """The next at most ``size`` bytes; empty at the end of the file."""
        if self._at >= self.size:
            return b""
        if self._at >= self._stop:
            self._hang_up()
            if self._ask() != self.size:
                refuse(shown(self._url), "changed on the server while it was read; try again")
        assert self._stream is not None
        data = self._stream.read(min(size, self._stop - self._at))
        if not data:
            refuse(shown(self._url), f"the connection ended after {self._at} of {self._stop} bytes; try again")
        self._at += len(data)
        return data

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._hang_up()


def document(url: str, fetch: Fetch, most: int) -> bytes:
    """The whole of a small file; ModelFileError if it has more than ``most`` bytes."""
    answer = fetch(url, 0, most)
    data = bytearray()
    try:
        while len(data) <= most and (part := answer.stream.read(most + 1 - len(data))):
            data += part
    finally:
        answer.stream.close()
    if len(data) > most:
        refuse(shown(url), f"has more than {most} bytes; is it the right address?")
    if answer.start or (answer.total or len(data)) != len(data):
        refuse(shown(url), "the connection ended early; try again")
    return bytes(data)
