"""Position-keyed noise: a random choice is a pure function of (seed, position, token).

Knows nothing about logits, histories or drafts.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foredraft.types import Floats, Ids, Law

TARGET, DRAFT, ACCEPT = 0, 1, 2
"""Noise streams. ``coupled`` drafts with the TARGET stream; ``residual`` needs independent ones."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_BLOCK = 64


class Noise(Protocol):
    """Source of the random choices of one request. The law tests enumerate every branch behind it."""

    def pick(self, law: Law, position: int, stream: int) -> int:
        """One draw from ``law``, keyed by (position, stream)."""
        ...

    def ranked(self, law: Law, position: int, k: int, stream: int) -> Ids:
        """Up to k draws without replacement, in the order drawn; the first one equals ``pick``."""
        ...

    def accept(self, probability: float, position: int, index: int) -> bool:
        """True with ``probability``: the ``index``-th accept test of ``position``, independent of the draws."""
        ...


def _mix(x: int) -> int:
    """SplitMix64's output function (Steele, Lea, Flood 2014, Fig. 15) on a Python integer."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def hash_ids(key: int, ids: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Counter-based bits: output ``id + 1`` of the SplitMix64 stream that starts at ``key``, uint64[S].

    Integer arithmetic modulo 2**64 only, hence the same on every platform.
    """
    with np.errstate(over="ignore"):
        x = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key)
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return x


def _to_unit(bits: NDArray[np.uint64]) -> Floats:
    """52 high bits -> the centre of one of 2**52 cells of (0, 1); never 0 or 1 (53 bits would round up to 1)."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


class GumbelNoise:
    """Gumbel noise G(seed, position, token): ``argmax(log p + G)`` is a draw from p (Gumbel-max trick), and the
    top k of it are k draws without replacement (Gumbel-top-k; Kool et al., arXiv 1903.06059, §2)."""

    def __init__(self, seed: int) -> None:
        self._seed = _mix(seed & _MASK)

    def _key(self, position: int, stream: int) -> int:
        return _mix((_mix((self._seed + position * _GOLDEN) & _MASK) + (stream + 1) * _GOLDEN) & _MASK)

    def gumbel(self, ids: NDArray[np.integer], position: int, stream: int = TARGET) -> Floats:
        """G for each of ``ids``, float64[S]."""
        unit = _to_unit(hash_ids(self._key(position, stream), ids))
        return np.asarray(-np.log(-np.log(unit)), np.float64)

    def pick(self, law: Law, position: int, stream: int = TARGET) -> int:
        """One draw: the token with the highest score + noise."""
        return int(self.ranked(law, position, 1, stream)[0])

    def ranked(self, law: Law, position: int, k: int, stream: int = TARGET) -> Ids:
        """The k tokens with the highest score + noise, best first, int32[min(k, S)]."""
        if len(law.ids) == 1:
            return law.ids
        ids, scores = self._contenders(law, position, k, stream)
        keys = scores + self.gumbel(ids, position, stream)
        if k == 1:
            return ids[[int(keys.argmax())]]
        return ids[np.argsort(-keys, kind="stable")[:k]]

    def _contenders(self, law: Law, position: int, k: int, stream: int) -> tuple[Ids, Floats]:
        """Drop tokens that cannot be among the best k, without a logarithm for each of a whole vocabulary.

        Score the ``_HEAD`` likeliest tokens; the k-th of them is a bar. Another token has a score of at most
        ``cap``, so it passes only if its noise exceeds bar - cap, which is one comparison of its raw bits.
        """
        head_size = 1024 + k
        if len(law.ids) <= 4 * head_size:
            return law.ids, law.scores
        head = largest(law.scores, head_size)
        keys = law.scores[head] + self.gumbel(law.ids[head], position, stream)
        bar = np.partition(keys, -k)[-k] - law.scores[head].min()
        threshold = max(np.exp(-np.exp(-bar)) - 2.0**-50, 0.0)  # margin for rounding of the two logarithms
        bits = hash_ids(self._key(position, stream), law.ids)
        passes = bits >= np.uint64(min(threshold * 2.0**64, 2.0**64 - 2048))
        passes[head] = True
        chosen = np.flatnonzero(passes)
        return law.ids[chosen], law.scores[chosen]

    def accept(self, probability: float, position: int, index: int) -> bool:
        """Compare a uniform number keyed by (position, index) with ``probability``."""
        return float(_to_unit(hash_ids(self._key(position, ACCEPT), np.array([index])))[0]) < probability


def largest(values: NDArray[np.floating], k: int) -> NDArray[np.intp]:
    """Indices, ascending, of a superset of the k largest ``values`` (any ties at the bar included).

    The k-th largest maximum of disjoint groups bounds the k-th largest value from below, so one pass over the array
    replaces a partition of it. NaN-free input expected.
    """
    size = len(values)
    block = min(_BLOCK, size // (2 * k))
    if block < 2:
        return np.arange(size)
    tops = values[: size // block * block].reshape(block, -1).max(axis=0)  # this way round it vectorises
    bar = np.partition(tops, -k)[-k]
    return np.flatnonzero(values >= bar)
