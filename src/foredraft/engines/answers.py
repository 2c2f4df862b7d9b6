"""Answers to questions about model files that took a while to find, kept in the cache directory.

Knows nothing about what is asked. A cache that cannot be written only costs asking again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from foredraft.catalogue import cache_dir
from foredraft.errors import InvalidValue
from foredraft.whole_files import write_whole


def remembered(file: str, path: Path, question: object, answer: Callable[[], int | None]) -> int | None:
    """The answer to ``question`` about the file ``path`` as it is now: from ``file`` in the cache, or found now and
    kept there. None is not kept."""
    known = _answers(file)
    key = _key(path, question)
    if key not in known:
        found = answer()
        if found is None:
            return None
        known = _answers(file) | {key: found}
        _remember(file, known)
    return known[key]


def _key(path: Path, question: object) -> str:
    status = path.stat()
    parts = (question, str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino)
    return sha256(repr(parts).encode()).hexdigest()[:32]


def _answers(file: str) -> dict[str, int]:
    try:
        known = json.loads((cache_dir() / file).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {key: value for key, value in known.items() if type(value) is int}


def _remember(file: str, known: dict[str, int]) -> None:
    path = cache_dir() / file
    with suppress(OSError, InvalidValue):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(known))
