"""Intervals over texts drawn at random. The text is the unit: tokens of one text say little about other texts.

Every interval here is a cluster jackknife: the sums are formed again with one text left out at a time, and how much the
value moves gives its standard error. It then becomes an interval by Student's t on a scale without ends (a logit,
where the value has bounds). In simulations (texts with α of their own, 3 to 60 of them, of equal and of very unequal
length) this covered the truth more reliably than resampling texts with replacement (Davison and Hinkley 1997, §3.8) in
its percentile, expanded percentile, BCa and studentised variants, most clearly for few texts and for α near 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from foredraft.errors import InvalidValue
from foredraft.profile.counts import Sums, TextCounts, distinct, divided
from foredraft.profile.distributions import t_quantile
from foredraft.speed import NORMAL_95, Costs, Share
from foredraft.types import Floats

_NOTHING = 1e-9
"""A spread below this, as a share of the possible range, is rounding."""
_DRAWS, _SEED = 2000, 0

Function = Callable[[Sums], Floats]
"""From the sums of R samples to a value for each, float64[R]."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval over ``texts`` texts; ``low`` and ``high`` are None for a single text, which tells
    nothing about others."""

    value: float
    low: float | None
    high: float | None
    texts: int

    @property
    def half_width(self) -> float | None:
        """Half the length of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def as_json(self) -> dict[str, float | int | None]:
        """Plain types."""
        return {"value": self.value, "low": self.low, "high": self.high, "texts": self.texts}


def equal_texts(weights: Floats) -> float:
    """As how many texts of equal weight those of ``weights`` float64[n] count: (Σ w)² ÷ Σ w² (Kish 1965, §11.7).

    >>> equal_texts(np.array([5.0, 5.0, 5.0])), round(equal_texts(np.array([50.0, 1.0, 1.0])), 2)
    (3.0, 1.08)
    """
    shares = weights / weights.sum()
    return 1.0 / float(shares @ shares)


def _ends(value: float, reach: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """``value`` ± ``reach`` (quantile · standard error) by the delta method on the logit between ``bounds``; on the
    logarithm of the distance to the lower bound if the upper one is infinite; as it stands if both are."""
    low, high = bounds
    if math.isinf(low):
        return value - reach, value + reach
    if math.isinf(high):
        factor = math.exp(min(700.0, reach / (value - low)))
        return low + (value - low) / factor, low + (value - low) * factor
    centre = math.log((value - low) / (high - value))
    reach = reach * (high - low) / ((value - low) * (high - value))
    return low + (high - low) * _sigmoid(centre - reach), low + (high - low) * _sigmoid(centre + reach)


def _ratio(above: Floats, below: Floats) -> tuple[float, float]:
    """p = Σ a ÷ Σ b and its standard error, for a and b by text, float64[n], b above 0; infinite for a single text.

    The delete-one-text jackknife (for clusters: CV3 in MacKinnon, Nielsen and Webb 2023): without text i, p moves by
    (p·b_i - a_i) ÷ (Σ b - b_i); the error is √((n - 1)/n · Σ moves²).
    """
    total, count = float(below.sum()), len(below)
    value = float(above.sum()) / total
    if count < 2:
        return value, math.inf
    shares = below / total
    moves = (value * shares - above / total) / np.maximum(1.0 - shares, _NOTHING)
    return value, math.sqrt((count - 1) / count * float(moves @ moves))


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(min(700.0, -x)))


