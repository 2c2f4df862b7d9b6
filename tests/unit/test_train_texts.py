"""Training texts on disk, and how they are made: damage is named, interruption loses nothing twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from foredraft.errors import TrainingDataError
from foredraft.prompts import Prompt
from foredraft.train.conversations import OWN, asked
from foredraft.train.texts import (
    HELD_OUT,
    SPLITS,
    DataSettings,
    Text,
    part_files,
    read_about,
    read_part,
    read_texts,
    split_of,
    write_about,
    write_part,
)
from tests.support.toy_tokenizer import ToyTokenizer
from tests.support.training import text_of

SETTINGS = DataSettings("toy.gguf", "ab" * 32, prompts="12", samples=2, temperatures=(0.0, 0.8, 1.0), seed=7)
CHANGES: dict[str, Any] = {
    "target": "other.gguf",
    "sha256": "cd" * 32,
    "prompts": "34",
    "excluded": "56",
    "samples": 3,
    "questions": 5,
    "temperatures": (0.0, 0.8),
    "top_p": 0.9,
    "max_tokens": 100,
    "context": 100,
    "seed": 8,
}
TEXTS = [
    Text(4, "code", "train", 0.8, 2, (5, 6, 7), ended=True),
    Text(1, 'ein "Satz"\n\u2028mehr', "validation", 0.0, 1, (0, (1 << 24) - 1), ended=False),
    Text(2, OWN, "train", 0.0, 0, (), ended=False, skipped="the question is empty"),
]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(TrainingDataError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and len(message) < 600
    return message


# --- files -------------------------------------------------------------------------------------------------


def test_round_trip(tmp_path: Path) -> None:
    write_about(tmp_path, SETTINGS)
    first = write_part(tmp_path, TEXTS)
    second = write_part(tmp_path, TEXTS[:1])
    assert read_about(tmp_path) == SETTINGS
    assert part_files(tmp_path) == [first, second] == sorted((tmp_path / "texts").iterdir())
    assert list(read_texts(tmp_path)) == [(first, TEXTS), (second, TEXTS[:1])]
    assert [len(text) for text in TEXTS] == [3, 2, 0]
    write_about(tmp_path, SETTINGS)  # the same settings go on


def test_files_are_numbered_behind_the_last_one(tmp_path: Path) -> None:
    write_about(tmp_path, SETTINGS)
    parts = [write_part(tmp_path, TEXTS[:1]) for _ in range(3)]
    parts[0].unlink()
    assert write_part(tmp_path, TEXTS[:1]).name == "000003.jsonl"


def test_more_questions_are_the_same_data(tmp_path: Path) -> None:
    write_about(tmp_path, SETTINGS)
    more = replace(SETTINGS, questions=SETTINGS.questions + 5)
    write_about(tmp_path, more)
    assert read_about(tmp_path) == more
    write_about(tmp_path, SETTINGS)
    assert read_about(tmp_path) == more, "fewer are there already"


@pytest.mark.parametrize("name", [item.name for item in fields(DataSettings) if item.name != "questions"])
def test_other_settings_are_refused_by_name(name: str, tmp_path: Path) -> None:
    write_about(tmp_path, SETTINGS)
    other = replace(SETTINGS, **{name: CHANGES[name]})
    message = refusal(lambda: write_about(tmp_path, other))
    assert message.startswith(f"{tmp_path}: holds texts made with other settings ({name.replace('_', ' ')}); give")
    assert read_about(tmp_path) == SETTINGS


def test_no_data(tmp_path: Path) -> None:
    assert read_about(tmp_path, missing_ok=True) is None
    assert refusal(lambda: read_about(tmp_path)).startswith(f"{tmp_path / 'data.json'}: no such file; make the data")
    assert part_files(tmp_path) == []


ABOUT = {"format": "foredraft-texts", "schema": 1, **asdict(SETTINGS)}
DAMAGED_ABOUT: dict[str, str | bytes] = {
    "empty": "",
    "truncated": json.dumps(ABOUT)[:60],
    "no object": "[1]",
    "deep": "[" * 100_000,
    "no text": b"\xff\xfe\x00",
    "foreign": "{}",
    "another schema": json.dumps(ABOUT | {"schema": 2}),
    "missing key": json.dumps({key: value for key, value in ABOUT.items() if key != "sha256"}),
    "wrong type": json.dumps(ABOUT | {"seed": "7"}),
    "wrong list": json.dumps(ABOUT | {"temperatures": 0.8}),
    "wrong item": json.dumps(ABOUT | {"temperatures": [0.8, "hot"]}),
    "not finite": json.dumps(ABOUT | {"top_p": float("nan")}),
}


@pytest.mark.parametrize("what", DAMAGED_ABOUT)
def test_damaged_settings(what: str, tmp_path: Path) -> None:
    path, content = tmp_path / "data.json", DAMAGED_ABOUT[what]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for call in (lambda: read_about(tmp_path), lambda: write_about(tmp_path, SETTINGS)):
        assert refusal(call).startswith(f"{path}: is ")


LINE = {**asdict(TEXTS[0])}
WRONG: dict[str, tuple[object, ...]] = {
    "number": ("4", 1.5, None, -1, True),
    "kind": (3, None, ["code"]),
    "split": ("all", None, 1, []),
    "temperature": ("0.8", None, -1.0, float("nan")),
    "prompt_tokens": ("2", 4, -1, None, 1.5, True),
    "ids": (5, None, "567", [5, "6", 7], [5, 6.0, 7], [5, -1, 7], [5, 1 << 24, 7], [5, True, 7], {}, [[5]]),
    "ended": ("yes", None, 1),
    "skipped": (None, 1, []),
}
DAMAGED_LINES: dict[str, str] = {
    "empty": "",
    "truncated": json.dumps(LINE)[:50],
    "a list": "[1, 2]",
    "a text": '"text"',
    "null": "null",
    "deep": "[" * 100_000,
    **{f"{key} is missing": json.dumps({name: value for name, value in LINE.items() if name != key}) for key in LINE},
    **{f"{key} is {value!r}": json.dumps(LINE | {key: value}) for key, wrong in WRONG.items() for value in wrong},
}


@pytest.mark.parametrize("what", DAMAGED_LINES)
def test_damaged_texts(what: str, tmp_path: Path) -> None:
    """The message names file and line."""
    write_about(tmp_path, SETTINGS)
    path = write_part(tmp_path, TEXTS)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], DAMAGED_LINES[what], lines[2]]) + "\n")
    message = refusal(lambda: read_part(path))
    assert message.startswith(f"{path}, line 3: is damaged (") and "give another -o" in message
    assert refusal(lambda: list(read_texts(tmp_path))) == message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    write_about(tmp_path, SETTINGS)
    path = write_part(tmp_path, TEXTS)
    path.write_bytes(b"\xff\xfe")
    assert refusal(lambda: read_part(path)).startswith(f"{path}: cannot be read (")
    path.unlink()
    assert refusal(lambda: read_part(path)).startswith(f"{path}: cannot be read (")
    path.mkdir()
    assert refusal(lambda: read_part(path)).startswith(f"{path}: cannot be read (")


def test_other_peoples_files_are_left_alone(tmp_path: Path) -> None:
    write_about(tmp_path, SETTINGS)
    for name in ("notes.txt", ".000000.jsonl.17.tmp", "x.jsonl"):
        (tmp_path / "texts" / name).write_text("no text")
    assert write_part(tmp_path, TEXTS).name == "000000.jsonl"
    assert [texts for _, texts in read_texts(tmp_path)] == [TEXTS]


# --- splits ------------------------------------------------------------------------------------------------


def prompt(words: str, kind: str = "chat", line: int = 1, system: str = "") -> Prompt:
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    return Prompt(line, kind, (*messages, {"role": "user", "content": words}), None, f"{line}-{words}-{system}")


def test_splits_are_as_large_as_promised() -> None:
    counts = Counter(split_of(f"question {number}") for number in range(4096))
    for split in ("validation", "test"):
        assert counts[split] == pytest.approx(4096 / HELD_OUT, rel=0.25)  # four standard deviations
    assert set(counts) == set(SPLITS)


def test_the_split_is_a_matter_of_words_alone() -> None:
    tokenizer = ToyTokenizer()
    words = "a cat"
    found = {
        split_of(asked(one, tokenizer).words)
        for one in (prompt(words), prompt(words, "code", 9), prompt(words, system="b"))
    }
    assert found == {split_of(words)}


def test_a_text_of_the_right_form_is_read(tmp_path: Path) -> None:
    """What ``DAMAGED_LINES`` breaks was good."""
    write_about(tmp_path, SETTINGS)
    path = write_part(tmp_path, [text_of(0, (1, 2, 3), 1)])
    path.write_text(json.dumps(LINE) + "\n")
    assert read_part(path) == TEXTS[:1]
