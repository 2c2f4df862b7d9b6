"""Which rows of a draft's output matrix are worth keeping (FR-Spec, arXiv 2502.14856, section 3).

A draft may be unable to say rare tokens: it then proposes another one, and the target corrects it. So the rows of the
most frequent tokens are kept, and those without which it could not end, take its turn or spell a byte. Loads no model.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.chat import render_chat
from foredraft.errors import InvalidValue, PromptError
from foredraft.export.sample import sample_text
from foredraft.tokens import Tokenizer

ROWS_OPTION, TEXT_OPTION = "--output-rows", "--output-text"
_MAX_BYTES = 16 << 20
_PIECE = 4096
"""Characters of a plain text that are tokenized at once, rounded up to whole lines."""
_LINES = (".jsonl", ".ndjson")
_SPOKEN = ("normal", "byte", "user_defined")

Counts = Mapping[int, int]
"""How often each id occurs."""


@dataclass(frozen=True, slots=True)
class OutputRows:
    """``ids`` ascending. ``coverage``: share of the given text's tokens that are among them; ``held_out``: the same for
    one half of the text if the rows are chosen from the other, an estimate for text like it. None without a text."""

    ids: tuple[int, ...]
    coverage: float | None = None
    held_out: float | None = None


def resolve_rows(rows: str, tokenizer: Tokenizer, text: Path | None = None) -> OutputRows:
    """What ``--output-rows`` N|FILE and ``--output-text`` FILE mean for this vocabulary; raises InvalidValue."""
    wanted = parse_rows(rows)
    halves = (Counter[int](), Counter[int]())
    if text is not None:
        for number, part in enumerate(read_texts(text, tokenizer)):
            halves[number % 2].update(_ids(part, tokenizer))
    counts = halves[0] + halves[1]
    if text is not None and not counts:
        raise InvalidValue(TEXT_OPTION, str(text), "a file with text in it")
    if not isinstance(wanted, int):
        ids = with_needed_rows(wanted, tokenizer)
        return OutputRows(ids, coverage(ids, counts), coverage(ids, counts))
    ids = choose_rows(wanted, counts, tokenizer)
    if not halves[1]:
        return OutputRows(ids, coverage(ids, counts))
    return OutputRows(ids, coverage(ids, counts), coverage(choose_rows(wanted, halves[0], tokenizer), halves[1]))


def choose_rows(count: int, counted: Counts | Iterable[int], tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ``count`` most useful ids, ascending: ``needed_rows``, then by frequency among ``counted`` (ids, or their
    counts), then in a general text, then by id: in vocabularies built by merging, lower ids were more frequent.

    Raises InvalidValue for a count beyond the vocabulary or too small for the needed rows.
    """
    counts, general = Counter(counted), count_tokens([sample_text()], tokenizer)
    needed, size = needed_rows(tokenizer), tokenizer.vocab_size
    if not len(needed) <= count <= size:
        least = f"{len(needed)} (what ends texts and turns, and single bytes)"
        raise InvalidValue(ROWS_OPTION, count, f"{least} to {size} (the vocabulary)")

    def rank(id: int) -> tuple[bool, int, int, bool, int]:
        return id not in needed, -counts[id], -general[id], tokenizer.attribute(id) not in _SPOKEN, id

    return tuple(sorted(sorted(range(size), key=rank)[:count]))


def with_needed_rows(ids: Sequence[int], tokenizer: Tokenizer) -> tuple[int, ...]:
    """``ids`` and those that end a generation, ascending. Raises InvalidValue for an id beyond the vocabulary."""
    for id in ids:
        if not 0 <= id < tokenizer.vocab_size:
            raise InvalidValue(f"a token id in {ROWS_OPTION}", id, f"0 to {tokenizer.vocab_size - 1}")
    return tuple(sorted({*ids, *tokenizer.eog_ids}))