# --- shares ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextShare:
    """A share of ``trials`` trials in all, over ``texts`` texts that have any. ``error``: standard error of ``value``.
    ``equal``: see ``equal_texts``."""

    value: float
    error: float
    trials: float
    texts: int
    equal: float

    @staticmethod
    def of(hits: Floats, trials: Floats) -> TextShare | None:
        """Of ``hits`` and ``trials`` by text, float64[n] each; None if nothing was tried."""
        used = trials > 0
        if not used.any():
            return None
        trials = trials[used]
        value, error = _ratio(np.minimum(hits[used], trials), trials)
        return TextShare(min(1.0, value), error, float(trials.sum()), len(trials), equal_texts(trials))

    def estimate(self, growth: float = 1.0) -> Estimate:
        """The share with its interval; ``growth``: what it would be with so many times as many texts.

        logit p ± t · error ÷ (p·(1 - p)), with ``equal`` - 1 degrees of freedom. If texts do not differ at all (every
        token accepted, say), there is no error to go by: then Wilson's interval as if tokens were independent, its
        trials cut by (1.96 ÷ t)² for the few texts (Korn and Graubard 1998).

        Simulated with 3 to 60 texts that differ in α by a standard deviation of .02 to .16, for α from .6 to .98: it
        covers the truth 92 to 97 % of the time. Where nearly all texts are perfect and a rare one is bad (α = .98 ±
        .05) a few texts may hold no bad one: 88 to 93 % then.
        """
        if self.texts < 2:
            return Estimate(self.value, None, None, self.texts)
        quantile = t_quantile(self.equal * growth - 1.0)
        if self.error < _NOTHING or not _NOTHING < self.value < 1.0 - _NOTHING:
            trials = self.trials * growth * (NORMAL_95 / quantile) ** 2
            found = Share(self.value * trials, trials).interval()
            return Estimate(self.value, min(found.low, self.value), max(found.high, self.value), self.texts)
        low, high = _ends(self.value, quantile * self.error / math.sqrt(growth), (0.0, 1.0))
        return Estimate(self.value, low, high, self.texts)


def ratio(above: Floats, below: Floats, bounds: tuple[float, float] = (0.0, math.inf)) -> Estimate | None:
    """Σ above ÷ Σ below with its interval, from sums by text, float64[n] each: say a speed-up, from tokens and the time
    of the rounds that made them. Texts whose ``below`` is 0 are left out; None if there is no other.

    ``bounds``: as in ``Jackknife.estimate``; by default the ratio is just positive. Texts that do not differ at all
    give an interval without width.

    >>> found = ratio(np.array([90.0, 100.0, 85.0]), np.array([60.0, 70.0, 58.0]))
    >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
    (1.46, 1.37, 1.56)
    """
    used = below > 0
    if not used.any():
        return None
    value, error = _ratio(above[used], below[used])
    if used.sum() < 2:
        return Estimate(value, None, None, 1)
    quantile = t_quantile(equal_texts(below[used]) - 1.0)
    return Estimate(value, *_ends(value, quantile * error, _around(value, bounds)), int(used.sum()))


