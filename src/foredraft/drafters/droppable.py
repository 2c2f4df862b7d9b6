"""A draft that gives its memory back when the machine runs short of it: the draft goes first, the answer goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foredraft.drafters.base import Drafter, ReadsStates
from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft, Logits


class DroppableDrafter:
    """``inner`` until ``short`` says that memory is short: then ``inner`` is closed, ``release`` is called once (it
    frees the weights), and nothing is proposed any more, neither for this request nor for later ones."""

    def __init__(self, inner: Drafter, short: Callable[[], bool], release: Callable[[], None]) -> None:
        self.name = inner.name
        self._inner, self._short, self._release = inner, short, release
        self.dropped = False

    def begin(self, prompt: Sequence[int]) -> None:
        """Begin, unless memory is short."""
        if not self._gone():
            self._inner.begin(prompt)

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        """The inner proposal, or none with the reason."""
        if self._gone():
            return Draft.empty(self.name, f"{self.name}: memory is short, the draft was dropped")
        return self._inner.propose(context, budget, sampler)

    def observe(self, accepted: Sequence[int]) -> None:
        """Passed on."""
        if not self.dropped:
            self._inner.observe(accepted)

    def read_states(self, first: int, states: Logits, text: Sequence[int]) -> None:
        """Passed on, where it is wanted."""
        if not self.dropped and isinstance(self._inner, ReadsStates):
            self._inner.read_states(first, states, text)

    def close(self) -> None:
        """Close the inner drafter. Idempotent."""
        self._inner.close()

    def _gone(self) -> bool:
        if not self.dropped and self._short():
            self.dropped = True
            self._inner.close()
            self._release()
        return self.dropped
