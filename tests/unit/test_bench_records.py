"""The raw file: whole at any time, the same after reading, and only continued by its own setup."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foredraft.bench.records import ArmRuns, RawFile, Record
from foredraft.certify import Difference
from foredraft.errors import InvalidValue, ModelFileError
from tests.support.bench import record, run

SETUP: dict[str, Any] = {"runs": 2, "arms": ["ngram:cost"], "machine": {"cpus": 2}}


def some(key: str = "k") -> Record:
    found = record(key, "chat", {"plain": [1.0, 2.0], "ngram:cost": [0.5, 0.7]})
    differences = (Difference(3, 5, 6, 0.25, 0.5), Difference(9, None, 7, math.inf, 0.0))
    return replace(found, arms={**found.arms, "other": ArmRuns((run(1.0, same=False),), differences)})


def raw(path: Path, *, resume: bool = False, **changes: object) -> RawFile:
    return RawFile.begin(path, {**SETUP, **changes}, {"date": "2026-01-01"}, resume=resume)


def test_records_read_back(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    first = raw(path)
    first.add([some("a"), some("b")])
    again = raw(path, resume=True)
    assert again.records == first.records
    assert again.find("toy", "b") == some("b") and again.find("toy", "c") is None and again.find("x", "b") is None


def test_the_file_is_plain_json_without_text(tmp_path: Path) -> None:
    raw(tmp_path / "b.json").add([some()])
    found = json.loads((tmp_path / "b.json").read_text(), parse_constant=pytest.fail)
    assert (found["format"], found["schema"]) == ("foredraft-bench", 1)
    assert found["records"][0]["arms"]["other"]["differences"][0]["near_tie"] is True
    assert found["records"][0]["arms"]["other"]["differences"][1]["gap"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = raw(tmp_path / "b.json")
    found.add([some("a")])
    before = found.path.read_bytes()

    def full(self: Path, *arguments: object, **options: object) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        found.add([some("b")])
    assert found.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    raw(tmp_path / "b.json").add([some()])
    with pytest.raises(InvalidValue, match="--resume"):
        raw(tmp_path / "b.json")
    assert raw(tmp_path / "new.json", resume=True).records == []


def test_another_setup_is_named(tmp_path: Path) -> None:
    raw(tmp_path / "b.json").write()
    with pytest.raises(InvalidValue, match=r"runs \(2 there, 5 now\); machine.cpus \(2 there, 8 now\)"):
        raw(tmp_path / "b.json", resume=True, runs=5, machine={"cpus": 8})
    with pytest.raises(InvalidValue, match=r"new \(None there, 1 now\)"):
        raw(tmp_path / "b.json", resume=True, new=1)


@pytest.mark.parametrize("where", ["", "missing/b.json"])
def test_a_place_that_cannot_be_written(where: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="a file in a directory that exists"):
        raw(tmp_path / where)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a raw file"),
        ("[1]", "not a raw file"),
        ("[" * 100_000, "not a raw file"),
        ('{"format": "other", "schema": 1, "setup": {}}', "not a raw file"),
        ('{"format": "foredraft-bench", "schema": 1}', "not a raw file"),
        ('{"format": "foredraft-bench", "schema": 99, "setup": {}}', "schema 99"),
    ],
    ids=["empty", "list", "deep", "foreign", "no setup", "newer"],
)
def test_foreign_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(ModelFileError, match=words):
        raw(tmp_path / "b.json", resume=True)


@pytest.mark.parametrize(
    "damage",
    [
        {"arms": None},
        {"surprise": 1},
        {"arms": {"plain": {"runs": [], "differences": []}}},
        {"arms": {"plain": {"runs": [{"generated": 0}], "differences": []}}},
    ],
)
def test_damaged_records_are_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    raw(path).add([some()])
    document = json.loads(path.read_text())
    document["records"][0].update(damage)
    path.write_text(json.dumps(document))
    with pytest.raises(ModelFileError, match="damaged"):
        raw(path, resume=True)


@pytest.mark.parametrize("change", [{"generated": 0}, {"seconds": 0.0}, {"accepted": -1}, {"same": 1}, {"rounds": "5"}])
def test_impossible_numbers_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    raw(path).add([some()])
    document = json.loads(path.read_text())
    document["records"][0]["arms"]["plain"]["runs"][0].update(change)
    path.write_text(json.dumps(document))
    with pytest.raises(ModelFileError, match="damaged"):
        raw(path, resume=True)
