"""The rolling rule: a short draft after low acceptance, a long one after high. Kept for comparison with ``cost``,
because it knows nothing about what a round costs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from foredraft.control.fixed import check_draft_size
from foredraft.errors import InvalidValue
from foredraft.types import Budget, Step


@dataclass(frozen=True, slots=True)
class ThresholdConfig:
    """α < ``low``: ``short`` tokens; α > ``high``: ``long``; else ``middle``. ``window``: rounds that α is taken of."""

    low: float = 0.5
    high: float = 0.75
    short: int = 3
    middle: int = 5
    long: int = 8
    window: int = 16

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high <= 1.0:
            raise InvalidValue("low, high", (self.low, self.high), "0 <= low <= high <= 1")
        if self.window < 1:
            raise InvalidValue("window", self.window, "a positive number of rounds")
        for length in (self.short, self.middle, self.long):
            check_draft_size(length, 0)


class Threshold:
    """α = accepted ÷ evaluated of the last ``window`` rounds that drafted."""

    def __init__(self, config: ThresholdConfig | None = None) -> None:
        self._config = config or ThresholdConfig()
        self._rounds: deque[tuple[int, int]] = deque(maxlen=self._config.window)

    def begin(self) -> None:
        """Forget the last request."""
        self._rounds.clear()

    @property
    def alpha(self) -> float | None:
        """The rolling acceptance, None before anything was evaluated."""
        evaluated = sum(count for _, count in self._rounds)
        return sum(hits for hits, _ in self._rounds) / evaluated if evaluated else None

    def budget(self, length: int) -> Budget:
        """A chain by the rule; ``middle`` as long as nothing is known."""
        config, alpha = self._config, self.alpha
        if alpha is None:
            return _chain(config.middle, f"threshold: nothing known yet, {config.middle} tokens")
        size = config.short if alpha < config.low else config.long if alpha > config.high else config.middle
        return _chain(size, f"threshold: α {alpha:.2f}, {size} tokens")

    def observe(self, step: Step) -> None:
        """Take the round's counts in."""
        if step.evaluated:
            self._rounds.append((step.accepted, step.evaluated))


def _chain(size: int, why: str) -> Budget:
    return Budget(size, size, 1, why=why) if size else Budget(0, 0, 0, why=why)
