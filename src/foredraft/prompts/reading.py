"""Opens a file of prompts, finds out its format, and reads it whole; the only door of the room.

The ending of the name decides: ``.jsonl``, ``.ndjson``, ``.json``, ``.csv``, ``.tsv``, ``.parquet``. Any other file is
judged by its content; where ``.txt``, ``.text`` or ``.md`` say that it is plain text, only a JSON object at its
beginning speaks against that.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath
from typing import BinaryIO

from foredraft.errors import PromptError
from foredraft.prompts.parquet import is_parquet, parquet_table
from foredraft.prompts.prompt import Format, PromptFile
from foredraft.prompts.rows import Collector, Table
from foredraft.prompts.texts import csv_table, header_of, jsonl, plain_text
from foredraft.prompts.wording import too_much

MAX_BYTES = 256 << 20
"""Size of the largest text file that is read, and of all texts that are taken from a parquet file."""
_HEAD = 1 << 16
_ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_PLAIN = (".txt", ".text", ".md")
_JSON = re.compile(r'(\[\s*)?\{\s*"[^"\n]{1,64}"\s*:')
_BEGINNINGS = {
    b"\xff\xfe": "is UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "is UTF-16 text; save it as UTF-8",
    b"\x1f\x8b": "is compressed with gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; unpack it first",
    b"PK\x03\x04": "is a zip archive or a spreadsheet; unpack it, or save it as CSV",
}
_EXAMPLE = '{"prompt": "Hello"}'


def read_prompts(path: Path) -> PromptFile:
    """All prompts of a file, which holds at least one.

    PromptError, one line, names the first line or row that is wrong, or says what is wrong with the file; it never
    repeats more than a few characters of a prompt. Text files of more than ``MAX_BYTES`` are not read, nor is more
    text than that taken from a parquet file. MissingExtra if a parquet file needs pyarrow and it is not installed.
    """
    try:
        if path.is_dir():
            raise PromptError(f"{path}: is a directory; name a file with prompts (JSONL, CSV, plain text or parquet)")
        if not path.exists():
            raise PromptError(f"{path}: no such file; name a file with prompts (JSONL, CSV, plain text or parquet)")
        if not path.is_file():
            raise PromptError(f"{path}: is no regular file; save the prompts to a file first")
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as error:
        raise PromptError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error


def _read(path: Path, file: BinaryIO) -> PromptFile:
    size = os.fstat(file.fileno()).st_size
    table = _table(path.name, file, size) if size else Table("text", ())
    collector = Collector(table)
    for number, values in table.rows:
        try:
            collector.add(number, values)
        except PromptError as error:
            raise PromptError(f"{path.name} {table.unit} {number}: {error}") from error
        if collector.characters > MAX_BYTES:
            raise PromptError(f"{path.name}: {too_much(MAX_BYTES)}")
    if not collector.prompts:
        raise PromptError(f"{path}: holds no prompt; give at least one, such as the line {_EXAMPLE}")
    return PromptFile(path.name, table.format, tuple(collector.prompts), collector.notes(path.name))


def _table(name: str, file: BinaryIO, size: int) -> Table:
    head = file.read(_HEAD)
    file.seek(0)
    if is_parquet(head) or _ENDINGS.get(PurePath(name).suffix.lower()) == "parquet":
        return parquet_table(name, file, size)
    _check_text(name, head, size)
    start = head.decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    first_line = start.split("\n", 1)[0]
    match _judged(PurePath(name).suffix.lower(), start, first_line):
        case "jsonl":
            return jsonl(name, file)
        case "csv":
            return csv_table(name, file, first_line)
        case _:
            return plain_text(name, file)


def _check_text(name: str, head: bytes, size: int) -> None:
    for beginning, words in _BEGINNINGS.items():
        if head.startswith(beginning):
            raise PromptError(f"{name}: {words}")
    if size > MAX_BYTES:
        raise PromptError(f"{name}: {too_much(MAX_BYTES)}")


def _judged(ending: str, start: str, first_line: str) -> Format:
    """The format of a text file by the ``ending`` of its name and by how it starts."""
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    if _JSON.match(start):
        return "jsonl"
    if ending not in _PLAIN and {"prompt", "messages"} & set(header_of(first_line)[1]):
        return "csv"
    return "text"
