"""Where to stop within a round: keep drafting while what a token is likely to save is worth more than the time it
takes.

Time is worth ``rate`` tokens a second, the best that can be had over the whole text (renewal-reward; Dinkelbach's
criterion for ratios): of all stops the one with the largest tokens - rate · seconds is the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.control.clock import Clock
from foredraft.control.estimates import Acceptance


@dataclass(frozen=True)
class ChainGate:
    """For one source and one round. ``floor``: what the best alternative to this source is worth, in tokens (for a
    model, whose own passes are spent when this is asked: a plain round). ``ahead``: acceptance at depth 1, 2, … as far
    as a chain may go; ``widths``: the only widths a pass may have (None = any)."""

    clock: Clock
    acceptance: Acceptance
    source: str
    rate: float
    floor: float
    ahead: Sequence[float]
    widths: Sequence[int] | None = None

    def survival(self, depth: int, rank: int, confidence: float) -> float:
        """As often as tokens of this confidence were accepted."""
        first = self.acceptance.of(confidence)
        if rank == 0:
            return first
        return min(confidence, self.acceptance.by_rank(first, rank + 1)[rank])

    def more(self, values: Sequence[float]) -> bool:
        """Whether any continuation is expected to pay for its draft passes and its part of the target's pass."""
        count = len(values)
        step, value = self.clock.draft(self.source), values[-1]
        gain, spent = 0.0, 0.0
        now = self.clock.target(count + 1)
        for depth in range(count, len(self.ahead)):
            value *= self.ahead[depth]
            gain += value
            spent += step
            if gain > self.rate * (spent + self.clock.target(depth + 2) - now):
                return True
        return False

    def kept(self, values: Sequence[float]) -> int:
        """The prefix that is worth most, if it is worth more than the alternative."""
        best, count = self.floor, 0
        tokens = 1.0
        rest = self.clock.rest(drafted=True)
        for number, value in enumerate(values, 1):
            tokens += value
            if self.widths is not None and number + 1 not in self.widths:
                continue
            worth = tokens - self.rate * (self.clock.target(number + 1) + rest)
            if worth > best:
                best, count = worth, number
        return count
