"""Is acceptance the same at every depth, along a text, from the first prompt to the last? Tests, how much it matters,
and a sentence each.

Depths and positions are tested by random signs of whole texts, the order of prompts by permuting it. With fewer than
``FEWEST_TEXTS`` texts no p-value is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foredraft.profile.counts import BANDS, Sums, TextCounts, distinct, divided
from foredraft.speed import expected_tokens
from foredraft.types import Floats

FLIPS = 1999
"""Random signs, or permutations, of a test."""
FEWEST_TEXTS = 6
"""With fewer texts no outcome of a test by signs is rarer than .05: 2 ÷ 2^5."""
UNLIKELY = 0.05
MATTERS = 0.02
"""A flat α that is wrong by less than this share, or an α that moves by less than this, is said not to matter."""
_SEED = 1


def flip_test(scores: Floats) -> float | None:
    """p-value of "every column adds up to zero in expectation" for float64[n, q], rows independent of each other.

    Σ_c (Σ_i s_ic)² ÷ Σ_i s_ic² is set against its values when whole rows get random signs (the wild bootstrap of
    scores, with Rademacher signs; Kline and Santos 2012): texts with correlated tokens, unequal lengths and correlated
    columns need no model. None for fewer than ``FEWEST_TEXTS`` rows.

    >>> flip_test(np.ones((12, 1))) < 0.01
    True
    """
    if len(scores) < FEWEST_TEXTS:
        return None
    squares = (scores**2).sum(axis=0)
    scores = scores[:, squares > 0] / np.sqrt(squares[squares > 0])
    seen = float((scores.sum(axis=0) ** 2).sum())
    signs = np.random.default_rng(_SEED).integers(0, 2, (FLIPS, len(scores))) * 2.0 - 1.0
    flipped = ((signs @ scores) ** 2).sum(axis=1)
    return float(1 + np.count_nonzero(flipped >= seen - 1e-9)) / (1 + FLIPS)


def _group_scores(hits: Floats, trials: Floats) -> Floats:
    """By text and group (depth or band), both float64[n, G]: what the text adds to H_g - α·T_g, less what it adds to it
    by moving the common α, so that a score has no first-order error from α being estimated."""
    total = trials.sum()
    missed = hits - float(hits.sum() / total) * trials
    return np.asarray(missed - missed.sum(axis=1, keepdims=True) * (trials.sum(axis=0) / total), np.float64)


# --- depth -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DepthCheck:
    """Of the geometric assumption, that acceptance is ``alpha`` at every depth. ``p``: how likely differences as large
    as these would be if it held (None: too few texts, or depths). ``error``: E(K) from the flat α ÷ E(K) from
    acceptance by depth, less 1, at the K = ``length`` where it is furthest from 0."""

    p: float | None
    alpha: float | None
    by_depth: tuple[float, ...]
    error: float
    length: int
    sentence: str


def check_depths(texts: Sequence[TextCounts]) -> DepthCheck:
    """The test, the size of the error and a sentence.

    Pooled over texts acceptance rises with depth even if each text has its own constant one, since only texts with a
    high one get far: for predictions that is the same mistake, so it counts as one.
    """
    single = Sums.of(distinct(texts))
    used = single.trials.sum(axis=0) > 0
    hits, trials = single.hits[:, used], single.trials[:, used]
    if not used.any():
        return DepthCheck(None, None, (), 0.0, 0, "no drafted token was evaluated, so acceptance by depth is unknown")
    alpha = float(hits.sum() / trials.sum())
    by_depth = tuple((hits.sum(axis=0) / trials.sum(axis=0)).tolist())
    errors = [flat_error(alpha, by_depth[:length]) for length in range(1, len(by_depth) + 1)]
    error, length = max(((error, length) for length, error in enumerate(errors, 1)), key=lambda pair: abs(pair[0]))
    some = trials.any(axis=1)
    p = flip_test(_group_scores(hits, trials)[some]) if len(by_depth) > 1 else None
    check = DepthCheck(p, alpha, by_depth, error, length, "")
    return DepthCheck(p, alpha, by_depth, error, length, _depth_sentence(check, int(some.sum())))


def flat_error(alpha: float, by_depth: Sequence[float]) -> float:
    """E(K) of a flat ``alpha`` ÷ E(K) of acceptance ``by_depth``, less 1, for K = len(by_depth).

    >>> round(flat_error(0.7, [0.6, 0.75, 0.85]), 3)
    0.041
    """
    return expected_tokens([alpha] * len(by_depth)) / expected_tokens(by_depth) - 1.0


def _depth_sentence(check: DepthCheck, texts: int) -> str:
    assert check.alpha is not None
    if len(check.by_depth) < 2:
        return "only one depth was evaluated, so whether acceptance depends on depth is unknown"
    way = "high" if check.error > 0 else "low"
    size = f"{abs(check.error):.1%} too {way} at K = {check.length}"
    if check.p is None:
        return (
            f"too few texts ({texts}) to test whether acceptance is the same at every depth; here a flat α of "
            f"{digits(check.alpha)} puts tokens per round {size}"
        )
    if check.p >= UNLIKELY:
        return f"no sign that acceptance depends on depth ({chance(check.p)}); a flat α puts tokens per round {size}"
    ends = f"{digits(check.by_depth[0])} at depth 1, {digits(check.by_depth[-1])} at depth {len(check.by_depth)}"
    if abs(check.error) < MATTERS:
        return (
            f"acceptance differs by depth ({chance(check.p)}: {ends}), which hardly matters: a flat α of "
            f"{digits(check.alpha)} puts tokens per round {size}"
        )
    return (
        f"acceptance is not the same at every depth ({chance(check.p)}: {ends}); a flat α of {digits(check.alpha)} "
        f"would put tokens per round {size}, so go by acceptance by depth"
    )


# --- drift -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DriftCheck:
    """``order_p``: of α being the same from the first prompt to the last, within kinds; ``change``: by how much it
    moves from first to last along a straight line. ``position_p``: of α being the same in every band of positions;
    ``by_band``: α there (None: nothing was evaluated). p-values are None where that cannot be told."""

    order_p: float | None
    change: float
    position_p: float | None
    by_band: tuple[float | None, ...]
    sentence: str


def check_drift(texts: Sequence[TextCounts]) -> DriftCheck:
    """Both tests and a sentence; ``texts`` stand in the order in which their prompts were given."""
    texts = distinct(texts)
    single = Sums.of(texts)
    hits, trials = single.hits.sum(axis=1), single.trials.sum(axis=1)
    if not trials.any():
        return DriftCheck(None, 0.0, None, (None,) * len(BANDS), "no drafted token was evaluated, so drift is unknown")
    some = trials > 0
    order_p, change = _check_order(np.array([text.kind for text in texts])[some], hits[some], trials[some])
    position_p, by_band = _check_bands(single)
    count = int(some.sum())
    sentence = f"{_order_sentence(order_p, change, count)}; {_position_sentence(position_p, by_band, count)}"
    return DriftCheck(order_p, change, position_p, by_band, sentence)


def _check_order(kinds: NDArray[np.str_], hits: Floats, trials: Floats) -> tuple[float | None, float]:
    """p-value and slope of α over the order of texts (0 to 1), by least squares weighted by trials. Each kind has a
    level of its own, so that prompts sorted by kind do not drift for that.

    The order is permuted within kinds, which is exact if texts of a kind are exchangeable (Davison and Hinkley 1997,
    §4.3). Σ x·(h - α·t) is the slope's numerator whatever x is centred on, because Σ (h - α·t) is 0 in each kind.
    """
    at = np.linspace(0.0, 1.0, len(hits))
    random = np.random.default_rng(_SEED)
    seen, spread, permuted = 0.0, 0.0, np.zeros(FLIPS)
    for kind in np.unique(kinds):
        own = kinds == kind
        total = float(trials[own].sum())
        missed = hits[own] - float(hits[own].sum()) / total * trials[own]
        off = at[own] - float(at[own] @ trials[own]) / total
        seen += float(off @ missed)
        spread += float(off * off @ trials[own])
        permuted += [float(off @ random.permutation(missed)) for _ in range(FLIPS)]
    change = seen / spread if spread > 0 else 0.0
    if len(hits) < FEWEST_TEXTS:
        return None, change
    return float(1 + np.count_nonzero(np.abs(permuted) >= abs(seen) - 1e-9)) / (1 + FLIPS), change


def _check_bands(single: Sums) -> tuple[float | None, tuple[float | None, ...]]:
    tried = single.band_trials.sum(axis=0)
    alphas = divided(single.band_hits.sum(axis=0), tried).tolist()
    by_band = tuple(alpha if count > 0 else None for alpha, count in zip(alphas, tried.tolist(), strict=True))
    used = tried > 0
    if used.sum() < 2:
        return None, by_band
    hits, trials = single.band_hits[:, used], single.band_trials[:, used]
    return flip_test(_group_scores(hits, trials)[trials.any(axis=1)]), by_band


def _order_sentence(p: float | None, change: float, texts: int) -> str:
    if p is None:
        return f"too few texts ({texts}) to see whether α drifts from prompt to prompt"
    if p >= UNLIKELY:
        return f"no sign that α drifts from the first prompt to the last ({chance(p)})"
    way = "rises" if change > 0 else "falls"
    return (
        f"α {way} by {digits(abs(change))} from the first prompt to the last ({chance(p)}), so the prompts are not one "
        "sample: profile recent ones"
    )


def _position_sentence(p: float | None, by_band: Sequence[float | None], texts: int) -> str:
    known = [(alpha, index) for index, alpha in enumerate(by_band) if alpha is not None]
    if len(known) < 2:
        return "texts are too short to see whether α changes along them"
    if p is None:
        return f"too few texts ({texts}) to see whether it changes along a text"
    if p >= UNLIKELY:
        return f"no sign that it changes along a text ({chance(p)})"
    (low, low_band), (high, high_band) = min(known), max(known)
    words = (
        f"α changes along a text ({chance(p)}): {digits(low)} {_place(low_band)}, {digits(high)} {_place(high_band)}"
    )
    if high - low < MATTERS:
        return f"{words}, which hardly matters"
    return f"{words}, so texts of another length will have another α"


def _place(band: int) -> str:
    """
    >>> _place(1), _place(3)
    ('in tokens 32–127', 'from token 512 on')
    """
    if band + 1 == len(BANDS):
        return f"from token {BANDS[band]} on"
    return f"in tokens {BANDS[band]}–{BANDS[band + 1] - 1}"


# --- words -------------------------------------------------------------------------------------------------


def digits(share: float, places: int = 2) -> str:
    """A share without its leading 0.

    >>> digits(0.7), digits(1.0), digits(0.0432, 3)
    ('.70', '1.00', '.043')
    """
    return f"{share:.{places}f}".removeprefix("0")


def chance(p: float) -> str:
    """
    >>> chance(0.0005), chance(0.0312), chance(0.4)
    ('p < .001', 'p = .031', 'p = .40')
    """
    return "p < .001" if p < 0.001 else f"p = {digits(p, 3 if p < 0.1 else 2)}"
