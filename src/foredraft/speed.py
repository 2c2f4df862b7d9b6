"""The speed model: what speculation gains for given acceptance and costs. Pure arithmetic.

Symbols as in docs/design: a_i acceptance at depth i, v(N) = time(N) / time(1) of the target, c = draft step ÷ target
step, o = fixed cost of a round ÷ target step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul


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
