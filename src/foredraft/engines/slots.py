"""Which row of a key/value cache holds which token: chains and trees in one flat cache, in canonical order.

Kept token i lies in slot i. Pending tokens lie behind them in the order in which they were fed, parents before
children, so that along every path slot order is position order: sums over slots then run in the same order as in plain
decoding. ``keep`` says which rows to move so that this stays true. Pure bookkeeping; owns no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import ContextFull, InvalidValue

Bools = NDArray[np.bool_]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where M tokens of one ``extend`` go. ``slots`` and ``positions`` int64[M]; slots are consecutive."""

    slots: Longs
    positions: Longs

    def part(self, start: int, end: int) -> Layout:
        """Of the tokens ``start`` to ``end`` - 1."""
        return Layout(self.slots[start:end], self.positions[start:end])


@dataclass(frozen=True, slots=True)
class Moves:
    """Rows to copy after ``keep``: all of ``sources`` are read before any of ``targets`` is written."""

    sources: Longs
    targets: Longs

    def __len__(self) -> int:
        return len(self.sources)


class Slots:
    """The bookkeeping of one session. ``context``: slots there are; one token each.

    Pending tokens that lead on from the kept text as a chain (a prompt) are only counted: the first ``_chain`` ones.
    The T tokens behind them, which may branch, have a table of ancestors, so that costs grow with T², not with a
    prompt's length squared.
    """

    def __init__(self, context: int) -> None:
        self._context = context
        self._length = self._chain = 0
        # Of the T tokens behind the chain:
        self._parents: list[int] = []
        self._depths: list[int] = []  # positions behind the kept text
        self._reach: list[int] = []  # tokens of the chain among the ancestors
        self._seen: Bools = np.zeros((0, 0), np.bool_)  # [T, T]: is column an ancestor of row, or row itself

    @property
    def length(self) -> int:
        """Tokens kept."""
        return self._length

    @property
    def pending(self) -> int:
        """Tokens fed and neither kept nor forgotten yet."""
        return self._chain + len(self._parents)

    @property
    def used(self) -> int:
        """Slots that hold a token."""
        return self._length + self.pending

    def add(self, parents: Sequence[int]) -> Layout:
        """Give slots to tokens whose ``parents`` index pending tokens (-1 = the last kept token).

        Raises ContextFull, or InvalidValue for a parent that was not fed before; nothing has changed then.
        """
        first, count = self.pending, len(parents)
        if self.used + count > self._context:
            raise ContextFull(f"{self.used + count} tokens do not fit into a context of {self._context}")
        for index, parent in enumerate(parents, first):
            if not -1 <= parent < index:
                name = f"parents[{index - first}]"
                raise InvalidValue(name, parent, f"-1 (the last kept token) to {index - 1} (pending tokens fed before)")
        straight = 0 if self._parents else _straight(parents, first)
        self._chain += straight
        depths = [*range(first, first + straight), *self._branch(parents[straight:])]
        slots = np.arange(self._length + first, self._length + first + count, dtype=np.int64)
        return Layout(slots, self._length + np.array(depths, np.int64))

    def _branch(self, parents: Sequence[int]) -> list[int]:
        """Enter tokens that do not continue the chain into the table of ancestors; their depths."""
        known = len(self._parents)
        seen = np.zeros((known + len(parents),) * 2, np.bool_)
        seen[:known, :known] = self._seen
        for row, parent in enumerate(parents, known):
            above = parent - self._chain
            if above >= 0:
                seen[row] = seen[above]
            seen[row, row] = True
            self._reach.append(self._reach[above] if above >= 0 else parent + 1)
            self._depths.append(self._depths[above] + 1 if above >= 0 else parent + 1)
        self._seen = seen
        self._parents += parents
        return self._depths[known:]

    def visible(self, first: int, count: int, columns: int, window: int | None = None) -> Bools:
        """Who sees whom: bool[count, columns] for pending tokens ``first`` .. ``first + count`` - 1.

        A token sees the kept text, its ancestors and itself; with ``window`` only those less than ``window`` positions
        back. Columns are slots from 0 on.
        """
        assert first >= 0 and first + count <= self.pending, "rows of pending tokens"
        table = np.zeros((count, columns), np.bool_)
        depths = np.array(self._depths, np.int64)
        base = self._length + self._chain  # up to here slots are positions
        width = max(0, min(columns - base, len(depths)))
        for row, node in enumerate(range(first, first + count)):
            behind = node - self._chain
            depth, reach = (node, node + 1) if behind < 0 else (self._depths[behind], self._reach[behind])
            nearest = 0 if window is None else max(0, self._length + depth - window + 1)
            table[row, nearest : self._length + reach] = True
            if behind >= 0:
                seen = self._seen[behind, :width]
                table[row, base : base + width] = seen if window is None else seen & (depth - depths[:width] < window)
        return table

    def keep(self, path: Sequence[int]) -> Moves:
        """Keep a root-first path of the pending tokens, forget the others. Raises InvalidValue for another path."""
        above = -1
        for index, node in enumerate(path):
            if not 0 <= node < self.pending or self._parent(node) != above:
                raise InvalidValue(f"path[{index}]", node, f"a pending child of token {above}: a root-first path")
            above = node
        sources = self._length + np.array(path, np.int64)
        targets = np.arange(self._length, self._length + len(path), dtype=np.int64)
        moved = sources != targets
        self._length += len(path)
        self._forget()
        return Moves(sources[moved], targets[moved])

    def rewind(self, length: int) -> None:
        """Forget pending tokens, and kept ones from ``length`` on. Raises InvalidValue beyond the kept text."""
        if not 0 <= length <= self._length:
            raise InvalidValue("length", length, f"0 to {self._length}")
        self._length = length
        self._forget()

    def _parent(self, node: int) -> int:
        return node - 1 if node < self._chain else self._parents[node - self._chain]

    def _forget(self) -> None:
        """No tokens are pending."""
        self._chain = 0
        self._parents, self._depths, self._reach = [], [], []
        self._seen = np.zeros((0, 0), np.bool_)


def _straight(parents: Sequence[int], first: int) -> int:
    """How many of the leading ``parents`` are the token before, the first token being number ``first``."""
    return next((index for index, parent in enumerate(parents) if parent != first + index - 1), len(parents))
