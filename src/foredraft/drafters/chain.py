"""The first drafter with something to say."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.drafters.base import Drafter
from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft, Logits


class ChainDrafter:
    """Asks its drafters in order; the first non-empty proposal wins. One that raises is left out for the rest of
    the request, the others go on."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = tuple(drafters)
        self._failed: dict[int, str] = {}
        self._last: int | None = None
        self.name = "+".join(drafter.name for drafter in drafters)

    def begin(self, prompt: Sequence[int]) -> None:
        """Begin all of them."""
        self._failed.clear()
        self._last = None
        for index, drafter in enumerate(self._drafters):
            try:
                drafter.begin(prompt)
            except Exception as error:  # noqa: BLE001  a draft must never take the answer down, whatever it raises
                self._leave_out(index, error)

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        """The first non-empty proposal, under its own drafter's name; else all reasons joined."""
        reasons = []
        length = len(context)
        for index, drafter in enumerate(self._drafters):
            if index in self._failed:
                reasons.append(self._failed[index])
                continue
            try:
                draft = drafter.propose(context, budget, sampler)
            except Exception as error:  # noqa: BLE001  see begin
                context.shrink(length)
                self._leave_out(index, error)
                reasons.append(self._failed[index])
                continue
            if len(draft):
                self._last = index
                return draft
            reasons.append(draft.reason or f"{drafter.name}: nothing to propose")
        self._last = None
        return Draft.empty(self.name, "; ".join(reasons))

    def observe(self, accepted: Sequence[int], hidden: Logits | None) -> None:
        """Tell the one that proposed."""
        if self._last is None:
            return
        try:
            self._drafters[self._last].observe(accepted, hidden)
        except Exception as error:  # noqa: BLE001  see begin
            self._leave_out(self._last, error)

    def _leave_out(self, index: int, error: Exception) -> None:
        self._failed[index] = f"{self._drafters[index].name} failed: {error}"

    def close(self) -> None:
        """Close all of them."""
        for drafter in self._drafters:
            drafter.close()