def needed_rows(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids that end a generation, special tokens that the chat template names, and tokens of a single byte."""
    template = (tokenizer.chat_template or "").encode()

    def is_needed(id: int) -> bool:
        kind = tokenizer.attribute(id)
        if kind in ("control", "user_defined") and (name := tokenizer.text_of(id)) and name in template:
            return True
        return len(tokenizer.piece(id)) == 1

    return tokenizer.eog_ids | frozenset(filter(is_needed, range(tokenizer.vocab_size)))


def count_tokens(texts: Iterable[str], tokenizer: Tokenizer) -> Counter[int]:
    """How often each id occurs in ``texts``; the text of a control token counts as that token."""
    counts = Counter[int]()
    for text in texts:
        counts.update(_ids(text, tokenizer))
    return counts


def _ids(text: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(text, add_special=False, parse_special=True)


def coverage(rows: Iterable[int], counts: Counts) -> float | None:
    """Share of the counted tokens that are among ``rows``, None if nothing was counted."""
    total = sum(counts.values())
    return sum(counts.get(id, 0) for id in set(rows)) / total if total else None


def parse_rows(text: str) -> int | tuple[int, ...]:
    """``N``, or the ids in a file, ascending: a JSON list or one id a line. Raises InvalidValue."""
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,12}\s*", text):
        return _read_ids(Path(text))
    if int(text) < 1:
        raise InvalidValue(ROWS_OPTION, int(text), "1 or more rows, or a file of token ids")
    return int(text)


def _read_ids(path: Path) -> tuple[int, ...]:
    with _reading(ROWS_OPTION, path, "a number of rows or a file of token ids"):
        if path.stat().st_size > _MAX_BYTES:
            raise InvalidValue(ROWS_OPTION, str(path), f"a file of at most {_MAX_BYTES >> 20} MiB")
        text = path.read_text("utf-8-sig")
    ids = _json_ids(path, text) if text.lstrip().startswith("[") else _line_ids(path, text)
    if not ids:
        raise InvalidValue(ROWS_OPTION, str(path), "a file with at least one token id")
    twice = next((id for id, times in Counter(ids).items() if times > 1), None)
    if twice is not None:
        raise InvalidValue(f"a token id that is twice in {path}", twice, "every id once")
    return tuple(sorted(ids))


def _json_ids(path: Path, text: str) -> list[int]:
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidValue(ROWS_OPTION, str(path), "a file with a JSON list of token ids; this is no JSON") from None
    for number, id in enumerate(ids, 1):
        if type(id) is not int or id < 0:
            raise InvalidValue(f"{path}, item {number}", _short(id), "a token id, 0 or more")
    return list(ids)


def _line_ids(path: Path, text: str) -> list[int]:
    ids = []
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        if word and not re.fullmatch("[0-9]{1,12}", word):
            raise InvalidValue(f"{path}, line {number}", _short(word), "one token id, 0 or more")
        if word:
            ids.append(int(word))
    return ids


def read_texts(path: Path, tokenizer: Tokenizer) -> Iterator[str]:
    """The texts in a file: a plain text in pieces of whole lines or, if its name ends in .jsonl or .ndjson, one JSON
    object a line with ``text``, ``messages`` or ``prompt`` (and ``completion``). Raises InvalidValue."""
    with _reading(TEXT_OPTION, path, "a text or JSONL file"), path.open(encoding="utf-8-sig") as file:
        if path.suffix.lower() not in _LINES:
            while lines := file.readlines(_PIECE):
                yield "".join(lines)
            return
        for number, line in enumerate(file, 1):
            if line.strip():
                text = _record_text(line, tokenizer)
                if text is None:
                    allowed = "a JSON object with a text in text, prompt or messages"
                    raise InvalidValue(f"{path}, line {number}", _short(line.strip()), allowed)
                yield text


def _record_text(line: str, tokenizer: Tokenizer) -> str | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match record:
        case {"text": str(text)}:
            return text
        case {"messages": [*messages]}:
            return _conversation(messages, tokenizer)
        case {"prompt": str(prompt)}:
            completion = record.get("completion", "")
            return prompt + completion if isinstance(completion, str) else None
    return None


def _conversation(messages: Sequence[Any], tokenizer: Tokenizer) -> str | None:
    """Messages as the chat template writes them; as plain text where there is none or it does not take them."""
    said = []
    for message in messages:
        match message:
            case {"role": str(role), "content": str(content)}:
                said.append({"role": role, "content": content})
            case {"role": str(role), "content": [*parts]}:
                texts = (part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
                said.append({"role": role, "content": "".join(texts)})
            case {"role": str(), "content": None}:
                pass  # a call of a tool
            case _:
                return None
    plain = "\n\n".join(message["content"] for message in said)
    if tokenizer.chat_template is None:
        return plain
    bos, eos = (_control_text(id, tokenizer) for id in (tokenizer.bos_id, tokenizer.eos_id))
    try:
        return render_chat(tokenizer.chat_template, said, bos=bos, eos=eos, add_generation_prompt=False)
    except PromptError:
        return plain


def _control_text(id: int | None, tokenizer: Tokenizer) -> str:
    return "" if id is None else tokenizer.piece(id, special=True).decode("utf-8", "replace")


@contextmanager
def _reading(option: str, path: Path, allowed: str) -> Iterator[None]:
    """Turns what can go wrong while reading ``path`` into one line."""
    try:
        yield
    except OSError as error:
        raise InvalidValue(option, str(path), f"{allowed} ({error.strerror or type(error).__name__})") from None
    except UnicodeDecodeError:
        raise InvalidValue(option, str(path), f"{allowed} in UTF-8; convert it, e.g. with iconv") from None


def _short(value: object) -> object:
    """``value``, or the beginning of it if it is long."""
    return value if len(repr(value)) <= 60 else f"{str(value)[:50]}…"
