"""Noise that walks through every branch of a random computation, with exact weights: no sampling, no seeds.

Each random number is one uniform on [0, 1), known only as far as it was asked about: a draw splits the interval it
is known to lie in at the law's cumulative sums. So the same key asked twice gives the same answer, and a draft and a
target that share a key are coupled. Knows nothing about drafts or verification.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from math import prod
from typing import TypeVar

import numpy as np

from foredraft.noise import Noise
from foredraft.types import Floats, Ids, Law

Outcome = TypeVar("Outcome", bound=Hashable)

NEGLIGIBLE = 1e-15
"""Pieces of an interval this narrow come from rounding and are left out."""

MAX_RUNS = 200_000
"""More branches than this is a mistake in a test, not a law worth waiting for."""


class EnumeratedNoise:
    """One branch of the computation. ``script`` says which way to go at each of the first forks; the first way is
    taken at all later ones."""

    def __init__(self, script: list[int]) -> None:
        self._script = script
        self._forks: list[tuple[int, int]] = []  # (way taken, number of ways)
        self._known: dict[tuple[str, int, int, int], tuple[float, float]] = {}

    def pick(self, law: Law, position: int, stream: int) -> int:
        """One draw from ``law``."""
        return int(self.ranked(law, position, 1, stream)[0])

    def ranked(self, law: Law, position: int, k: int, stream: int) -> Ids:
        """Sequential draws without replacement, one uniform each; the first is shared with ``pick``."""
        left = law.probs()
        drawn: list[int] = []
        while len(drawn) < k and left.sum() > 0.0:
            index = self._draw(("draw", position, stream, len(drawn)), left / left.sum())
            drawn.append(int(law.ids[index]))
            left[index] = 0.0
        return np.array(drawn, np.int32)

    def accept(self, probability: float, position: int, index: int) -> bool:
        """True on the part [0, probability) of the uniform keyed by (position, index)."""
        assert 0.0 <= probability <= 1.0, probability
        return self._draw(("accept", position, index, 0), np.array([probability, 1.0 - probability])) == 0

    @property
    def weight(self) -> float:
        """Probability of the branch taken."""
        return prod(high - low for low, high in self._known.values())

    def next_script(self) -> list[int] | None:
        """The next branch in depth-first order, None after the last."""
        assert len(self._forks) >= len(self._script), "the computation is not a function of its noise"
        forks = self._forks.copy()
        while forks and forks[-1][0] + 1 == forks[-1][1]:
            forks.pop()
        if not forks:
            return None
        ways = [way for way, _ in forks]
        return [*ways[:-1], ways[-1] + 1]

    def _draw(self, key: tuple[str, int, int, int], probs: Floats) -> int:
        low, high = self._known.get(key, (0.0, 1.0))
        edges = [0.0, *np.cumsum(probs).tolist()]
        edges[-1] = 1.0
        pieces = [
            (index, max(low, edges[index]), min(high, edges[index + 1]))
            for index in range(len(probs))
            if min(high, edges[index + 1]) - max(low, edges[index]) > NEGLIGIBLE
        ]
        index, left, right = pieces[self._fork(len(pieces))]
        self._known[key] = (left, right)
        return index

    def _fork(self, ways: int) -> int:
        if ways == 1:
            return 0
        depth = len(self._forks)
        way = self._script[depth] if depth < len(self._script) else 0
        assert way < ways, "the computation is not a function of its noise"
        self._forks.append((way, ways))
        return way


def law_of(run: Callable[[Noise], Outcome]) -> dict[Outcome, float]:
    """The exact law of ``run``'s outcome, found by running it once for every branch."""
    law: dict[Outcome, float] = {}
    script: list[int] | None = []
    runs = 0
    while script is not None:
        noise = EnumeratedNoise(script)
        outcome = run(noise)
        law[outcome] = law.get(outcome, 0.0) + noise.weight
        script = noise.next_script()
        runs += 1
        assert runs < MAX_RUNS, "too many branches"
    return law


def difference(one: Mapping[Outcome, float], other: Mapping[Outcome, float]) -> float:
    """Largest absolute difference of two laws' probabilities over all outcomes of either."""
    return max(abs(one.get(outcome, 0.0) - other.get(outcome, 0.0)) for outcome in {*one, *other})


def total_variation(one: Mapping[Outcome, float], other: Mapping[Outcome, float]) -> float:
    """Half the L1 distance."""
    return 0.5 * sum(abs(one.get(outcome, 0.0) - other.get(outcome, 0.0)) for outcome in {*one, *other})
