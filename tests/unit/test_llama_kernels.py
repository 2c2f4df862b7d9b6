"""What is found out about llama.cpp's kernels is asked once and never guessed from an unrelated failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from foredraft.catalogue import cache_dir
from foredraft.engines import llama_kernels
from foredraft.engines.llama_kernels import remembered, repacking_works
from tests.support.gguf_writer import tiny_gguf


@pytest.fixture
def model(empty_cache: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf())
    return path


def exits(monkeypatch: pytest.MonkeyPatch, code: str) -> list[int]:
    """The trial becomes ``code``; the list grows with every child."""
    children: list[int] = []
    real = subprocess.run

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        children.append(1)
        return real([sys.executable, "-c", code], capture_output=True, check=False)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(llama_kernels, "suspects", lambda: True)
    return children


def test_a_crash_turns_repacking_off_and_is_remembered(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children = exits(monkeypatch, "import os; os.kill(os.getpid(), 11)")
    assert [repacking_works(model) for _ in range(3)] == [False] * 3
    assert len(children) == 1


def test_a_survivor_is_remembered(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children = exits(monkeypatch, "")
    assert [repacking_works(model) for _ in range(3)] == [True] * 3
    assert len(children) == 1


def test_another_failure_says_nothing_about_kernels(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children = exits(monkeypatch, "raise SystemExit(3)")
    assert [repacking_works(model) for _ in range(2)] == [False] * 2
    assert len(children) == 2


def test_no_child_where_the_kernels_are_not_compiled_in(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children = exits(monkeypatch, "raise SystemExit(3)")
    monkeypatch.setattr(llama_kernels, "suspects", lambda: False)
    assert repacking_works(model) and not children


def test_the_trial_itself_runs(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without repacking it must survive anywhere: the script is right."""
    monkeypatch.setattr(llama_kernels, "_TRIAL", llama_kernels._TRIAL.replace("repack=True", "repack=False"))
    assert llama_kernels._survives(model) == 1


def test_questions_and_files_are_kept_apart(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_gguf() + b"\0")
    assert remembered(model, "a", lambda: 1) == 1
    assert remembered(model, "b", lambda: 2) == 2
    assert remembered(other, "a", lambda: 3) == 3
    assert remembered(model, "a", lambda: 4) == 1


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"x": "y"}', b"\xff"])
def test_a_damaged_cache_is_measured_anew(model: Path, damage: bytes) -> None:
    assert remembered(model, "a", lambda: 1) == 1
    (cache_dir() / "llama_kernels.json").write_bytes(damage)
    assert remembered(model, "a", lambda: 2) == 2
    assert remembered(model, "a", lambda: 3) == 2
