"""Rows of a parquet file, batch by batch. The adapter of pyarrow, which is given no file whose frame is wrong.

The frame of a parquet file: the four bytes PAR1, the data, a footer, the footer's length (4 bytes, little-endian), and
PAR1 again (Apache Parquet, "File Format").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from foredraft.errors import MissingExtra, PromptError
from foredraft.prompts.columns import used
from foredraft.prompts.rows import Row, Table

MAGIC, ENCRYPTED = b"PAR1", b"PARE"
_TAIL = 8
_MAX_FOOTER = 64 << 20
_BATCH = 16
"""Rows that are decoded at once: a batch of prompts of 10 MB each is then still of a moderate size."""
_BUFFER = 1 << 20
"""Bytes of a column read at once; without it a whole row group's column would be."""


def is_parquet(head: bytes) -> bool:
    """Whether a file that begins so says that it is one."""
    return head[:4] in (MAGIC, ENCRYPTED)


def parquet_table(name: str, file: BinaryIO, size: int) -> Table:
    """The rows of an open file of ``size`` bytes. PromptError if it is no parquet file, is damaged, or has no column
    that can be the prompt.

    The columns' sizes that the footer states are not asked for: pyarrow 26 ends the process on some damaged footers
    when it is.
    """
    _check_frame(name, file, size)
    parquet_file = _parquet_file(name)
    with _one_line(name):
        parquet = parquet_file(file, buffer_size=_BUFFER, pre_buffer=False)
        names = [field.name for field in parquet.schema_arrow]
    try:
        columns = used(names)
    except PromptError as error:
        raise PromptError(f"{name}: {error}") from error
    if len(set(names)) < len(names):
        raise PromptError(f"{name}: has two columns of one name; rename one")
    unread = tuple(column for column in names if column not in columns)
    return Table("parquet", _rows(name, parquet, columns), "row", unread)


def _check_frame(name: str, file: BinaryIO, size: int) -> None:
    file.seek(0)
    head = file.read(4)
    file.seek(max(0, size - _TAIL))
    tail = file.read(_TAIL)
    file.seek(0)
    if ENCRYPTED in (head, tail[4:]):
        raise PromptError(f"{name}: is an encrypted parquet file; write it without encryption")
    if head != MAGIC:
        raise PromptError(f"{name}: is no parquet file (it begins with {head!r}); allowed: a file that pyarrow wrote")
    footer = int.from_bytes(tail[:4], "little")
    if size < 4 + _TAIL or tail[4:] != MAGIC or not 0 < footer <= min(size - 4 - _TAIL, _MAX_FOOTER):
        raise PromptError(f"{name}: is a damaged parquet file, perhaps cut off; fetch or write it again")


def _parquet_file(name: str) -> Any:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingExtra(
            f"{name}: parquet files need the package pyarrow; install it with: pip install 'foredraft[profile]'"
        ) from error
    return ParquetFile


def _rows(name: str, parquet: Any, columns: Sequence[str]) -> Iterator[Row]:
    number = 0
    with _one_line(name):
        batches = parquet.iter_batches(_BATCH, columns=list(columns), use_threads=False)
    while True:
        with _one_line(f"{name} after row {number}"):
            batch = next(batches, None)
        if batch is None:
            return
        for index in range(batch.num_rows):
            number += 1
            with _one_line(f"{name} row {number}"):
                row = {column: batch.column(column)[index].as_py() for column in batch.schema.names}
            yield number, row


@contextmanager
def _one_line(where: str) -> Iterator[None]:
    """Makes a PromptError of what pyarrow raises."""
    import pyarrow

    try:
        yield
    except UnicodeDecodeError as error:
        raise PromptError(f"{where}: not UTF-8 text; write the column as strings, or the file again") from error
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        words = str(error).strip() or type(error).__name__
        reason = "".join(letter if letter.isprintable() else " " for letter in words.splitlines()[0][:120])
        raise PromptError(f"{where}: pyarrow cannot read it ({reason}); fetch or write the file again") from error
