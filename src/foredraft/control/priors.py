"""What a controller believes before it has seen anything: measured costs of a machine, acceptance of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from foredraft.speed import Curve

GUESSED = Curve((1, 2, 4, 8, 16, 32), (1.0, 1.3, 1.5, 2.0, 3.2, 5.5))
"""A verify curve between what CPUs were measured to do, for as long as nothing is measured."""


@dataclass(frozen=True, slots=True)
class SourcePriors:
    """``cost``: one draft pass ÷ one target step, None for a draft without a model; ``alpha``: acceptance of a first
    drafted token, ``weight``: how many trials that belief is worth."""

    cost: float | None = None
    alpha: float = 0.6
    weight: float = 2.0


NGRAM = SourcePriors(alpha=0.5)
"""Of copies from the text."""


@dataclass(frozen=True, slots=True)
class Priors:
    """``curve``: v(N) of the target; ``measured``: whether it comes from this machine; ``sources``: drafters by name,
    in the order in which they are to be asked (those without a model first)."""

    curve: Curve = GUESSED
    measured: bool = False
    step_seconds: float | None = None
    sources: Mapping[str, SourcePriors] = field(default_factory=lambda: {"ngram": NGRAM})
