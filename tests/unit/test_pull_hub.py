"""Downloads from the hub, against a local one: complete and right, resumed, or one clear line."""

from __future__ import annotations

import shutil
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from foredraft.catalogue import resolve
from foredraft.errors import MissingExtra
from foredraft.pull import Progress, pull
from tests.support.fake_hub import FakeHub, fake_hub
from tests.support.refusals import failed_pull, files

Usage = namedtuple("Usage", "total used free")
SMALL, LARGE = b"GGUF" + bytes(996), bytes(range(256)) * 4000


@pytest.fixture
def hub(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    content = {"README.md": b"text", "m-q4_k_m.gguf": LARGE, "sub/m-q8_0.gguf": SMALL}
    with fake_hub(content) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
        yield server


def test_a_hub_file(empty_cache: Path, hub: FakeHub) -> None:
    seen: list[Progress] = []
    path = pull("owner/repo:m-q4_k_m.gguf", seen.append)
    assert path.read_bytes() == LARGE
    assert path == resolve("owner/repo:q4_k_m") == resolve("owner/repo")
    assert files(empty_cache) == ["hub/owner--repo/m-q4_k_m.gguf"]
    assert hub.ranges == [None]
    assert hub.tokens == ["Bearer hf_secret"] * 2
    downloads = [item for item in seen if item.stage == "download"]
    assert downloads[0].done < downloads[-1].done == downloads[-1].total == len(LARGE)


def test_a_short_name_and_a_folder(empty_cache: Path, hub: FakeHub) -> None:
    assert pull("owner/repo:Q8_0").read_bytes() == SMALL
    assert files(empty_cache) == ["hub/owner--repo/sub/m-q8_0.gguf"]
    hub.ranges.clear()
    assert pull("owner/repo:q8_0.gguf").read_bytes() == SMALL
    assert hub.ranges == []


def test_the_only_file_needs_no_name(hub: FakeHub) -> None:
    del hub.files["sub/m-q8_0.gguf"]
    assert pull("owner/repo").read_bytes() == LARGE


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("owner/repo", "choose with owner/repo:FILE from: m-q4_k_m.gguf, sub/m-q8_0.gguf"),
        (
            "owner/repo:q5",
            "no such .gguf file; choose with owner/repo:FILE from: m-q4_k_m.gguf, sub/m-q8_0.gguf",
        ),
        ("owner/other:q4", "no such repository, or it is private: set HF_TOKEN"),
    ],
)
def test_what_the_hub_does_not_have(empty_cache: Path, hub: FakeHub, spec: str, words: str) -> None:
    assert words in failed_pull(spec)
    assert files(empty_cache) == []


def test_a_long_list_is_cut(hub: FakeHub) -> None:
    hub.files = {f"m-{i:02}.gguf": SMALL for i in range(20)}
    assert failed_pull("owner/repo").endswith("m-11.gguf and 8 more")


@pytest.mark.parametrize("name", ["../out.gguf", "a/../../out.gguf", "/out.gguf", "a\\..\\out.gguf", "c:out.gguf"])
def test_names_that_leave_the_cache(empty_cache: Path, hub: FakeHub, name: str) -> None:
    hub.files = {name: SMALL}
    assert "refusing the file name" in failed_pull("owner/repo")
    assert files(empty_cache.parent) == []


def test_a_split_model_is_refused_before_the_download(hub: FakeHub) -> None:
    hub.files = {"m-00001-of-00003.gguf": SMALL}
    assert "one part of a split model" in failed_pull("owner/repo")
    assert hub.ranges == []


def test_an_interrupted_hub_file_resumes(empty_cache: Path, hub: FakeHub) -> None:
    def interrupt(item: Progress) -> None:
        if item.stage == "download" and item.done >= 300_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("owner/repo:q4_k_m", interrupt)
    (part,) = files(empty_cache)
    assert part.startswith("partial/hub/owner--repo/m-q4_k_m/")
    size = (empty_cache / part).stat().st_size
    assert 0 < size < len(LARGE)
    assert pull("owner/repo:q4_k_m").read_bytes() == LARGE
    assert hub.ranges == [None, f"bytes={size}-"]
    assert files(empty_cache) == ["hub/owner--repo/m-q4_k_m.gguf"]


def test_a_broken_connection_resumes(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    hub.cut = 500_000
    assert pull("owner/repo:q4_k_m").read_bytes() == LARGE
    assert len(hub.ranges) == 2
    assert hub.ranges[1] is not None


def test_a_hub_file_with_a_wrong_sha256(empty_cache: Path, hub: FakeHub) -> None:
    hub.sha256 = "0" * 64
    assert "the download is damaged" in failed_pull("owner/repo:q8_0")
    assert files(empty_cache) == []


def test_a_hub_without_checksums(hub: FakeHub) -> None:
    hub.lfs = False
    assert "the hub has no sha256 for sub/m-q8_0.gguf" in failed_pull("owner/repo:q8_0")


@pytest.mark.parametrize("body", [b"<html>log in here</html>", b"[1]", b"{}"])
def test_an_answer_that_makes_no_sense(hub: FakeHub, body: bytes) -> None:
    hub.body = body
    assert "the hub's answer makes no sense" in failed_pull("owner/repo:q8_0")


def test_a_hub_that_refuses(hub: FakeHub) -> None:
    hub.status = 418
    assert "the hub refused: " in failed_pull("owner/repo:q8_0")


def test_no_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "cannot reach the hub" in failed_pull("owner/repo:q8_0")


def test_a_disk_too_small_for_a_hub_file(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**6, 10**6 - 5, 5))
    assert "1000 bytes more are needed, 5 are free" in failed_pull("owner/repo:q8_0")


def test_the_hub_needs_its_package(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"pip install 'foredraft\[hub\]'"):
        pull("owner/repo:q4")
