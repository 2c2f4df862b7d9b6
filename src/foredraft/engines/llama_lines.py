"""A token tree as llama.cpp sequence ids: who sees whom.

A token sees the cells that share one of its sequences and stand before it. Every leaf of the tree therefore gets a
*line*: a sequence id that all its ancestors carry. The kept text and the first child of every node stay on the line
they are on; every further child starts a new one. Pure bookkeeping: calls no native code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.errors import InvalidValue

ROOT = 0
"""The line of the kept text."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Make ``line`` see what ``source`` sees before position ``end``."""

    source: int
    line: int
    end: int


class Lines:
    """The pending tokens of one session: their positions and lines. ``most`` lines exist, ROOT included."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.clear(0)

    def clear(self, length: int) -> None:
        """No pending tokens behind ``length`` kept ones."""
        self._length = length
        self._parents: list[int] = []
        self._line: list[int] = []
        self._depth: list[int] = []
        self._extended: set[int] = set()  # nodes (-1: the root) whose own line goes on in a child
        self.used = 1

    def __len__(self) -> int:
        return len(self._parents)

    def position(self, node: int) -> int:
        """Position of a pending token; that of the last kept token for -1."""
        return self._length - 1 + (self._depth[node] if node >= 0 else 0)

    def line(self, node: int) -> int:
        """The line a pending token is on; ROOT for -1."""
        return self._line[node] if node >= 0 else ROOT

    def check_path(self, path: Sequence[int]) -> None:
        """InvalidValue unless ``path`` runs root first along the pending tree."""
        above = -1
        for node in path:
            if not 0 <= node < len(self._parents) or self._parents[node] != above:
                raise InvalidValue("path", list(path), "a root-first path of the pending tree")
            above = node

    def add(self, parents: Sequence[int]) -> tuple[list[Copy], list[list[int]]]:
        """Place new tokens. Returns the copies to make before they are fed and the sequence ids of each.

        Raises InvalidValue, with nothing changed, for a parent that was not fed or more leaves than lines.
        """
        first = len(self._parents)
        self._check(parents, first)
        copies: list[Copy] = []
        for offset, parent in enumerate(parents):
            line = self.line(parent)
            if parent in self._extended:
                line, above = self.used, parent
                self.used += 1
                while above >= first:
                    above = self._parents[above]
                copies.append(Copy(self.line(above), line, self.position(above) + 1))
            self._extended.add(parent)
            self._parents.append(parent)
            self._line.append(line)
            self._depth.append(self.position(parent) - self._length + 2)
            assert len(self._parents) == first + offset + 1
        return copies, self._sequences(first)

    def _check(self, parents: Sequence[int], first: int) -> None:
        for offset, parent in enumerate(parents):
            if not -1 <= parent < first + offset:
                raise InvalidValue("parents", list(parents), "-1 or a pending token fed before")
        extended, used = set(self._extended), self.used
        for parent in parents:
            used += parent in extended
            extended.add(parent)
        if used > self._most:
            raise InvalidValue("tree", f"{used} leaves", f"at most {self._most} leaves in one tree")

    def _sequences(self, first: int) -> list[list[int]]:
        """For each token from ``first`` on: its line, and every line that starts below it."""
        through: list[list[int]] = [[line] for line in self._line[first:]]
        for node in range(len(self._parents) - 1, first - 1, -1):
            parent = self._parents[node]
            if parent >= first:
                through[parent - first] += [s for s in through[node - first] if s not in through[parent - first]]
        return through
