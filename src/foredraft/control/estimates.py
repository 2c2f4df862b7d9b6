"""Acceptance as it is seen: by depth, by rank among siblings, and by the draft's confidence; old rounds count less.

Censored: a level counts only when it was evaluated, that is when everything above it was accepted, so that a short
draft says nothing about deeper levels and a fully accepted one only that it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from foredraft.control.calibration import LEAST, MOST, Calibration
from foredraft.types import Trial

SIBLINGS = (0.35, 0.25, 0.2, 0.15)
"""Prior probability that the sibling of rank 1, 2, … is the target's choice, given that none before it is."""


@dataclass(slots=True)
class Counts:
    """Discounted hits and trials, and a prior belief of some ``weight`` in trials."""

    hits: float = 0.0
    trials: float = 0.0

    def add(self, hit: bool, keep: float) -> None:
        """One more trial; everything before it counts ``keep`` as much."""
        self.hits = self.hits * keep + hit
        self.trials = self.trials * keep + 1.0

    def mean(self, prior: float, weight: float) -> float:
        """(hits + weight · prior) / (trials + weight)."""
        return min(MOST, max(LEAST, (self.hits + weight * prior) / (self.trials + weight)))

    def fade(self, share: float) -> None:
        """Let go of all but ``share`` of what was seen."""
        self.hits *= share
        self.trials *= share


@dataclass(slots=True)
class Acceptance:
    """Of one drafter. ``alpha`` and ``weight``: the prior; ``memory``: trials after which one counts 1/e."""

    alpha: float = 0.6
    weight: float = 2.0
    memory: float = 60.0
    depths: list[Counts] = field(default_factory=list)
    siblings: list[Counts] = field(default_factory=list)
    calibration: Calibration = field(default_factory=Calibration)
    overall: Counts = field(default_factory=Counts)

    def observe(self, trials: tuple[Trial, ...]) -> None:
        """The levels of one round, root first."""
        keep = math.exp(-1.0 / self.memory)
        for depth, trial in enumerate(trials):
            if depth == len(self.depths):
                self.depths.append(Counts())
            first = trial.rank == 0
            self.depths[depth].add(first, keep)
            self.overall.add(first, keep)
            if trial.confidence is not None:
                self.calibration.add(trial.confidence, first)
            for rank in range(1, trial.tried):
                if 0 <= trial.rank < rank:
                    break
                if rank > len(self.siblings):
                    self.siblings.append(Counts())
                self.siblings[rank - 1].add(trial.rank == rank, keep)

    def learn(self, trials: Sequence[Trial]) -> None:
        """Guesses about single positions of the text: they say how good the draft is, and what its confidence means,
        but nothing of depths."""
        keep = math.exp(-1.0 / self.memory)
        for trial in trials:
            self.overall.add(trial.rank == 0, keep)
            if trial.confidence is not None:
                self.calibration.add(trial.confidence, trial.rank == 0)

    def by_depth(self, most: int) -> list[float]:
        """Acceptance of a first child at depth 1..``most``, given that the depth is reached. A depth seldom reached is
        believed to be like the one above it, and the first one like the prior."""
        found, above = [], self.overall.mean(self.alpha, self.weight)
        for depth in range(most):
            seen = self.depths[depth] if depth < len(self.depths) else Counts()
            above = seen.mean(above, 6.0)
            found.append(above)
        return found

    def by_rank(self, first: float, count: int) -> list[float]:
        """Probability that the sibling of rank 0, 1, … is the target's choice where the first one's is ``first``."""
        left, found = 1.0 - first, [first]
        for rank in range(1, count):
            prior = SIBLINGS[min(rank, len(SIBLINGS)) - 1]
            seen = self.siblings[rank - 1] if rank <= len(self.siblings) else Counts()
            share = seen.mean(prior, 8.0)
            found.append(left * share)
            left *= 1.0 - share
        return found

    def of(self, confidence: float) -> float:
        """Acceptance of a token drafted with this ``confidence``, as it was seen of such tokens."""
        return self.calibration(confidence)

    def fade(self, share: float) -> None:
        """Let go of all but ``share`` of what was seen."""
        for counts in (*self.depths, *self.siblings, self.overall):
            counts.fade(share)

    def next_text(self) -> None:
        """Another text: how often guesses are right is forgotten, but for a third of the difference to what was
        believed of the draft. What its confidence and its second choices are worth is a property of the models, and
        half kept."""
        if self.overall.trials >= 1.0:
            self.alpha += 0.3 * (self.overall.mean(self.alpha, 2.0) - self.alpha)
        self.depths, self.overall = [], Counts()
        for counts in self.siblings:
            counts.fade(0.5)
