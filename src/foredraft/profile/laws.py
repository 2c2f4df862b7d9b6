"""The laws of a text's positions, kept small: the likeliest tokens and how much mass lies beyond them. From the laws of
target and draft follows how often the target accepts what the draft proposes, at any temperature, without a model.

P positions, k tokens kept of each, R ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import InvalidValue
from foredraft.noise import largest
from foredraft.types import Floats, Ids, Logits, Rule, SamplingParams

KEPT = 64
"""Tokens kept of each law."""
REST_POWERS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
"""Powers 1 / T at which the mass beyond the kept tokens is known: temperatures 2, 1.33, 1, .67, .5 and .33."""
_NOTHING = -1e4
"""Stands for the logarithm of 0 in files."""
_DRAWS = 16
"""Draws of noise from which the ranks of a sampled target are estimated."""
_CHUNK = 64
"""Positions worked on at once: the pairwise sums need chunk × k × 2k numbers."""


@dataclass(frozen=True, slots=True)
class Laws:
    """``ids`` int32[P, k], likeliest first; ``scores`` float32[P, k]: natural logarithms of their probabilities at
    temperature 1; ``rest`` float32[P, 6]: natural logarithm of Σ p^power over all other tokens, for each of
    ``REST_POWERS``."""

    ids: Ids
    scores: Logits
    rest: Logits

    def __post_init__(self) -> None:
        positions = len(self.ids)
        if self.ids.shape != self.scores.shape or self.rest.shape != (positions, len(REST_POWERS)):
            shapes = (self.ids.shape, self.scores.shape, self.rest.shape)
            raise InvalidValue("laws", shapes, f"[P, k], [P, k] and [P, {len(REST_POWERS)}]")

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def joined(parts: Sequence[Laws]) -> Laws:
        """All positions of ``parts``, in order."""
        return Laws(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "scores", "rest")))


def summarise(logits: Logits, kept: int = KEPT) -> Laws:
    """The laws of unprocessed logits rows, float32[P, V]; -inf bars a token. Ties go to the lower id."""
    kept = min(kept, logits.shape[1])
    ids = np.empty((len(logits), kept), np.int32)
    scores = np.empty((len(logits), kept), np.float32)
    rest = np.empty((len(logits), len(REST_POWERS)), np.float32)
    for at, row in enumerate(logits):
        ids[at], scores[at], rest[at] = _summary(row, kept)
    return Laws(ids, scores, rest)


def _summary(row: Logits, kept: int) -> tuple[Ids, Logits, Logits]:
    best = largest(row, kept)
    best = best[np.lexsort((best, -row[best]))[:kept]]  # more than asked where several are equal
    weights = np.exp(row - row[best[0]])
    top = weights[best].astype(np.float64)
    total = float(weights.sum(dtype=np.float64))
    weights[best] = 0.0
    half = np.sqrt(weights)
    squares = weights * weights
    powers = (half, half * np.sqrt(half), weights, weights * half, squares, squares * weights)
    sums = np.array([values.sum(dtype=np.float64) for values in powers])
    with np.errstate(divide="ignore"):
        scores, rest = np.log(top / total), np.log(sums) - np.log(total) * np.array(REST_POWERS)
    return best.astype(np.int32), _finite(scores), _finite(rest)


def _finite(values: Floats) -> Logits:
    return np.maximum(values, _NOTHING).astype(np.float32)


# --- laws after processing ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probs:
    """``ids`` int32[P, k] and their probabilities ``probs`` float64[P, k], likeliest first; ``tail`` float64[P]: the
    mass of tokens that were not kept."""

    ids: Ids
    probs: Floats
    tail: Floats


def processed(laws: Laws, params: SamplingParams) -> Probs:
    """The laws after temperature, top-k, top-p and min-p, in the order of ``SamplingParams``.

    Where top-p or min-p reach beyond the kept tokens, all that lies there is taken to stay. Penalties and biases need
    the text and cannot be asked of laws (InvalidValue).
    """
    if params.penalised or params.logit_bias:
        raise InvalidValue("sampling", "penalties or a logit bias", "temperature, top-k, top-p and min-p only")
    if params.greedy:
        probs = np.zeros(laws.scores.shape)
        probs[:, 0] = 1.0
        return Probs(laws.ids, probs, np.zeros(len(laws)))
    scores = laws.scores.astype(np.float64) / params.temperature
    peak = scores[:, :1]
    weights = np.exp(scores - peak)
    tail = np.exp(np.minimum(_rest(laws, 1.0 / params.temperature) - peak[:, 0], 700.0))
    stays = np.ones(weights.shape, np.bool_)
    if params.top_k > 0:
        stays[:, params.top_k :] = False
        if params.top_k <= weights.shape[1]:
            tail = np.zeros_like(tail)
    if params.top_p < 1.0:
        stays, tail = _nucleus(weights * stays, tail, params.top_p)
    if params.min_p > 0.0:
        stays &= weights >= params.min_p
        tail = np.where(weights[:, -1] >= params.min_p, tail, 0.0)
    weights = weights * stays
    total = weights.sum(axis=1) + tail
    return Probs(laws.ids, weights / total[:, None], tail / total)


def _rest(laws: Laws, power: float) -> Floats:
    """ln Σ p^power over the tokens that were not kept: a parabola through the three nearest powers at which it is
    known; beyond the last, the bound (largest p)^(power - 3) · Σ p³, the largest being at most that of the last kept
    token."""
    rest = laws.rest.astype(np.float64)
    if power > REST_POWERS[-1]:
        result = rest[:, -1] + (power - REST_POWERS[-1]) * laws.scores[:, -1]
    else:
        first = max(0, min(int(np.searchsorted(REST_POWERS, power)) - 1, len(REST_POWERS) - 3))
        known = REST_POWERS[first : first + 3]
        shares = [np.prod([(power - other) / (place - other) for other in known if other != place]) for place in known]
        result = rest[:, first : first + 3] @ np.array(shares)
    return np.where(rest.max(axis=1) <= _NOTHING / 2, -np.inf, result)


def _nucleus(weights: Floats, tail: Floats, top_p: float) -> tuple[NDArray[np.bool_], Floats]:
    """Which of the kept tokens belong to the smallest set with mass >= top_p, and the mass beyond them that does."""
    mass = np.cumsum(weights, axis=1)
    need = top_p * (mass[:, -1] + tail)
    before = mass - weights
    return (before < need[:, None]) & (weights > 0), np.where(mass[:, -1] >= need, 0.0, tail)


# --- acceptance --------------------------------------------------------------------------------------------


def acceptance(target: Probs, draft: Probs, rule: Rule, weight: float = 1.0) -> Floats:
    """Probability, float64[P], that a token drawn by the draft is accepted, given the text before it.

    ``residual``: Σ min(p, q) (Leviathan et al., arXiv 2211.17192, §3.3). ``relaxed`` with ``weight`` w: a draft's token
    is accepted with min(1, 1 - w + w·p/q), so 1 - w + w·Σ min(p, q). ``coupled``: both choose by the same Gumbel noise,
    so they agree on token i with probability 1 / Σ_j max(p_j / p_i, q_j / q_i) (exponential races; Daliri, Musco and
    Suresh, arXiv 2408.07978). Tokens beyond the kept ones count
    as never agreed on.
    """
    if len(target.ids) != len(draft.ids):
        raise InvalidValue("laws of the draft", len(draft.ids), f"as many positions as the target's, {len(target.ids)}")
    mine, others = _matched(target, draft)
    if rule != "coupled":
        overlap = np.minimum(target.probs, mine).sum(axis=1)
        return np.asarray(overlap if rule == "residual" else 1.0 - weight * (1.0 - overlap), np.float64)
    result = np.empty(len(target.ids))
    for start in range(0, len(result), _CHUNK):
        part = slice(start, start + _CHUNK)
        outside = others[part].sum(axis=1) + draft.tail[part]
        result[part] = _agreement(target.probs[part], mine[part], target.tail[part], outside)
    return result


def _agreement(p: Floats, q: Floats, p_tail: Floats, q_outside: Floats) -> Floats:
    """Σ_i 1 / Σ_j max(p_j / p_i, q_j / q_i) over tokens i that both keep; float64[P, k] each. What lies outside of the
    target's kept tokens, ``p_tail`` and ``q_outside``, is taken as one token."""
    both = (p > 0) & (q > 0)
    safe_p, safe_q = np.where(both, p, 1.0), np.where(both, q, 1.0)
    sums = np.maximum(p[:, None, :] / safe_p[:, :, None], q[:, None, :] / safe_q[:, :, None]).sum(axis=2)
    sums += np.maximum(p_tail[:, None] / safe_p, q_outside[:, None] / safe_q)
    return np.asarray((both / sums).sum(axis=1), np.float64)


