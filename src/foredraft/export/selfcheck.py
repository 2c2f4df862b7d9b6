"""Is a program batch-invariant? Feeds one text in many ways and compares every row of logits to the last bit.

Works on any ``Engine``; knows nothing about how a program was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from foredraft.engines.base import Engine, Session
from foredraft.noise import hash_ids
from foredraft.trees import path_to
from foredraft.types import Ids, Logits

CHUNKINGS: tuple[tuple[int, ...], ...] = (
    (2,), (3,), (4,), (5,), (6,), (7,), (8,), (9,), (12,), (16,), (17,), (33,), (64,), (1, 7, 2, 30), (31, 1, 1, 9),
)  # fmt: skip
"""Widths that are repeated until the text is read."""
LENGTH = 64
TREES: tuple[tuple[int, ...], ...] = (
    (-1, -1, 0, 1),
    (-1, -1, 0, 0, 1, 1, 2, 3),
    (-1, 0, 0, 1, 1, 2, -1, 6, 3, 3, 4, 8),
)
"""Parents; the path that is checked ends at the last node."""

Opener = Callable[[int], Session]
"""Opens a session whose cache has room for at least so many slots from the start."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not what one-token passes give. ``largest``: largest absolute difference, in logits."""

    what: str
    position: int
    largest: float

    def __str__(self) -> str:
        return f"{self.what}: the logits at position {self.position} differ by up to {self.largest:.3g}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was compared: ``rows`` of logits in ``passes`` different ways, and the first ``difference``, if any."""

    rows: int
    ways: int
    difference: Difference | None

    @property
    def exact(self) -> bool:
        """True if every bit agreed."""
        return self.difference is None


def check_exact(engine: Engine, opener: Opener, capacities: Sequence[int]) -> Evidence:
    """Compare chunkings, ``capacities`` (slots) and trees with one-token passes, until something differs."""
    size = engine.info.vocab_size
    text = (hash_ids(7, np.arange(LENGTH)) % np.uint64(size)).astype(np.int32)
    truth = _read(opener(0), text, (1,))
    rows = ways = 0
    for what, first, found in _ways(opener, text, truth, capacities):
        ways, rows = ways + 1, rows + len(found)
        wanted = truth[first : first + len(found)]
        if not np.array_equal(found, wanted):
            return Evidence(rows, ways, _difference(what, first, found, wanted))
    return Evidence(rows, ways, None)


def _ways(opener: Opener, text: Ids, truth: Logits, capacities: Sequence[int]) -> Iterator[tuple[str, int, Logits]]:
    """(description, first position, rows) of each way to read ``text``."""
    for widths in CHUNKINGS:
        shown = ", ".join(map(str, widths))
        yield f"passes of {shown} tokens", 0, _read(opener(0), text, widths)
    for capacity in capacities:
        yield f"one-token passes in a cache of {capacity} slots", 0, _read(opener(capacity), text, (1,))
        yield f"passes of 8 tokens in a cache of {capacity} slots", 0, _read(opener(capacity), text, (8,))
    for parents in TREES:
        for start in (0, 1, 33):
            yield (
                f"a tree with parents {list(parents)} behind {start} tokens",
                start,
                _branch(opener(0), text, truth, parents, start),
            )


def _read(session: Session, text: Ids, widths: Sequence[int]) -> Logits:
    rows, at, turn = [], 0, 0
    try:
        while at < len(text):
            part = text[at : at + widths[turn % len(widths)]]
            rows.append(_fed(session, part, np.arange(-1, len(part) - 1, dtype=np.int32)))
            session.keep(range(len(part)))
            at, turn = at + len(part), turn + 1
        return np.concatenate(rows)
    finally:
        session.close()


def _branch(session: Session, text: Ids, truth: Logits, parents: Sequence[int], start: int) -> Logits:
    """Feed ``text`` up to ``start``, then a tree that holds its continuation on the last node's path among wrong
    tokens, keep that path, and go on one token at a time: rows from ``start`` on."""
    path = path_to(parents, len(parents) - 1)
    tokens = (text[start] + 1 + np.arange(len(parents), dtype=np.int32)) % np.int32(truth.shape[1])
    tokens[path] = text[start : start + len(path)]
    try:
        if start:
            _fed(session, text[:start], np.arange(-1, start - 1, dtype=np.int32))
            session.keep(range(start))
        rows = [_fed(session, tokens.astype(np.int32), np.array(parents, np.int32))[path]]
        session.keep(path)
        for token in text[start + len(path) : start + len(path) + 4]:
            rows.append(_fed(session, np.array([token], np.int32), np.array([-1], np.int32)))
            session.keep([0])
        return np.concatenate(rows)
    finally:
        session.close()


def _fed(session: Session, tokens: Ids, parents: Ids) -> Logits:
    return session.extend(tokens, parents, len(tokens)).logits.copy()


def _difference(what: str, first: int, found: Logits, wanted: Logits) -> Difference:
    differs = found != wanted
    row = int(np.argmax(differs.any(axis=1)))
    off = np.abs(found[row][differs[row]].astype(np.float64) - wanted[row][differs[row]])
    return Difference(what, first + row, float(off.max()))
