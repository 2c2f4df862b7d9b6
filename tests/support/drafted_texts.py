"""Texts whose acceptance is known: counts drawn from a law, and that law's α and E(K) in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foredraft.profile.counts import BANDS, TextCounts
from foredraft.types import Floats


@dataclass(frozen=True)
class Truth:
    """Every text has an α of its own, from a beta law of mean ``alpha`` and ``weight`` (a + b): its variance is
    α(1 - α) ÷ (weight + 1). ``rounds``: lowest and highest number of rounds of a text. Chains of ``depth``."""

    alpha: float
    weight: float
    depth: int = 4
    rounds: tuple[int, int] = (15, 60)

    def survivals(self) -> list[float]:
        """Share of rounds that accept at least 0, 1, … tokens: moments of the beta law."""
        a, found = self.alpha * self.weight, [1.0]
        for depth in range(self.depth):
            found.append(found[-1] * (a + depth) / (self.weight + depth))
        return found

    @property
    def pooled(self) -> float:
        """Accepted ÷ evaluated, over all depths."""
        shares = self.survivals()
        return sum(shares[1:]) / sum(shares[:-1])

    @property
    def tokens(self) -> float:
        """Tokens a round, bonus included."""
        return sum(self.survivals())


def draw_reached(random: np.random.Generator, truth: Truth, texts: int) -> Floats:
    """Rounds that accepted at least 0, 1, … D tokens, by text, float64[texts, D + 1]."""
    alphas = random.beta(truth.alpha * truth.weight, (1 - truth.alpha) * truth.weight, texts)
    rounds = random.integers(truth.rounds[0], truth.rounds[1] + 1, texts)
    reached = [rounds]
    for _ in range(truth.depth):
        reached.append(random.binomial(reached[-1], alphas))
    return np.array(reached, np.float64).T


def draw(random: np.random.Generator, truth: Truth, texts: int, kind: str = "code") -> list[TextCounts]:
    """``texts`` texts; every token of theirs stands in the first band."""
    table = draw_reached(random, truth, texts)
    return [text(f"{kind}-{index}", kind, row.tolist()) for index, row in enumerate(table)]


def text(key: str, kind: str, reached: list[float]) -> TextCounts:
    """The counts of a text of which ``reached[d]`` rounds accepted at least d tokens."""
    hits, trials = tuple(reached[1:]), tuple(reached[:-1])
    rest = (0.0,) * (len(BANDS) - 1)
    return TextCounts(key, kind, sum(reached), reached[0], hits, trials, (sum(hits), *rest), (sum(trials), *rest))
