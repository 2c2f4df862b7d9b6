"""The ``models`` command: what it prints where."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from foredraft.catalogue import CATALOGUE, model_path
from foredraft.cli.models import models
from foredraft.errors import ModelFileError, PullError, UnknownName
from foredraft.pull import Progress

command = sys.modules["foredraft.cli.models"]


def put_hub_file(cache: Path) -> Path:
    path = cache / "hub" / "owner--repo" / "m-q4.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(2_000_000))
    return path


def test_list(empty_cache: Path) -> None:
    put_hub_file(empty_cache)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(models, ["list"], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "LICENCE", "PULLED", "NOTE"]
    assert [line.split()[0] for line in lines[1:]] == [*CATALOGUE, "owner/repo:m-q4.gguf"]
    assert "98 MB" in lines[1]
    assert "Apache-2.0" in lines[1]
    assert " no " in lines[1]
    assert " yes " in lines[-1]


def test_list_as_json(empty_cache: Path) -> None:
    path = put_hub_file(empty_cache)
    result = CliRunner().invoke(models, ["list", "--json"], catch_exceptions=False)
    rows = json.loads(result.stdout)
    assert [row["name"] for row in rows] == [*CATALOGUE, "owner/repo:m-q4.gguf"]
    assert rows[0] == {
        "name": "smollm2-135m",
        "size": 98_362_432,
        "download": 92_871_040,
        "licence": "Apache-2.0",
        "pulled": False,
        "path": None,
        "default": True,
        "note": CATALOGUE["smollm2-135m"].note,
    }
    assert (rows[-1]["pulled"], rows[-1]["size"], rows[-1]["path"]) == (True, 2_000_000, str(path))


def test_pull_prints_the_path_alone_on_stdout(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(spec: str, report: Callable[[Progress], None]) -> Path:
        report(Progress("wait", 0, 0))
        report(Progress("download", 5_000_000, 10_000_000))
        report(Progress("check", 10, 10))
        return model_path(spec)

    monkeypatch.setattr(command, "pull", fake)
    result = CliRunner(env={"COLUMNS": "160"}).invoke(models, ["pull", "smollm2-135m"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout == f"{empty_cache}/models/smollm2-135m.gguf\n"
    assert "downloading smollm2-135m" in result.stderr
    assert "5.0/10.0 MB" in result.stderr
    assert "checking sha256" in result.stderr


def test_a_failed_pull_prints_no_path(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(spec: str, report: Callable[[Progress], None]) -> Path:
        raise PullError("toy: no")

    monkeypatch.setattr(command, "pull", fake)
    result = CliRunner().invoke(models, ["pull", "toy"])
    assert isinstance(result.exception, PullError)
    assert result.stdout == ""


def test_errors_reach_the_caller(empty_cache: Path) -> None:
    for arguments, kind in (
        (["path", "nonsense"], UnknownName),
        (["path", "smollm2-135m"], ModelFileError),
        (["pull", "nonsense"], UnknownName),
    ):
        assert isinstance(CliRunner().invoke(models, arguments).exception, kind)


def test_path(empty_cache: Path) -> None:
    path = put_hub_file(empty_cache)
    result = CliRunner().invoke(models, ["path", "owner/repo:q4"], catch_exceptions=False)
    assert result.stdout == f"{path}\n"