def _around(value: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """``bounds`` if ``value`` lies between them, else those of a positive number, else none."""
    if bounds[0] < value < bounds[1]:
        return bounds
    return (0.0, math.inf) if value > 0 else (-math.inf, math.inf)


# --- any function of the counts ----------------------------------------------------------------------------


class Jackknife:
    """The sums of all texts, and of all but one for each of them: formed once, asked for any number of functions.

    >>> rows = [(str(i), (60 + i,), (80,)) for i in range(12)]
    >>> texts = [TextCounts(key, "code", 90, 80, h, t, (*h, 0, 0, 0), (*t, 0, 0, 0)) for key, h, t in rows]
    >>> found = Jackknife(texts).estimate(chain_tokens(1))
    >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
    (1.82, 1.79, 1.85)
    """

    def __init__(self, texts: Sequence[TextCounts]) -> None:
        single = Sums.of(distinct(texts))
        weights = [each for each in (single.rounds, single.trials.sum(axis=1)) if each.any()]
        used = np.any([each > 0 for each in weights], axis=0) if weights else np.zeros(len(single.rows), np.bool_)
        self.texts = int(used.sum())
        self.total = single.total
        self.left_out = Sums(np.maximum(self.total.rows - single.rows[used], 0.0), single.depth)
        self._equal = min(map(equal_texts, weights), default=1.0)

    def estimate(self, function: Function, bounds: tuple[float, float] | None = None) -> Estimate | None:
        """``function`` of all texts with its interval; None without any text.

        ``bounds``: values that it cannot pass, which keeps the interval in and makes it cover near them. If none are
        given they are its values were no drafted token accepted and were all: right for what depends on acceptance
        alone (a speed-up, a tree's length) and grows with it. A value that is not between them is taken as positive, or
        as free if it is not. The function should be smooth: of "the best of several settings" ask for the best one.

        Simulated for E(4) as in ``TextShare.estimate``: it covers the truth 91 to 98 % of the time, and 86 to 94 %
        where nearly all texts are perfect.
        """
        if not self.texts:
            return None
        value = float(function(self.total)[0])
        if self.texts < 2:
            return Estimate(value, None, None, self.texts)
        moves = function(self.left_out) - value
        error = math.sqrt((self.texts - 1) / self.texts * float(moves @ moves))
        quantile = t_quantile(self._equal - 1.0)
        if error <= _NOTHING * max(abs(value), _NOTHING):
            return self._of_independent_tokens(function, value, quantile)
        around = _around(value, bounds or self._extremes(function))
        return Estimate(value, *_ends(value, quantile * error, around), self.texts)

    def _extremes(self, function: Function) -> tuple[float, float]:
        """Its values were nothing accepted of what was evaluated, and everything."""
        none, every = self.total.rows.copy(), self.total.rows.copy()
        ends = Sums(none, self.total.depth), Sums(every, self.total.depth)
        ends[0].hits[:], ends[0].band_hits[:] = 0.0, 0.0
        ends[1].hits[:], ends[1].band_hits[:] = ends[1].trials, ends[1].band_trials
        return float(function(ends[0])[0]), float(function(ends[1])[0])

    def _of_independent_tokens(self, function: Function, value: float, quantile: float) -> Estimate:
        """Where texts do not differ at all: as if tokens were independent. Acceptance by depth is drawn from its beta
        law under Jeffreys' prior, with trials cut as in ``TextShare.estimate``."""
        cut = (NORMAL_95 / quantile) ** 2
        hits, trials = self.total.hits[0], self.total.trials[0]
        random = np.random.default_rng(_SEED)
        missed = np.maximum(trials - hits, 0.0)
        drawn = Sums(np.repeat(self.total.rows, _DRAWS, axis=0), self.total.depth)
        drawn.hits[:] = random.beta(hits * cut + 0.5, missed * cut + 0.5, drawn.hits.shape) * trials
        drawn.tokens[:] += drawn.hits.sum(axis=1) - hits.sum()
        low, high = np.quantile(function(drawn), (0.025, 0.975))
        return Estimate(value, min(value, float(low)), max(value, float(high)), self.texts)


# --- functions ---------------------------------------------------------------------------------------------


def chain_tokens(length: int) -> Function:
    """E(K) for chains of K = ``length``: 1 + Σ_{k≤K} Π_{i≤k} a_i, from acceptance by depth (``speed.expected_tokens``).
    The function raises InvalidValue for a K deeper than was evaluated."""

    def tokens(sums: Sums) -> Floats:
        if not 0 <= length <= sums.depth:
            raise InvalidValue("chain length", length, f"0 to {sums.depth}, the depths that were evaluated")
        return np.asarray(1.0 + np.cumprod(sums.acceptance[:, :length], axis=1).sum(axis=1), np.float64)

    return tokens


def chain_speedup(length: int, costs: Costs) -> Function:
    """Speed-up of chains of K = ``length``: E(K) ÷ (v(K+1) + c·K + o), ``costs`` taken as exact (``speed.speedup``)."""
    tokens, spent = chain_tokens(length), costs.chain(length)

    def speedup(sums: Sums) -> Floats:
        return tokens(sums) / spent

    return speedup


def tokens_per_round(sums: Sums) -> Floats:
    """Σ tokens ÷ Σ rounds, bonus tokens included."""
    return divided(sums.tokens, sums.rounds)
