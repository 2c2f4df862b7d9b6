"""Gates that are pure functions of what they are asked, so that a draft can be made twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from foredraft.types import Trial


@dataclass(frozen=True)
class Believing:
    """Takes the draft's confidence for the truth; drafts on behind paths likelier than ``more_than`` and keeps the
    tokens that are likelier than ``keeps``. Notes what it was asked."""

    more_than: float = 0.0
    keeps: float = 0.0
    asked: list[tuple[int, int, float]] = field(default_factory=list, compare=False)
    learned: list[Trial] = field(default_factory=list, compare=False)

    def learn(self, trials: Sequence[Trial]) -> None:
        """Noted."""
        self.learned.extend(trials)

    def survival(self, depth: int, rank: int, confidence: float) -> float:
        """The confidence itself."""
        self.asked.append((depth, rank, confidence))
        return confidence

    def more(self, values: Sequence[float]) -> bool:
        """Whether the last one is likely enough."""
        return values[-1] > self.more_than

    def kept(self, values: Sequence[float]) -> int:
        """How many are likely enough."""
        return sum(value > self.keeps for value in values)


@dataclass(frozen=True)
class Counting:
    """Lets ``grows`` tokens be drafted and keeps ``keeps`` of them."""

    grows: int
    keeps: int

    def learn(self, trials: Sequence[Trial]) -> None:
        """Nothing."""

    def survival(self, depth: int, rank: int, confidence: float) -> float:
        """Nine of ten, the next sibling half as likely."""
        return 0.9 * 0.5**rank

    def more(self, values: Sequence[float]) -> bool:
        """As long as there are fewer than ``grows``."""
        return len(values) < self.grows

    def kept(self, values: Sequence[float]) -> int:
        """At most ``keeps``."""
        return min(self.keeps, len(values))
