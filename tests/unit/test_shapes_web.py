"""Shapes of files on servers: only headers are fetched, by range or not; and whatever goes wrong is one line."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import pytest

from foredraft.errors import InvalidValue, ModelFileError
from foredraft.shapes import read_shape, web
from tests.support.file_server import FileServer, Reply, file_server
from tests.support.gguf_writer import RawTensor, gguf_bytes, tiny_gguf, tiny_metadata
from tests.support.stored import CONFIG, model_files, sharded_files

COMMIT = "c" * 40
TINY = tiny_gguf()
LARGE = gguf_bytes(
    {**tiny_metadata(), "general.description": "x" * 500_000, "tokenizer.huggingface.json": "y" * 3_000_000},
    [RawTensor("token_embd.weight", (32, 16), 0, bytes(2048)), RawTensor("w", (32, 100_000), 0, bytes(12_800_000))],
)
"""A header of 3.5 MB, then 12.8 MB of data."""


@pytest.fixture(autouse=True)
def _plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def site() -> Iterator[FileServer]:
    with file_server({"/m/tiny.gguf": TINY, "/m/large.gguf": LARGE}) as server:
        yield server


def refused(spec: str) -> str:
    """What is said about ``spec``: one line that begins with it."""
    with pytest.raises(ModelFileError) as caught:
        read_shape(spec)
    message = str(caught.value)
    assert message.startswith(spec) and message.isprintable()
    return message.removeprefix(spec).removeprefix(": ")


# --- a file at an address ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_at_an_address(site: FileServer, ranges: bool) -> None:
    site.ranges = ranges
    shape = read_shape(f"{site.endpoint}/m/tiny.gguf")
    assert (shape.name, shape.vocab_size, shape.layers, shape.file_bytes) == ("tiny", 16, 1, len(TINY))
    assert (shape.source, len(site.asked), site.asked[0][1]) == ("gguf", 1, "bytes=0-1048575")


def test_no_more_is_fetched_than_needed(site: FileServer) -> None:
    shape = read_shape(f"{site.endpoint}/m/large.gguf?download=true")
    assert (shape.file_bytes, shape.parameters) == (len(LARGE), 3_200_512)
    assert [wanted for _, wanted, _ in site.asked] == [
        "bytes=0-1048575",
        "bytes=1048576-3145727",
        "bytes=3145728-6291455",
    ]
    assert site.sent <= 6 << 20


def test_a_server_without_ranges_is_cut_off(site: FileServer) -> None:
    site.ranges = False
    site.files["/m/large.gguf"] = LARGE + bytes(64 << 20)
    assert read_shape(f"{site.endpoint}/m/large.gguf").parameters == 3_200_512
    assert (len(site.asked), site.sent) == (1, 0)  # the one write of all its bytes failed


def test_a_part_that_is_shorter_than_asked_for(site: FileServer) -> None:
    """A server may send less: the next request goes on behind it."""

    def fetch(url: str, first: int, last: int) -> web.Answer:
        return web.fetch(url, first, min(last, first + 999))

    shape = read_shape(f"{site.endpoint}/m/tiny.gguf", fetch=fetch)
    assert shape.vocab_size == 16 and len(site.asked) > 1


def test_a_redirect_is_followed(site: FileServer) -> None:
    site.files["/go"] = Reply(302, headers={"Location": "/m/tiny.gguf"})
    assert read_shape(f"{site.endpoint}/go").vocab_size == 16
    assert [wanted for _, wanted, _ in site.asked] == ["bytes=0-1048575"] * 2


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://localhost/x.gguf", "/loop", "data:,x"])
def test_redirects_that_are_not_followed(site: FileServer, target: str) -> None:
    site.files["/loop"] = Reply(302, headers={"Location": target})
    assert "redirects in a circle or to what is neither http nor https (302)" in refused(f"{site.endpoint}/loop")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "the server refuses (401): private, gated or not there; accept its terms, then set HF_TOKEN"),
        (403, "the server refuses (403)"),
        (404, "no such file on the server (404); check the address"),
        (416, "empty or changed while it was read (416)"),
        (429, "too many requests (429)"),
        (503, "answers with an error (503); try again later"),
    ],
)
def test_answers_that_say_no(site: FileServer, status: int, words: str) -> None:
    site.files["/x.gguf"] = Reply(status, b"<html>no</html>")
    assert words in refused(f"{site.endpoint}/x.gguf")


def test_answers_that_are_no_model(site: FileServer) -> None:
    site.files |= {"/page": b"<!DOCTYPE html><html>", "/empty": b"", "/json": b'{"error": 1}', "/cut": TINY[:800]}
    assert "it is a web page, so the download link was not the file itself" in refused(f"{site.endpoint}/page")
    assert "it is JSON text" in refused(f"{site.endpoint}/json")
    assert "file is truncated" in refused(f"{site.endpoint}/cut")
    site.ranges = False
    assert "is empty (0 bytes) on the server" in refused(f"{site.endpoint}/empty")


def test_answers_that_break_the_rules(site: FileServer) -> None:
    site.files |= {
        "/part": Reply(206, TINY),
        "/odd": Reply(206, TINY, {"Content-Range": "bytes 5-2/3"}),
        "/late": Reply(206, TINY, {"Content-Range": "bytes 5-9/2000"}),
        "/unsized": Reply(200, TINY, {"Content-Length": ""}),
    }
    assert "sends a part without saying which" in refused(f"{site.endpoint}/part")
    assert "sends a part without saying which ('bytes 5-2/3')" in refused(f"{site.endpoint}/odd")
    assert "sends another part than was asked for" in refused(f"{site.endpoint}/late")
    assert "does not say how large the file is" in refused(f"{site.endpoint}/unsized")


def test_a_connection_that_ends_early(site: FileServer) -> None:
    site.cut = 1000
    assert "the connection ended after 1000 of" in refused(f"{site.endpoint}/m/tiny.gguf")


def test_a_file_that_changes_while_it_is_read(site: FileServer) -> None:
    def fetch(url: str, first: int, last: int) -> web.Answer:
        answer = web.fetch(url, first, last)
        return replace(answer, total=(answer.total or 0) + bool(first))

    with pytest.raises(ModelFileError, match="changed on the server while it was read"):
        read_shape(f"{site.endpoint}/m/large.gguf", fetch=fetch)


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    assert "cannot be reached (Connection refused); check the network or proxy" in refused(
        f"http://127.0.0.1:{port}/a.gguf"
    )


def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TIMEOUT", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert "no whole answer within" in refused(f"http://127.0.0.1:{silent.getsockname()[1]}/a.gguf")


def test_a_server_that_drips_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TIMEOUT", 0.4)
    ended = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            for letter in itertools.cycle(b"HTTP/1.1 200 OK\r\nX: yyyy"):
                if ended.wait(0.05):
                    return
                connection.sendall(bytes([letter]))

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        try:
            assert "no whole answer within" in refused(f"http://127.0.0.1:{server.getsockname()[1]}/a.gguf")
        finally:
            ended.set()
            thread.join()


def test_a_server_that_takes_forever(site: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "DEADLINE", -1.0)
    assert "took more than" in refused(f"{site.endpoint}/m/tiny.gguf")


def test_a_host_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **more: object) -> NoReturn:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert refused("http://nowhere.invalid/a.gguf") == "its host is not found; check the address and the network"


def test_something_that_is_no_web_server() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        import threading

        def babble() -> None:
            client, _ = server.accept()
            with client:
                client.recv(4096)
                client.sendall(b"220 mail.example.com ready\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        assert "the answer makes no sense" in refused(f"http://127.0.0.1:{server.getsockname()[1]}/a.gguf")
        thread.join()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/a.gguf",
        "file:///etc/hostname",
        "http:///a.gguf",
        "https://name:secret@host/a.gguf",
        "http://host:port/a.gguf",
        "http://[1/a.gguf",
        "http://host/a b.gguf",
        "http://host/a\r\nX: y",
        "http://höst/a.gguf",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidValue, match=r"address is .*; allowed: http://HOST/PATH") as caught:
        read_shape(url)
    assert "secret" not in str(caught.value) and str(caught.value).isprintable()


def test_a_signature_is_not_shown(site: FileServer) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_shape(f"{site.endpoint}/gone.gguf?signature=secret")
    assert "secret" not in str(caught.value)


# --- the hub -----------------------------------------------------------------------------------------------


def repository(*names: str, sha: str | None = COMMIT) -> bytes:
    return json.dumps({"id": "owner/repo", "sha": sha, "siblings": [{"rfilename": name} for name in names]}).encode()


@pytest.fixture
def hub(empty_cache: object, site: FileServer, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    monkeypatch.setenv("HF_ENDPOINT", f"{site.endpoint}/")
    site.files["/api/models/owner/repo"] = repository("README.md", "m-Q4_K_M.gguf", "sub/m-q8_0.gguf")
    site.files[f"/owner/repo/resolve/{COMMIT}/m-Q4_K_M.gguf"] = TINY
    return site


def test_a_file_of_the_hub(hub: FileServer) -> None:
    assert read_shape("owner/repo:q4_k_m").file_bytes == len(TINY)
    assert [path for path, _, _ in hub.asked] == [
        "/api/models/owner/repo",
        f"/owner/repo/resolve/{COMMIT}/m-Q4_K_M.gguf",
    ]


def test_a_repository_with_one_file(hub: FileServer) -> None:
    hub.files["/api/models/owner/repo"] = repository("a ü.gguf", sha=None)
    hub.files["/owner/repo/resolve/main/a%20%C3%BC.gguf"] = TINY
    assert read_shape("owner/repo").vocab_size == 16


@pytest.mark.parametrize(
    ("spec", "names", "words"),
    [
        ("owner/repo", ["a.gguf", "b.gguf"], "2 files match; choose with owner/repo:FILE from: a.gguf, b.gguf"),
        ("owner/repo:q2", ["a.gguf", "b.gguf"], "no such .gguf file; choose with owner/repo:FILE from: a.gguf, b.gguf"),
        ("owner/repo", ["model.bin"], "no such .gguf file; choose with owner/repo:FILE from: none"),
        ("owner/repo", [f"{i}.gguf" for i in range(20)], "and 8 more"),
        ("owner/repo", ["../a.gguf"], "refusing the file name"),
        ("owner/repo", ["a-00001-of-00002.gguf"], "is one part of a split model"),
        ("owner/repo", [], "the hub names no files of it"),
    ],
)
def test_files_that_cannot_be_chosen(hub: FileServer, spec: str, names: list[str], words: str) -> None:
    hub.files["/api/models/owner/repo"] = repository(*names)
    assert words in refused(spec)


def test_answers_of_the_hub_that_make_no_sense(hub: FileServer) -> None:
    where = f"is no file here, and asking the hub failed: {hub.endpoint}/api/models/owner/repo: "
    for body, words in (
        (b"<html>", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b" " * (2 << 20) + b"{}", "has more than 2097152 bytes"),
    ):
        hub.files["/api/models/owner/repo"] = Reply(200, body)
        assert refused("owner/repo").startswith(where + words)
    for siblings in (b"3", b"[3]", b'[{"rfilename": 3}]'):
        hub.files["/api/models/owner/repo"] = Reply(200, b'{"siblings": ' + siblings + b"}")
        assert "the hub names no files of it" in refused("owner/repo")
    hub.files["/api/models/owner/repo"] = Reply(401)
    with pytest.raises(ModelFileError, match="private, gated or not there"):
        read_shape("owner/repo")


def test_an_answer_that_ends_early(hub: FileServer) -> None:
    hub.cut = 10
    with pytest.raises(ModelFileError, match="the connection ended early"):
        read_shape("owner/repo")


def test_an_answer_of_unknown_length(hub: FileServer) -> None:
    names = Reply(200, repository("m-Q4_K_M.gguf"), {"Content-Length": ""})
    hub.files["/api/models/owner/repo"] = names
    assert read_shape("owner/repo").vocab_size == 16


@pytest.mark.parametrize("files", [model_files(), sharded_files()], ids=["one", "two"])
def test_a_repository_of_transformers(hub: FileServer, files: dict[str, bytes]) -> None:
    hub.files["/api/models/owner/repo"] = repository(*files)
    hub.files |= {f"/owner/repo/resolve/{COMMIT}/{name}": data for name, data in files.items()}
    shape = read_shape("owner/repo")
    assert (shape.name, shape.source, shape.layers, shape.weight_bytes) == ("repo", "safetensors", 2, 2 * 592)
    assert shape.file_bytes == sum(len(data) for name, data in files.items() if name.endswith(".safetensors"))


def test_errors_name_the_file_on_the_hub(hub: FileServer) -> None:
    base = f"{hub.endpoint}/owner/repo/resolve/{COMMIT}"
    files = model_files(CONFIG | {"architectures": ["Other"]})
    hub.files["/api/models/owner/repo"] = repository(*files)
    hub.files |= {f"/owner/repo/resolve/{COMMIT}/{name}": data for name, data in files.items()}
    with pytest.raises(ModelFileError) as caught:
        read_shape("owner/repo")
    assert str(caught.value).startswith(f"{base}/config.json: architectures is ['Other']")
    hub.files[f"/owner/repo/resolve/{COMMIT}/config.json"] = model_files()["config.json"]
    hub.files[f"/owner/repo/resolve/{COMMIT}/model.safetensors"] = b"\x02\0\0\0\0\0\0\0{]"
    with pytest.raises(ModelFileError) as caught:
        read_shape("owner/repo")
    assert str(caught.value).startswith(f"{base}/model.safetensors: is not JSON")


def test_the_token_goes_to_the_hub_only(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret\n")
    address = f"/owner/repo/resolve/{COMMIT}/m-Q4_K_M.gguf"
    with file_server({"/blob": TINY}) as other:
        hub.files[address] = Reply(307, headers={"Location": f"/cached{address}"})
        hub.files[f"/cached{address}"] = Reply(302, headers={"Location": f"{other.endpoint}/blob"})
        assert read_shape("owner/repo:q4_k_m").vocab_size == 16
        assert [token for _, _, token in hub.asked] == ["Bearer hf_secret"] * 3
        assert [token for _, _, token in other.asked] == [None]
        read_shape(f"{other.endpoint}/blob")
        assert other.asked[-1][2] is None


@pytest.mark.parametrize(("name", "value"), [("HF_TOKEN", "two\r\nlines"), ("HF_ENDPOINT", "huggingface.co")])
def test_settings_that_cannot_be(hub: FileServer, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidValue, match=f"^{name} is ") as caught:
        read_shape("owner/repo")
    assert "lines" not in str(caught.value).partition("allowed")[0]


def test_offline(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in refused("owner/repo")
    assert not hub.asked


def test_the_page_about_a_file_means_the_file() -> None:
    asked = []

    def fetch(url: str, first: int, last: int) -> NoReturn:
        asked.append(url)
        raise ModelFileError("enough")

    with pytest.raises(ModelFileError, match="enough"):
        read_shape("https://huggingface.co/owner/repo/blob/main/a.gguf", fetch=fetch)
    assert asked == ["https://huggingface.co/owner/repo/resolve/main/a.gguf"]
