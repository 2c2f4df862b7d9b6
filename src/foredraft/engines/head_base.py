"""The protocols of a draft head: what guesses from the target's hidden states and shares its embedding and output
matrix.

A session holds two kinds of entries. Known ones pair the target's states behind a token with the token that follows;
they are kept. Own ones pair the head's output with a token that it guessed itself; they are forgotten after a proposal,
because the target's states then take their place (EAGLE-3, arXiv 2503.01840, figure 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from foredraft.types import Ids, Logits


@dataclass(frozen=True, slots=True)
class HeadInfo:
    """``ids`` int32[V'], ascending: the tokens it can say; ``vocab_size``: of the target; ``state_size``: elements of
    the target's states of one token; ``hidden_size``: of its own output; ``max_context``: entries a session holds;
    ``share``: weights that a pass reads ÷ those of a target's pass."""

    ids: Ids
    vocab_size: int
    state_size: int
    hidden_size: int
    max_context: int
    share: float


@dataclass(frozen=True, slots=True)
class HeadScores:
    """``logits`` float32[R, V'] and ``outputs`` float32[R, h] of the entries that were scored; valid until the
    session's next call."""

    logits: Logits
    outputs: Logits


class HeadSession(Protocol):
    """One sequence's entries. Entry i has position i."""

    @property
    def length(self) -> int:
        """Known entries."""
        ...

    def read(self, states: Logits, tokens: Ids, rows: int) -> HeadScores:
        """Keep known entries: ``states`` float32[M, T·h] behind M consecutive tokens, each with the token of ``tokens``
        int32[M] that follows it. The last ``rows`` are scored. No own entries may be pending. Raises ContextFull
        (nothing was read), InvalidValue or EngineFailure."""
        ...

    def extend(self, outputs: Logits, tokens: Ids, parents: Ids) -> HeadScores:
        """Add own entries: ``outputs`` float32[M, h] of their parents, with the guessed ``tokens``. ``parents``
        int32[M] index own entries in the order they were added, -1 = the last known one. All are scored."""
        ...

    def forget(self) -> None:
        """Drop the own entries."""
        ...

    def rewind(self, length: int) -> None:
        """Drop own entries, and known ones from ``length`` on."""
        ...

    def close(self) -> None:
        """Free the cache. Idempotent; after an EngineFailure the only legal call."""
        ...


class HeadEngine(Protocol):
    """Owns a head's weights; opens sessions."""

    @property
    def info(self) -> HeadInfo:
        """What this head is."""
        ...

    def open(self) -> HeadSession:
        """A new, empty session."""
        ...

    def close(self) -> None:
        """Free the weights. Idempotent."""
        ...
