"""Synthetic machines and texts on which controllers are compared; curves are like the ones measured on real engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from foredraft.control import Controller, Fixed, fixed
from foredraft.speed import Curve
from foredraft.types import Budget
from tests.support.simulator import Source, World, latent, source

Alpha = Callable[[int], float]

TILED = Curve((1, 2, 4, 8, 9, 16, 17, 32), (0.050, 0.070, 0.074, 0.080, 0.125, 0.135, 0.190, 0.260))
STEEP = Curve((1, 2, 4, 8, 16, 32), (0.100, 0.140, 0.210, 0.340, 0.460, 0.900))
FLAT = Curve((1, 8, 16, 32), (0.040, 0.042, 0.046, 0.060))
CLIFF = Curve((1, 2, 32), (0.040, 0.200, 0.900))
MODEL_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15)


def always(alpha: float) -> Alpha:
    return lambda position: alpha


def halves(first: float, second: float, at: int) -> Alpha:
    return lambda position: first if position < at else second


def stretches(high: float, low: float, size: int) -> Alpha:
    return lambda position: high if position // size % 2 == 0 else low


@dataclass(frozen=True)
class Scenario:
    """``cost``: a model draft's pass ÷ target step (None: there is none); ``spread`` and ``honest``: see ``latent`` and
    ``source``; ``copies``: acceptance of an n-gram draft, which is silent where it is 0; ``trees``: whether trees are
    among the arms; ``drifts``: no single arm is good all the time."""

    name: str
    curve: Curve
    cost: float | None = None
    alpha: Alpha = field(default_factory=lambda: always(0.7))
    spread: float = 0.1
    honest: float = 0.6
    copies: Alpha | None = None
    load: Alpha = field(default_factory=lambda: always(1.0))
    trees: bool = False
    drifts: bool = False
    length: int = 1200

    def world(self, seed: int) -> World:
        random = np.random.default_rng(seed)
        sources = []
        if self.copies is not None:
            sources.append(self._copying(random))
        if self.cost is not None:
            chances = latent(self.alpha, self.length, self.spread, random)
            sources.append(source("model", self.cost * self.curve(1), chances, random, self.honest))
        load = np.array([self.load(at) for at in range(self.length)])
        return World(self.curve, tuple(sources), load, 0.03, 0.01 * self.curve(1), seed)

    def _copying(self, random: np.random.Generator) -> Source:
        assert self.copies is not None
        chances = np.array([self.copies(at) for at in range(self.length)])
        made = source("ngram", 0.0, np.clip(chances, 0.001, 0.999), random, 0.8)
        return Source(made.name, 0.0, made.ranks, made.confidence, chances > 0)

    def arms(self) -> Iterator[tuple[str, Controller, tuple[str, ...]]]:
        """The fixed settings a user could have chosen, with the drafts they ask."""
        yield "off", Fixed(), ()
        if self.cost is not None:
            yield from ((f"model K={k}", fixed(k), ("model",)) for k in MODEL_LENGTHS)
        if self.copies is not None:
            yield from ((f"ngram K={k}", fixed(k), ("ngram",)) for k in (2, 4, 7, 15))
        if self.copies is not None and self.cost is not None:
            yield from ((f"ngram+model K={k}", fixed(k), ("ngram", "model")) for k in (2, 4, 7))
        if self.trees:
            yield from (
                (f"tree n={n}", Fixed(Budget(n, depth, 4)), ("model",))
                for n, depth in ((4, 3), (7, 4), (15, 5), (31, 6))
            )


SCENARIOS = (
    Scenario("a cheap head on an accelerator", FLAT, 0.06, always(0.7)),
    Scenario("a good draft on an accelerator", FLAT, 0.10, always(0.85)),
    Scenario("code on the phone's CPU", TILED, 0.25, always(0.88)),
    Scenario("chat on the phone's CPU", TILED, 0.25, always(0.6)),
    Scenario("a heavy draft, code, a steep curve", STEEP, 0.40, always(0.92)),
    Scenario("a heavy draft, chat, a steep curve", STEEP, 0.40, always(0.5)),
    Scenario("two positions cost five", CLIFF, 0.25, always(0.9)),
    Scenario("a draft that is always wrong", TILED, 0.25, always(0.0)),
    Scenario("a draft that knows when it is right", TILED, 0.25, always(0.65), spread=0.8, honest=0.9),
    Scenario("a draft that does not know when it is right", TILED, 0.25, always(0.65), spread=0.8, honest=0.0),
    Scenario("copying now and then", TILED, copies=stretches(0.93, 0.0, 60)),
    Scenario("copies that are mostly wrong", TILED, copies=always(0.05)),
    Scenario("copying and a model", TILED, 0.25, always(0.7), copies=stretches(0.93, 0.0, 60)),
    Scenario("the machine becomes half as fast", TILED, 0.25, always(0.85), load=halves(1.0, 2.0, 600)),
    Scenario("trees on an accelerator", FLAT, 0.12, always(0.5), trees=True),
    Scenario("good, then hopeless", TILED, 0.25, halves(0.95, 0.05, 600), drifts=True),
    Scenario("hopeless, then good", TILED, 0.25, halves(0.05, 0.95, 600), drifts=True),
    Scenario("good and hopeless in turns", TILED, 0.25, stretches(0.95, 0.1, 200), drifts=True),
    Scenario("good and hopeless in turns, a steep curve", STEEP, 0.20, stretches(0.97, 0.1, 200), drifts=True),
)


@dataclass(frozen=True)
class Traffic:
    """Many short answers, one after the other, by one controller. ``parts``: what kinds of text there are, in turns."""

    name: str
    parts: tuple[Scenario, ...]
    answers: int = 24
    tokens: int = 64

    def worlds(self, seed: int) -> list[World]:
        return [
            replace(self.parts[number % len(self.parts)], length=self.tokens).world(1000 * seed + number)
            for number in range(self.answers)
        ]


def _phone(alpha: float, copies: Alpha | None = None, cost: float = 0.42) -> Scenario:
    """A text on the phone's CPU with a draft of ``cost``, which may also copy."""
    return Scenario("", TILED, cost, always(alpha), spread=0.5, copies=copies or always(0.0))


TRAFFIC = (
    Traffic("code, short answers", (_phone(0.9),)),
    Traffic("edits, short answers", (_phone(0.85, stretches(0.93, 0.0, 20)), _phone(0.8, stretches(0.9, 0.0, 12)))),
    Traffic("chat, short answers", (_phone(0.55),)),
    Traffic("hopeless, short answers", (_phone(0.02),)),
    Traffic("everything, short answers", (_phone(0.9), _phone(0.55), _phone(0.85, stretches(0.93, 0.0, 20)))),
)
