"""Texts to train on, on disk: what they were made with, and small files of finished texts, one JSON object a line.

A file is written whole or not at all, so that writing may be interrupted, or killed, and goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from foredraft.errors import TrainingDataError
from foredraft.records import DamagedRecord, record
from foredraft.whole_files import write_whole

FORMAT, SCHEMA = "foredraft-texts", 1
ABOUT, TEXTS = "data.json", "texts"
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
HELD_OUT = 16
"""Of so many prompts one is for validation and one for testing."""
_AGAIN = "give another -o, or remove it"


@dataclass(frozen=True, slots=True)
class DataSettings:
    """What the texts were made with. ``target``: name of the model's file; ``sha256``: of that file; ``temperatures``
    take turns; ``prompts``: hash of the prompts, empty if the target asked its own questions; ``excluded``: hash of the
    prompts that were left out; ``samples``: texts for each prompt; ``questions``: of the target's own, 0 with prompts;
    ``max_tokens``: of an answer."""

    target: str
    sha256: str
    prompts: str = ""
    excluded: str = ""
    samples: int = 1
    questions: int = 0
    temperatures: tuple[float, ...] = (0.0, 0.8)
    top_p: float = 0.95
    max_tokens: int = 256
    context: int = 512
    seed: int = 0

    def differing(self, other: DataSettings) -> list[str]:
        """Names of the settings that differ."""
        return [item.name for item in fields(self) if getattr(self, item.name) != getattr(other, item.name)]


@dataclass(frozen=True, slots=True)
class Text:
    """``ids``: prompt and answer; ``prompt_tokens``: of the prompt; ``kind`` of the prompt; ``ended``: the answer was
    not cut off. ``skipped``: why the target's own question was not used; there is no text then."""

    number: int
    kind: str
    split: str
    temperature: float
    prompt_tokens: int
    ids: tuple[int, ...]
    ended: bool
    skipped: str = ""

    def __len__(self) -> int:
        return len(self.ids)


def split_of(prompt: str) -> Split:
    """Where a prompt belongs, by its own words: the same wherever it comes up again."""
    at = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") % HELD_OUT
    return {0: SPLITS[1], 1: SPLITS[2]}.get(at, SPLITS[0])


def write_about(directory: Path, settings: DataSettings) -> None:
    """Begin, or go on with, texts of these settings, of which there may be more than before; TrainingDataError if other
    ones are there."""
    found = read_about(directory, missing_ok=True)
    if found is None:
        (directory / TEXTS).mkdir(parents=True, exist_ok=True)
        _write_settings(directory, settings)
    elif found.questions < settings.questions and not found.differing(replace(settings, questions=found.questions)):
        _write_settings(directory, settings)  # more questions of the same kind
    elif names := found.differing(replace(settings, questions=max(found.questions, settings.questions))):
        listed = ", ".join(name.replace("_", " ") for name in names)
        raise TrainingDataError(f"{directory}: holds texts made with other settings ({listed}); {_AGAIN}")


def _write_settings(directory: Path, settings: DataSettings) -> None:
    about = {"format": FORMAT, "schema": SCHEMA, **asdict(settings)}
    write_whole(directory / ABOUT, json.dumps(about, indent=1) + "\n")


def read_about(directory: Path, *, missing_ok: bool = False) -> DataSettings | None:
    """What the texts in ``directory`` were made with."""
    path = directory / ABOUT
    try:
        data = json.loads(path.read_text("utf-8"))
        if not isinstance(data, dict) or (data.get("format"), data.get("schema")) != (FORMAT, SCHEMA):
            raise TrainingDataError(f"{path}: is not made by this version's `foredraft tune data`; make the data again")
        return record(DataSettings, data)
    except FileNotFoundError:
        if missing_ok:
            return None
        raise TrainingDataError(f"{path}: no such file; make the data with `foredraft tune data`") from None
    except (OSError, ValueError, TypeError, RecursionError, DamagedRecord) as error:
        raise TrainingDataError(f"{path}: is damaged ({error}); make the data again") from None


def part_files(directory: Path) -> list[Path]:
    """The files of finished texts, in order."""
    return sorted((directory / TEXTS).glob("[0-9]*.jsonl"))


def write_part(directory: Path, texts: Sequence[Text]) -> Path:
    """Keep finished texts as the next file."""
    parts = part_files(directory)
    number = int(parts[-1].stem) + 1 if parts else 0
    path = directory / TEXTS / f"{number:06d}.jsonl"
    write_whole(path, "".join(json.dumps(asdict(text)) + "\n" for text in texts))
    return path


def read_part(path: Path) -> list[Text]:
    """The texts of one file; TrainingDataError names the line that is wrong."""
    texts = []
    for number, line in enumerate(_lines(path), 1):
        try:
            text = _text(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise TrainingDataError(f"{path}, line {number}: is damaged ({error}); {_AGAIN}") from None
        texts.append(text)
    return texts


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise TrainingDataError(f"{path}: cannot be read ({error}); {_AGAIN}") from None


def _text(data: dict[str, object]) -> Text:
    """One line, checked."""
    listed: Any = data["ids"]
    if not isinstance(listed, list) or not all(type(id) is int and 0 <= id < 1 << 24 for id in listed):
        raise ValueError("ids is not a list of whole numbers from 0 on")
    facts = record(_Facts, data)
    if facts.prompt_tokens > len(listed) or facts.split not in SPLITS:
        raise ValueError(f"prompt_tokens {facts.prompt_tokens}, split {facts.split!r}")
    return Text(
        facts.number,
        facts.kind,
        facts.split,
        facts.temperature,
        facts.prompt_tokens,
        tuple(listed),
        facts.ended,
        facts.skipped,
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    """A text but for its ids, of which there are too many for a reader of records."""

    number: int
    kind: str
    split: str
    temperature: float
    prompt_tokens: int
    ended: bool
    skipped: str


def read_texts(directory: Path) -> Iterator[tuple[Path, list[Text]]]:
    """All files with their texts, skipped ones included."""
    for path in part_files(directory):
        yield path, read_part(path)
