"""How many more prompts it takes to know α well enough, from how much texts differ. Arithmetic and a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.errors import InvalidValue
from foredraft.profile.checks import digits
from foredraft.profile.counts import Sums, TextCounts, distinct
from foredraft.profile.intervals import TextShare

GOAL = 0.02
"""Half the width of the interval of α that is asked for."""
FEWEST_TEXTS = 10
"""From fewer texts their spread is known to no better than ± 24 % (1 ÷ √(2·(n - 1))), the count needed to ± 48 %."""
_MOST_GROWTH = 1e9


@dataclass(frozen=True, slots=True)
class SampleSize:
    """``texts`` had trials; they give α ± ``half_width`` (None: fewer than 2). ``more``: further prompts like these for
    ± ``goal``, 0 if it is met, None if that cannot be told."""

    goal: float
    texts: int
    half_width: float | None
    more: int | None
    sentence: str


def sample_size(texts: Sequence[TextCounts], goal: float = GOAL) -> SampleSize:
    """How many more prompts until half the 95 % interval of α is ``goal``; InvalidValue if that is not in (0, .5).

    The standard error falls with the root of the number of texts, and t with its degrees of freedom, if further texts
    differ as much as these: the number is a rough one, and given to two digits.
    """
    if not 0 < goal < 0.5:
        raise InvalidValue("goal", goal, "a half width in (0, 0.5), such as 0.02")
    single = Sums.of(distinct(texts))
    found = TextShare.of(single.hits.sum(axis=1), single.trials.sum(axis=1))
    if found is None:
        return SampleSize(goal, 0, None, None, "no drafted token was evaluated, so α is unknown")
    half = found.estimate().half_width
    more: int | None = None
    if half is not None and found.texts >= FEWEST_TEXTS:
        more = rounded_up(found.texts * (_growth(found, goal) - 1.0)) if half > goal else 0
    return SampleSize(goal, found.texts, half, more, _sentence(found.texts, half, goal, more))


def _growth(found: TextShare, goal: float) -> float:
    """How many times as many texts give ± ``goal``, by bisection on the logarithm; the width falls as texts grow."""
    low, high = 0.0, math.log(_MOST_GROWTH)
    while high - low > 1e-4:
        middle = (low + high) / 2
        half = found.estimate(math.exp(middle)).half_width
        low, high = (middle, high) if half is None or half > goal else (low, middle)
    return math.exp(high)


def rounded_up(count: float) -> int:
    """To two digits, upwards, and at least 1: more digits would pretend.

    >>> rounded_up(0.2), rounded_up(34.1), rounded_up(217)
    (1, 35, 220)
    """
    whole = max(1, math.ceil(count))
    unit = int(10 ** max(0, len(str(whole)) - 2))
    return -(-whole // unit) * unit


def _sentence(texts: int, half: float | None, goal: float, more: int | None) -> str:
    wanted = f"± {digits(goal).rstrip('0')}" if digits(goal) != ".00" else f"± {goal:g}"
    prompts = f"{texts} prompt{'s' if texts != 1 else ''}"
    if half is None:
        return f"one prompt says nothing about others: how many more {wanted} needs is unknown; give at least 10"
    known = f"α is known to ± {digits(half, 3)} from {prompts}"
    if more == 0:
        return f"{known}, which is good enough ({wanted})"
    if more is None:
        return f"{known}; how many more {wanted} needs cannot be known from so few, only from {FEWEST_TEXTS} on"
    return f"{known}; {wanted} needs {more} more prompt{'s' if more != 1 else ''}"