def _matched(target: Probs, draft: Probs) -> tuple[Floats, Floats]:
    """The draft's probabilities of the target's kept tokens, float64[P, k], and those of its own other tokens."""
    mine = np.zeros(target.probs.shape)
    others = draft.probs.copy()
    for start in range(0, len(mine), _CHUNK):
        part = slice(start, start + _CHUNK)
        at, left, right = np.nonzero(target.ids[part, :, None] == draft.ids[part, None, :])
        mine[part][at, left] = draft.probs[part][at, right]
        others[part][at, right] = 0.0
    return mine, others


def by_rank(target: Probs, draft: Probs, ranks: int, seed: int = 0) -> Floats:
    """Probability, float64[P, R], that the target's choice is the draft's guess of rank 0, 1, …, under the rule
    ``coupled``: counted for a greedy target, estimated from draws of noise for a sampled one."""
    certain = bool((target.probs[:, 0] == 1.0).all())
    random = np.random.default_rng(seed)
    draws = 1 if certain else _DRAWS
    found = np.zeros((len(target.ids), ranks))
    mine, others = _matched(target, draft)
    with np.errstate(divide="ignore"):
        p, q, alone = np.log(target.probs), np.log(mine), np.log(others)
        tail = np.log(target.tail)
    for _ in range(draws):
        noise = np.zeros_like(p) if certain else random.gumbel(size=p.shape)
        spare = np.zeros_like(p) if certain else random.gumbel(size=p.shape)
        chosen = (p + noise).argmax(axis=1)
        best = np.take_along_axis(p + noise, chosen[:, None], 1)[:, 0]
        lost = np.isneginf(q[np.arange(len(q)), chosen]) | (tail + spare[:, 0] > best)
        own = np.take_along_axis(q + noise, chosen[:, None], 1)
        rank = ((q + noise) > own).sum(axis=1) + ((alone + spare) > own).sum(axis=1)
        for wanted in range(ranks):
            found[:, wanted] += (rank == wanted) & ~lost
    return found / draws


def at_temperature(params: SamplingParams, temperature: float) -> SamplingParams:
    """The same settings at another temperature."""
    return replace(params, temperature=temperature)
