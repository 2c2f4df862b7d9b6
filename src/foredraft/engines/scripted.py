"""A table-driven engine: exact, tiny, strict. The living definition of the ``Session`` protocol.

Logits are a pure function of the whole text a token sees, so any width, chunking or tree gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from foredraft.engines.base import EngineInfo, Rollback, check_extend
from foredraft.errors import ContextFull, EngineFailure, InvalidValue
from foredraft.noise import hash_ids
from foredraft.trees import path_to
from foredraft.types import Ids, Logits, Scores

Table = Callable[[tuple[int, ...]], Logits]
"""The text so far -> logits float32[V] of the next token."""


def markov_table(vocab_size: int, *, order: int = 2, seed: int = 0, sharpness: float = 4.0) -> Table:
    """Pseudo-random logits in [0, sharpness) that depend on the last ``order`` tokens; the same on every platform.

    ``hash_ids`` keyed by the context makes them; there is nothing to train and nothing to store.
    """
    ids = np.arange(vocab_size)

    def table(text: tuple[int, ...]) -> Logits:
        key = seed + 1
        for token in text[-order:]:
            key = int(hash_ids(key, np.array([token]))[0])
        return ((hash_ids(key, ids) >> np.uint64(40)).astype(np.float32) * 2.0**-24 * sharpness).astype(np.float32)

    return table


def blended(target: Table, other: Table, share: float) -> Table:
    """(1 - share)·target + share·other: a draft whose agreement with the target falls as ``share`` grows."""
    return lambda text: ((1 - share) * target(text) + share * other(text)).astype(np.float32)


@dataclass(frozen=True)
class ScriptedEngine:
    """``table`` gives the logits. ``tree`` and ``rollback`` may be lowered to act like a weaker engine."""

    table: Table
    vocab_size: int
    max_context: int = 4096
    tree: bool = True
    rollback: Rollback = "trim"
    name: str = "scripted"

    @property
    def info(self) -> EngineInfo:
        """What this engine can do."""
        reason = None if self.rollback != "none" else "this engine cannot forget tokens"
        return EngineInfo(
            "scripted", self.name, self.vocab_size, self.max_context, self.tree, self.rollback, reason=reason
        )

    def open(self) -> ScriptedSession:
        """A new, empty session."""
        return ScriptedSession(self)

    def close(self) -> None:
        """Nothing to free."""


@dataclass
class ScriptedSession:
    """Keeps the text itself as its cache and checks every argument."""

    engine: ScriptedEngine
    kept: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    closed: bool = False

    @property
    def length(self) -> int:
        """Tokens kept."""
        return len(self.kept)

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        """Feed ``tokens`` tentatively, score the last ``rows``."""
        self._check_open()
        self._check_input(tokens, parents, rows)
        needed = len(self.kept) + len(self.pending) + len(tokens)
        if needed > self.engine.max_context:
            raise ContextFull(f"{needed} tokens do not fit into a context of {self.engine.max_context}")
        self.pending += tokens.tolist()
        self.parents += parents.tolist()
        logits = np.empty((rows, self.engine.vocab_size), np.float32)
        first = len(self.pending) - rows
        for row in range(rows):
            logits[row] = self.engine.table(self._text(first + row))
        return Scores(logits)

    def _text(self, node: int) -> tuple[int, ...]:
        return (*self.kept, *(self.pending[index] for index in path_to(self.parents, node)))

    def keep(self, path: Sequence[int]) -> None:
        """Keep a root-first path of the pending tokens, forget the others."""
        self._check_open()
        above = -1
        for node in path:
            if not 0 <= node < len(self.pending) or self.parents[node] != above:
                raise InvalidValue("path", list(path), "a root-first path of the pending tree")
            above = node
        if self.engine.rollback == "none" and len(path) < len(self.pending):
            raise EngineFailure("this engine cannot forget tokens")
        self.kept += [self.pending[node] for node in path]
        self.pending, self.parents = [], []

    def rewind(self, length: int) -> int:
        """Forget everything from ``length`` on."""
        self._check_open()
        if not 0 <= length <= len(self.kept):
            raise InvalidValue("length", length, f"0 to {len(self.kept)}")
        self.pending, self.parents = [], []
        if self.engine.rollback == "none" and length < len(self.kept):
            length = 0
        del self.kept[length:]
        return length

    def close(self) -> None:
        """Idempotent."""
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise EngineFailure("the session is closed")

    def _check_input(self, tokens: Ids, parents: Ids, rows: int) -> None:
        check_extend(tokens, parents, rows, self.engine.vocab_size)
        limit = len(self.pending) + np.arange(len(tokens))
        if (parents >= limit).any() or (parents < -1).any():
            raise InvalidValue("parents", parents.tolist(), "-1 or a pending token fed before")
        if not self.engine.tree and (parents != limit - 1).any():
            raise InvalidValue("parents", parents.tolist(), "a chain (this engine has no trees)")
