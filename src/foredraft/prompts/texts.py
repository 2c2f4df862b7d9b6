"""Rows of the three text formats: JSONL, CSV and plain text. UTF-8 only; errors name the line.

JSONL: one object a line. CSV: a header row with the names of the columns, then one prompt a record; commas, semicolons
or tabs between cells, whichever makes the header say where the prompt is. Plain text: prompts are separated by blank
lines; a text without blank lines inside has one prompt on every line.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from foredraft.errors import PromptError
from foredraft.prompts.columns import holds_prompts, used
from foredraft.prompts.rows import Row, Table, parse_json

_LONGEST_CELL = 2**31 - 1  # the csv module keeps it in a C long, which has 32 bits on Windows
_QUOTES = "put texts that hold delimiters, quotes or line ends in quotes, and write quotes inside twice"
_ARRAY = re.compile(r"\[\s*(\{.*)?", re.DOTALL)


def jsonl(name: str, file: BinaryIO) -> Table:
    """One JSON object a line; empty lines are skipped."""
    return Table("jsonl", _objects(name, file))


def csv_table(name: str, file: BinaryIO, first_line: str) -> Table:
    """Records under a header row. ``first_line``: the first line that is not empty, by which the delimiter is found."""
    return Table("csv", _records(name, file, header_of(first_line)[0]))


def plain_text(name: str, file: BinaryIO) -> Table:
    """Paragraphs; if there is only one, its lines."""
    paragraphs: list[list[tuple[int, str]]] = []
    inside = False
    for number, line in _lines(name, file):
        blank = not line or line.isspace()
        if not blank and not inside:
            paragraphs.append([])
        if not blank:
            paragraphs[-1].append((number, line.rstrip("\r\n")))
        inside = not blank
    if len(paragraphs) == 1:
        return Table("text", [(number, {"prompt": line.strip()}) for number, line in paragraphs[0]], cut="one a line")
    rows: list[Row] = [(lines[0][0], {"prompt": "\n".join(line for _, line in lines)}) for lines in paragraphs]
    return Table("text", rows, cut="separated by blank lines")


def header_of(line: str) -> tuple[str, list[str]]:
    """A CSV header's delimiter and columns. The first of comma, semicolon and tab under which some column can be the
    prompt; else a comma, and no columns."""
    for delimiter in (",", ";", "\t"):
        try:
            columns = _columns(next(csv.reader([line], delimiter=delimiter), []))
        except csv.Error:
            continue
        if holds_prompts(columns):
            return delimiter, columns
    return ",", []


def _columns(cells: Sequence[str]) -> list[str]:
    """Names of a header row; spreadsheets' users begin them with capitals."""
    return [cell.strip().lower() for cell in cells]


def _lines(name: str, file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Lines with their ends and numbers. A byte order mark at the start of a line is dropped, also where files were
    joined."""
    for number, data in enumerate(file, 1):
        if b"\0" in data:
            raise PromptError(f"{name} line {number}: holds a NUL byte; the file is damaged, or no text")
        try:
            line = data.decode()
        except UnicodeDecodeError as error:
            where = f"{name} line {number}"
            raise PromptError(f"{where}: not UTF-8 text (byte 0x{data[error.start]:02x}); convert it first") from None
        yield number, line.removeprefix("\ufeff")


def _objects(name: str, file: BinaryIO) -> Iterator[Row]:
    first = True
    for number, line in _lines(name, file):
        text = line.strip()
        if not text:
            continue
        if first and _ARRAY.fullmatch(text):
            fix = f"write one object a line, e.g. with: jq -c '.[]' {name} > lines.jsonl"
            raise PromptError(f"{name} line {number}: begins a JSON array; {fix}")
        first = False
        try:
            found = parse_json(text)
        except PromptError as error:
            raise PromptError(f"{name} line {number}: {error}; one object a line") from error
        if not isinstance(found, dict):
            raise PromptError(f'{name} line {number}: not an object; write {{"prompt": "…"}} or {{"messages": […]}}')
        yield number, found


def _records(name: str, file: BinaryIO, delimiter: str) -> Iterator[Row]:
    records = _cells(name, file, delimiter)
    line, cells = next(records, (1, []))
    if not cells:
        return
    header = _header(f"{name} line {line}, the header row", cells)
    for number, record in records:
        if any(cell.strip() for cell in record[len(header) :]):
            raise PromptError(f"{name} line {number}: has {len(record)} cells, the header row {len(header)}; {_QUOTES}")
        filled = {column: cell for column, cell in zip(header, record, strict=False) if column and cell.strip()}
        yield number, {**dict.fromkeys(filter(None, header)), **filled}


def _header(where: str, cells: Sequence[str]) -> list[str]:
    header = _columns(cells)
    try:
        twice = [column for column in used(header) if header.count(column) > 1]
    except PromptError as error:
        raise PromptError(f"{where}: {error}") from error
    if twice:
        raise PromptError(f"{where}: has the column {twice[0]} twice; remove one")
    return header


def _cells(name: str, file: BinaryIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Records with the line on which each begins; those without anything in them are skipped."""
    reader = csv.reader((line for _, line in _lines(name, file)), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            with _long_cells():
                cells = next(reader, None)
        except csv.Error as error:
            raise PromptError(f"{name} line {line}: is no CSV record ({error}); {_QUOTES}") from None
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield line, cells


@contextmanager
def _long_cells() -> Iterator[None]:
    """The csv module's limit on cells, 128 KiB and the same for all readers of a process, is lifted meanwhile."""
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)
