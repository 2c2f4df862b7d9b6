"""The speed model: what speculation gains for given acceptance and costs. Pure arithmetic.

Symbols as in docs/design: a_i acceptance at depth i given that depth i was reached, v(N) = time(N) / time(1) of the
target, c = draft step ÷ target step, o = fixed cost of a round ÷ target step. All times are in target steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

from foredraft.errors import InvalidValue

NORMAL_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal law."""


def expected_tokens(acceptance: Sequence[float]) -> float:
    """E(K) = 1 + Σ_{k≤K} Π_{i≤k} a_i: tokens emitted per round of a chain, bonus included.

    For a flat α this is (1 - α^(K+1)) / (1 - α) (Leviathan et al., arXiv 2211.17192, eq. 1).

    >>> round(expected_tokens([0.7] * 7), 2)
    3.14
    """
    return 1.0 + float(sum(accumulate(acceptance, mul)))


def speedup(acceptance: Sequence[float], verify: float, draft: float, fixed: float = 0.0) -> float:
    """E(K) / (v(K+1) + c·K + o) for K = len(acceptance); ``verify`` is v(K+1), ``draft`` c, ``fixed`` o.

    With v = 1 and o = 0 this is Theorem 3.8 of arXiv 2211.17192.

    >>> round(speedup([0.7] * 7, verify=1.0, draft=0.0625), 2)
    2.19
    """
    return expected_tokens(acceptance) / (verify + draft * len(acceptance) + fixed)


def rule_of_thumb(alpha: float, length: int, ratio: float) -> float:
    """(α·K + 1) / (1 + r·(K + 1)), often quoted, kept for comparison only: the sign of its derivative does not
    depend on K, so it cannot choose K.

    >>> round(rule_of_thumb(0.7, 7, 0.0625), 2)
    3.93
    """
    return (alpha * length + 1) / (1 + ratio * (length + 1))


LONGEST_READ, RECENT = 32, 24
"""A draft that missed more than ``LONGEST_READ`` tokens reads only the ``RECENT`` last ones of them."""
AT_ONCE = 8
"""Tokens that a small model reads in about the time of one."""


def read_passes(missed: int) -> int:
    """Passes' worth of time, beyond the one that reads the last token, for a draft that was not asked while ``missed``
    other tokens were written.

    >>> [read_passes(missed) for missed in (0, 7, 8, 32, 1000)]
    [0, 0, 1, 4, 3]
    """
    return (missed if missed <= LONGEST_READ else RECENT) // AT_ONCE


# --- costs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Curve:
    """Time by width, ``widths`` ascending from 1: linear between measured widths, and beyond the last one along the
    last slope that was measured (at least flat).

    >>> v = Curve((1, 2, 8), (1.0, 1.2, 1.8))
    >>> v(1), round(v(5), 2), round(v(10), 2)
    (1.0, 1.5, 2.0)
    """

    widths: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.values) or self.widths[:1] != (1,):
            raise InvalidValue("curve widths", list(self.widths), "ascending widths from 1, with one value each")
        if any(left >= right for left, right in pairwise(self.widths)):
            raise InvalidValue("curve widths", list(self.widths), "ascending widths from 1, with one value each")
        if not all(0 < value < math.inf for value in self.values):
            raise InvalidValue("curve values", list(self.values), "positive numbers")

    def __call__(self, width: int) -> float:
        """The value at ``width`` ≥ 1."""
        at = bisect_left(self.widths, width)
        if at < len(self.widths) and self.widths[at] == width:
            return self.values[at]
        if len(self.widths) == 1:
            return self.values[0]
        beyond = at == len(self.widths)
        left, right = (at - 2, at - 1) if beyond else (at - 1, at)
        slope = (self.values[right] - self.values[left]) / (self.widths[right] - self.widths[left])
        if beyond:
            return self.values[right] + max(0.0, slope) * (width - self.widths[right])
        return self.values[left] + slope * (width - self.widths[left])

    def scaled(self, factor: float) -> Curve:
        """Every value times ``factor``."""
        return Curve(self.widths, tuple(value * factor for value in self.values))


FLAT = Curve((1,), (1.0,))
"""A width costs nothing: the classic assumption, seldom true on small machines."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a round costs, in target steps: ``verify`` v(N), ``draft`` c(N) of a draft pass of N nodes (a chain: N = 1),
    ``fixed`` o (rollback, sampling, bookkeeping)."""

    verify: Curve = FLAT
    draft: Curve | None = None
    fixed: float = 0.0

    def level(self, nodes: int) -> float:
        """One pass of the draft over ``nodes`` nodes; 0 for a draft that costs nothing (n-gram)."""
        return self.draft(nodes) if self.draft is not None else 0.0

    def chain(self, length: int) -> float:
        """v(K+1) + c·K + o.

        >>> round(Costs(Curve((1, 5), (1.0, 1.3)), Curve((1,), (0.22,))).chain(4), 2)
        2.18
        """
        return self.verify(length + 1) + self.level(1) * length + self.fixed

    def tree(self, levels: Sequence[int]) -> float:
        """v(1 + Σ levels) + Σ c(nodes fed for a level) + o; ``levels``: nodes at depth 1, 2, …

        Level d + 1 is drafted by one pass over the nodes of level d; level 1 by the pass that reads the last token.

        >>> round(Costs(Curve((1, 9), (1.0, 1.8)), Curve((1, 3), (0.2, 0.3))).tree([3, 3, 2]), 3)
        2.6
        """
        feeds = (1, *levels[:-1]) if levels else ()
        return self.verify(1 + sum(levels)) + sum(map(self.level, feeds)) + self.fixed


