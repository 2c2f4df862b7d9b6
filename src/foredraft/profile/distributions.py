"""Student's t law with any number of degrees of freedom, whole or not. Pure numbers."""

from __future__ import annotations

import math
from functools import lru_cache

from foredraft.speed import bisect

_STEPS, _TINY, _CLOSE = 500, 1e-300, 1e-15


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), the regularised incomplete beta function, for 0 ≤ x ≤ 1 and positive a, b.

    By its continued fraction (DLMF 8.17.22, https://dlmf.nist.gov/8.17.E22), on the side where that converges fast.

    >>> round(incomplete_beta(0.3, 2.0, 1.0), 12)
    0.09
    """
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(scale) / a * _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """1/(1+ d1/(1+ d2/(1+ …))) by the modified Lentz method (Thompson and Barnett 1986)."""
    above, below = 1.0, 1.0 / ((1.0 - (a + b) * x / (a + 1)) or _TINY)
    result = below
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            below = 1.0 / ((1.0 + step * below) or _TINY)
            above = (1.0 + step / above) or _TINY
            result *= above * below
        if abs(above * below - 1.0) < _CLOSE:
            break
    return result


def two_sided(t: float, freedom: float) -> float:
    """P(|T| ≥ |t|) of Student's law: I_{ν/(ν+t²)}(ν/2, 1/2), ν = ``freedom`` > 0 (Abramowitz and Stegun 1964,
    26.7.1).

    >>> round(two_sided(2.2281, 10), 4)
    0.05
    """
    return incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def t_quantile(freedom: float) -> float:
    """The t with P(|T| ≥ t) = .05; ``freedom`` is taken as 1 at least, and to two decimals.

    >>> round(t_quantile(11), 3), round(t_quantile(1), 3), round(t_quantile(1e9), 3)
    (2.201, 12.706, 1.96)
    """
    return _quantile(round(max(1.0, freedom), 2))


@lru_cache(maxsize=8192)
def _quantile(freedom: float) -> float:
    return bisect(lambda t: two_sided(t, freedom) <= 0.05, 1.9, 13.0)
