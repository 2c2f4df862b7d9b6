"""What rounds cost in seconds, learned while they run: a prior verify curve, re-scaled and corrected by what is
seen."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from foredraft.control.priors import Priors
from foredraft.types import Step

_CLIP = 0.7
"""An outlier (the machine was busy elsewhere) counts as a factor of at most e^.7 = 2."""
_DRIFT = math.log(1.10)
"""From here on a lasting change of all times counts as drift and re-scales everything."""


@dataclass(slots=True)
class Running:
    """A mean of logarithms that forgets: weights 1/n up to n = ``memory``, then constant."""

    value: float = 0.0
    count: float = 0.0
    memory: float = 24.0

    def add(self, sample: float) -> None:
        """Take one sample in."""
        self.count = min(self.count + 1.0, self.memory)
        self.value += (sample - self.value) / self.count


class Clock:
    """Times of target passes by width, of draft passes by source, and of the rest of a round.

    A pass of width N takes scale · v(N) · correction(N). Every round moves the correction of its width; what all widths
    have in common moves the scale. Within 10 % the scale is left to the slow mean, beyond it follows at once: that is
    drift (heat, another load).
    """

    def __init__(self, priors: Priors) -> None:
        self._curve = priors.curve
        self._scale = Running(math.log(priors.step_seconds), 4.0) if priors.step_seconds else Running()
        trust = 8.0 if priors.measured else 0.0
        self._trust = trust
        self._corrections: dict[int, Running] = {}
        self._drafts: dict[str, Running] = {}
        self._costs = {name: source.cost for name, source in priors.sources.items()}
        self._recent: list[float] = []
        self._plain_rest, self._drafted_rest = Running(), Running()
        self.drifts = 0

    @property
    def known(self) -> bool:
        """Whether any pass was timed, here or before."""
        return self._scale.count > 0

    def target(self, width: int) -> float:
        """Seconds of a pass of ``width``."""
        return math.exp(self._scale.value + self._correction(width)) * self._curve(width)

    def draft(self, source: str) -> float:
        """Seconds of one pass of the draft ``source``; 0 for one without a model."""
        cost = self._costs.get(source)
        if cost is None and source not in self._drafts:
            return 0.0
        seen = self._drafts.get(source)
        return math.exp(seen.value) if seen is not None and seen.count else (cost or 0.0) * self.target(1)

    def rest(self, *, drafted: bool) -> float:
        """Seconds of a round outside passes."""
        running = self._drafted_rest if drafted and self._drafted_rest.count else self._plain_rest
        return math.exp(running.value) if running.count else 0.0

    def observe(self, step: Step) -> None:
        """Learn from one round of decoding."""
        if step.seconds.verify <= 0 or step.width < 1:
            return
        self._see_pass(step.width, math.log(step.seconds.verify))
        rest = step.seconds.keep + step.seconds.other + (step.seconds.draft if not step.passes else 0.0)
        if rest > 0:
            _clipped(self._drafted_rest if step.drafted else self._plain_rest, math.log(rest))
        if step.passes and step.seconds.draft > 0:
            source = step.drafter.rpartition("+")[2]
            seen = self._drafts.setdefault(source, Running())
            _clipped(seen, math.log(step.seconds.draft / step.passes))

    def _see_pass(self, width: int, seconds: float) -> None:
        if not self.known:
            self._scale.value, self._scale.count = seconds - math.log(self._curve(width)), 1.0
            return
        shape = math.log(self._curve(width)) + self._correction(width)
        surprise = max(-_CLIP, min(_CLIP, seconds - shape - self._scale.value))
        self._recent = [*self._recent[-4:], surprise]
        middle = sorted(self._recent)[len(self._recent) // 2]
        if len(self._recent) == 5 and abs(middle) > _DRIFT:
            self._scale.value += middle
            self._recent = []
            self.drifts += 1
            return
        if width == 1:
            self._scale.add(self._scale.value + surprise)
            return
        known = self._corrections.setdefault(width, Running(self._correction(width), self._trust))
        known.add(known.value + surprise)

    def _correction(self, width: int) -> float:
        """Learned at this width, or between its neighbours; 0 at width 1."""
        found = self._corrections.get(width)
        if found is not None:
            return found.value
        if width == 1 or not self._corrections:
            return 0.0
        widths = [1, *sorted(self._corrections)]
        at = bisect_left(widths, width)
        if at == len(widths):
            return self._corrections[widths[-1]].value
        left, right = widths[at - 1], widths[at]
        low = self._corrections[left].value if left in self._corrections else 0.0
        share = (width - left) / (right - left)
        return low + share * (self._corrections[right].value - low)


def _clipped(running: Running, sample: float) -> None:
    if running.count:
        sample = max(running.value - _CLIP, min(running.value + _CLIP, sample))
    running.add(sample)
