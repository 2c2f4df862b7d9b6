"""Files that are there as a whole or not at all: written under another name beside their own, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foredraft.errors import InvalidValue


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write under; the file takes the place of ``path`` when the block ends, and is removed if it fails. Two
    processes that write the same file do not meet: the later one wins. InvalidValue if ``path`` cannot be a file; where
    it is a link, the file that it means is replaced."""
    target = checked_output("file to write", path)
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """``text`` as UTF-8 with unix line ends."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8", newline="\n")


def checked_output(name: str, path: Path) -> Path:
    """``path``, links followed; InvalidValue naming the setting ``name`` unless it is a regular file, or a name that is
    not taken in a directory that exists."""
    try:
        target = Path(os.path.realpath(path))
        taken = target.exists()
        good = bool(path.name) and (target.is_file() if taken else target.parent.is_dir())
    except (OSError, ValueError):
        good = False
    if not good:
        raise InvalidValue(name, str(path), "a file in a directory that exists")
    return target
