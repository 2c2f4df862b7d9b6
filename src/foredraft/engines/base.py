"""The two protocols every engine implements. Knows nothing about drafts, sampling or text.

The living definition is ``engines/scripted.py``; the contract suite runs over every engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from foredraft.errors import EngineFailure, InvalidValue
from foredraft.types import Ids, Scores

Rollback = Literal["trim", "replay", "none"]
"""How ``keep`` forgets tokens: cut them off the cache, restore a checkpoint and run the kept ones again, or not
at all (then only plain decoding is possible)."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine can do, probed at load.

    ``vocab_size``: rows of the output matrix, V. ``max_context``: tokens one session holds. ``tree``: several
    children per node in one pass. ``widths``: the only widths a pass may have, None = any. ``reason`` explains
    a missing ability in words. ``exact_width``: the session keeps every row's bits what they are at width 1, by never
    scoring more positions than this at once (None: no such promise). ``restricted``: rows of the output matrix are
    missing, so that some tokens always score -inf; good for a draft only.
    """

    name: str
    model: str
    vocab_size: int
    max_context: int
    tree: bool
    rollback: Rollback
    hidden_size: int | None = None
    widths: tuple[int, ...] | None = None
    reason: str | None = None
    exact_width: int | None = None
    restricted: bool = False


class Session(Protocol):
    """Owns one sequence's cache: ``length`` kept tokens, then pending ones that ``extend`` added.

    ``extend`` may be called again before ``keep``: the new tokens join the pending ones (a draft model
    grows its tree level by level this way). Pending tokens are numbered from 0 in the order they were fed.
    """

    @property
    def length(self) -> int:
        """Tokens kept."""
        ...

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        """Feed ``tokens`` int32[M] tentatively and score the last ``rows`` of them.

        ``parents`` int32[M] index pending tokens (those of earlier calls included), -1 = the last kept token.
        Raises ContextFull (nothing was fed) or EngineFailure. Only ``rows`` rows of logits ever exist.
        """
        ...

    def keep(self, path: Sequence[int]) -> None:
        """Keep the pending tokens ``path`` (a root-first path of the tree) and forget the others."""
        ...

    def rewind(self, length: int) -> int:
        """Forget pending tokens and kept ones from ``length`` on; returns the length really reached, which
        may be smaller where the cache cannot be cut there."""
        ...

    def close(self) -> None:
        """Free the cache. Idempotent; after an EngineFailure the only legal call."""
        ...


class Engine(Protocol):
    """Owns a model's weights; opens sessions."""

    @property
    def info(self) -> EngineInfo:
        """What this engine can do."""
        ...

    def open(self) -> Session:
        """A new, empty session."""
        ...

    def close(self) -> None:
        """Free the weights. Idempotent."""
        ...


def emptied(engine: Engine, session: Session | None) -> Session:
    """An empty session of ``engine``: ``session`` itself, or a new one if there is none or it has failed."""
    if session is not None:
        try:
            session.rewind(0)
        except EngineFailure:
            session.close()
        else:
            return session
    return engine.open()


def check_extend(tokens: Ids, parents: Ids, rows: int, vocab_size: int) -> None:
    """What every engine checks before native code sees an argument of ``extend``."""
    if len(tokens) != len(parents) or not len(tokens):
        raise InvalidValue("tokens, parents", (len(tokens), len(parents)), "two arrays of one length >= 1")
    if not 0 <= rows <= len(tokens):
        raise InvalidValue("rows", rows, f"0 to {len(tokens)}")
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size:
        worst = int(tokens.max() if tokens.max() >= vocab_size else tokens.min())
        raise InvalidValue("token id", worst, f"0 to {vocab_size - 1}")