def chain_speedup(acceptance: Sequence[float], costs: Costs) -> float:
    """``speedup`` of a chain of K = len(acceptance) under measured costs.

    The arithmetic of the design notes: α = .85, K = 4, draft step .22 of a target step, v(5) = 1.3.

    >>> costs = Costs(Curve((1, 5), (1.0, 1.3)), Curve((1,), (0.22,)))
    >>> round(chain_speedup([0.85] * 4, costs), 2)
    1.7
    """
    return expected_tokens(acceptance) / costs.chain(len(acceptance))


def best_chain(acceptance: Sequence[float], costs: Costs, widths: Sequence[int] | None = None) -> tuple[int, float]:
    """The chain length with the highest speed-up among 0..len(acceptance), and that speed-up (1.0 for K = 0).

    ``widths``: the only widths a pass may have (None = any).

    >>> best_chain([0.9] * 8, Costs(Curve((1, 2, 9), (1.0, 5.0, 8.0))))
    (0, 1.0)
    """
    best = (0, 1.0)
    for length in range(1, len(acceptance) + 1):
        if widths is not None and length + 1 not in widths:
            continue
        gain = chain_speedup(acceptance[:length], costs)
        if gain > best[1]:
            best = (length, gain)
    return best


def break_even_alpha(costs: Costs, most: int = 8) -> float | None:
    """The smallest flat α at which some chain of 1..``most`` tokens is as fast as plain decoding; None if not even α =
    1 is.

    >>> round(break_even_alpha(Costs(Curve((1, 2), (1.0, 1.2)), Curve((1,), (0.3,))), most=1), 3)
    0.5
    >>> break_even_alpha(Costs(Curve((1, 2), (1.0, 5.0))), most=1) is None
    True
    """

    def pays(alpha: float) -> bool:
        return any(chain_speedup([alpha] * length, costs) >= 1.0 for length in range(1, most + 1))

    if not pays(1.0):
        return None
    return bisect(pays, 0.0, 1.0)


def bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where ``holds`` turns true between ``low`` and ``high`` (it is monotone and true at ``high``), to 1e-6."""
    if holds(low):
        return low
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# --- intervals ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Share:
    """``hits`` of ``trials``; both may be fractions (discounted counts)."""

    hits: float
    trials: float

    def interval(self) -> Interval:
        """Wilson's score interval (Wilson 1927), which is sane for few trials and near 0 and 1.

        >>> Share(7, 10).interval()
        Interval(value=0.7, low=0.3967..., high=0.8922...)
        """
        n, z = self.trials, NORMAL_95
        if n <= 0:
            return Interval(0.5, 0.0, 1.0)
        p = self.hits / n
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return Interval(p, max(0.0, centre - half), min(1.0, centre + half))

    @property
    def mean(self) -> float:
        """Posterior mean under a uniform prior: never 0 or 1."""
        return (self.hits + 1) / (self.trials + 2)

    @property
    def variance(self) -> float:
        """Variance of that posterior, a beta law."""
        return self.mean * (1 - self.mean) / (self.trials + 3)


def chain_interval(shares: Sequence[Share], costs: Costs, spread: float = 0.0) -> Interval:
    """Speed-up of a chain with acceptance measured as ``shares`` by depth, with its 95 % interval.

    The delta method on the logarithm: var ln S = Σ (∂E/∂a_i)² var(a_i) / E² + ``spread``², where ``spread`` is the
    relative standard error of the cost of a round. The value uses hits ÷ trials; depths are taken as independent.

    >>> found = chain_interval([Share(85, 100), Share(72, 85)], Costs(Curve((1, 3), (1.0, 1.2)), Curve((1,), (0.2,))))
    >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
    (1.61, 1.52, 1.7)
    """
    rates = [share.hits / share.trials if share.trials else 0.0 for share in shares]
    means = [share.mean for share in shares]
    tokens = expected_tokens(means)
    variance = spread * spread
    for index, share in enumerate(shares):
        above = math.prod(means[:index])
        below = expected_tokens(means[index + 1 :])
        variance += (above * below / tokens) ** 2 * share.variance
    value = chain_speedup(rates, costs)
    factor = math.exp(NORMAL_95 * math.sqrt(variance))
    return Interval(value, value / factor, value * factor)
