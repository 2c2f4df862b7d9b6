"""The protocol every drafter implements. A drafter guesses; it never decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft, Logits


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

    def observe(self, accepted: Sequence[int], hidden: Logits | None) -> None:
        """The last proposal was verified: ``accepted`` are its surviving node indices, root first. ``hidden``
        float32[1 + len(accepted), H]: the target's hidden rows at the last committed token and at each of them."""
        ...

    def close(self) -> None:
        """Free what ``begin`` and ``propose`` opened. Idempotent."""
        ...
