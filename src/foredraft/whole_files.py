"""Files that are there as a whole or not at all: written under another name beside their own, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write under; the file takes the place of ``path`` when the block ends, and is removed if it fails. Two
    processes that write the same file do not meet: the later one wins."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """``text`` as UTF-8 with unix line ends."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8", newline="\n")
