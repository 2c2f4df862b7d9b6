"""Where to stop within a round: keep drafting while what a token is likely to save is worth more than the time it
takes.

Time is worth ``rate`` tokens a second, the best that can be had over the whole text (renewal-reward; Dinkelbach's
criterion for ratios): of all stops the one with the largest tokens - rate · seconds is the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foredraft.control.clock import Clock
from foredraft.control.estimates import Acceptance
from foredraft.types import Trial


@dataclass(frozen=True)
class Stops:
    """``rate``: what time is worth, tokens a second. ``floor``: what the best alternative to this source is worth, in
    tokens (for a model, whose own passes are spent when this is asked: a plain round). ``longest``: tokens that a chain
    may have; ``widths``: the only widths a pass may have (None = any). ``hoped``: acceptance to reckon with for as long
    as nothing is known of the draft, and at least one token is tried then (None: what was seen so far)."""

    rate: float
    floor: float
    longest: int
    widths: Sequence[int] | None = None
    hoped: float | None = None


_CAUTION = 0.75
"""A longer copy must win this much more than the time of the wider pass: the probabilities of its tokens go together,
and a copy that ends early ends for all of them."""
Told = Callable[[str, Sequence[Trial]], None]
"""Who else wants to know what a source would have guessed."""


class ChainGate:
    """For one source and one round."""

    def __init__(
        self, clock: Clock, acceptance: Acceptance, source: str, stops: Stops, told: Told | None = None
    ) -> None:
        self._clock = clock
        self._acceptance = acceptance
        self._source = source
        self._stops = stops
        self._told = told
        self._hoped = stops.hoped

    def learn(self, trials: Sequence[Trial]) -> None:
        """Believe what was seen, from this round on."""
        self._acceptance.learn(trials)
        if self._told is not None:
            self._told(self._source, trials)
        self._hoped = None

    def survival(self, depth: int, rank: int, confidence: float) -> float:
        """As often as tokens of this confidence were accepted."""
        first = self._acceptance.of(confidence)
        if rank == 0:
            return first
        return min(confidence, self._acceptance.by_rank(first, rank + 1)[rank])

    def more(self, values: Sequence[float]) -> bool:
        """Whether any continuation is expected to pay for its draft passes and its part of the target's pass."""
        count, longest = len(values), self._stops.longest
        ahead = [self._hoped] * longest if self._hoped is not None else self._acceptance.by_depth(longest)
        step, value = self._clock.draft(self._source), values[-1]
        gain, spent = 0.0, 0.0
        now = self._clock.target(count + 1)
        for depth in range(count, longest):
            value *= ahead[depth]
            gain += value
            spent += step
            if gain > self._stops.rate * (spent + self._clock.target(depth + 2) - now):
                return True
        return False

    def kept(self, values: Sequence[float]) -> int:
        """The prefix that is worth most, if it is worth more than the alternative."""
        best, count = self._stops.floor if self._hoped is None else -math.inf, 0
        tokens, widths, rate = 1.0, self._stops.widths, self._stops.rate
        rest, caution = self._clock.rest(drafted=True), 0.0
        for number, value in enumerate(values, 1):
            tokens += value
            if widths is not None and number + 1 not in widths:
                continue
            seconds = self._clock.target(number + 1)
            worth = tokens - rate * (seconds + rest)
            if count and not self._clock.draft(self._source):
                caution = _CAUTION * rate * (seconds - self._clock.target(count + 1))
            if worth > best + caution:
                best, count = worth, number
        return count
