"""Proposes nothing: plain decoding through the same loop."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft


class NullDrafter:
    """Always silent. ``reason`` says why drafting is off."""

    name = "none"

    def __init__(self, reason: str | None = None) -> None:
        self._reason = reason

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing to prepare."""

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        """An empty draft."""
        return Draft.empty(self.name, self._reason)

    def observe(self, accepted: Sequence[int]) -> None:
        """Nothing to learn."""

    def close(self) -> None:
        """Nothing to free."""
