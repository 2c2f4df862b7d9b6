"""The picture: real files of the format asked for, and refusals before anything is measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from foredraft.bench.arms import parse_arms
from foredraft.bench.plot import check_plot, draw
from foredraft.bench.report import TargetReport, report
from foredraft.errors import InvalidValue, MissingExtra
from tests.support.bench import record

ARMS = parse_arms(["ngram:fixed:2,4,7", "model:fixed:2,4,7:tree=0,16", "ngram+model:cost"])


def reports(prompts: int = 3, kinds: tuple[str, ...] = ("code", "chat")) -> list[TargetReport]:
    records = [
        record(
            f"{kind}{number}",
            kind,
            {"plain": [2.0]} | {str(arm): [1.0 + 0.1 * place + 0.2 * number] for place, arm in enumerate(ARMS)},
        )
        for kind in kinds
        for number in range(prompts)
    ]
    return report(records, ARMS)


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_the_ending_names_the_format(ending: str, magic: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"speed.{ending}"
    check_plot(path)
    draw(reports(), path)
    assert path.read_bytes().startswith(magic)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_every_arm_and_kind_is_named_in_it(tmp_path: Path) -> None:
    draw(reports(), tmp_path / "speed.svg")
    text = (tmp_path / "speed.svg").read_text()
    for words in (*map(str, ARMS), "code", "chat", "all", "3 prompts", "6 prompts"):
        assert f"<!-- {words} -->" in text, words


def test_single_prompts_without_interval_can_be_drawn(tmp_path: Path) -> None:
    draw(reports(prompts=1, kinds=("code",)) * 2, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").stat().st_size > 1000


@pytest.mark.parametrize("name", ["speed", "speed.jpg", "missing/speed.png"])
def test_a_name_that_cannot_be_drawn_to(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="--plot"):
        check_plot(tmp_path / name)


def test_without_matplotlib_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'foredraft\[plot\]'"):
        check_plot(tmp_path / "speed.png")
