"""The protocol every drafter implements. A drafter guesses; it never decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft, Logits


@runtime_checkable
class ReadsStates(Protocol):
    """A drafter that guesses from the target's hidden states."""

    def read_states(self, first: int, states: Logits, text: Sequence[int]) -> None:
        """``states`` float32[n, H] of the tokens ``text[first : first + n]``, which the target has read and kept;
        ``text``: all tokens that are known so far. Told in order, prompt first; raising disables drafting for this
        request. The array may be a view that is valid during the call only."""
        ...


class Drafter(Protocol):
    """Guesses the next tokens of one request at a time."""

    name: str

    def begin(self, prompt: Sequence[int]) -> None:
        """A new request; nothing of the last one may leak into it."""
        ...

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        """At most ``budget`` tokens after ``context.tokens``. May push to and pop from ``context`` as long as it
        leaves it as found. Raising disables drafting for this request; the answer is unaffected."""
        ...

    def observe(self, accepted: Sequence[int]) -> None:
        """The last proposal was verified: ``accepted`` are its surviving node indices, root first."""
        ...

    def close(self) -> None:
        """Free what ``begin`` and ``propose`` opened. Idempotent."""
        ...
