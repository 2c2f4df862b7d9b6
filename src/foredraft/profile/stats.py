"""What the counts say: acceptance α and tokens per round with 95 % intervals, in all and by kind, depth and position.

α is accepted ÷ evaluated drafted tokens (counting stops at the first rejection), pooled over texts: never accepted ÷
drafted, which depends on how much was drafted. Intervals are over texts (see ``intervals``). Texts are a sample of
those to come, kinds included: differences between kinds count as uncertainty of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.profile.counts import Sums, TextCounts, by_kind, distinct
from foredraft.profile.intervals import Estimate, Jackknife, TextShare, tokens_per_round
from foredraft.types import Floats


@dataclass(frozen=True, slots=True)
class Summary:
    """Of ``texts`` texts of ``tokens`` tokens in all. ``alpha`` over all depths; ``by_depth``: of depth 1..D;
    ``by_band``: by position, one for each of ``counts.BANDS``; ``per_round``: tokens a round, bonus included. None:
    nothing was evaluated there."""

    texts: int
    tokens: float
    alpha: Estimate | None
    by_depth: tuple[Estimate | None, ...]
    by_band: tuple[Estimate | None, ...]
    per_round: Estimate | None

    def as_json(self) -> dict[str, Any]:
        """Plain types."""
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "alpha": _plain(self.alpha),
            "by_depth": [_plain(each) for each in self.by_depth],
            "by_band": [_plain(each) for each in self.by_band],
            "per_round": _plain(self.per_round),
        }


def _plain(estimate: Estimate | None) -> dict[str, float | int | None] | None:
    return None if estimate is None else estimate.as_json()


def summarise(texts: Sequence[TextCounts]) -> Summary:
    """All estimates at once; texts given twice count once.

    >>> rows = [(str(i), (60 + i, 40), (80, 60 + i)) for i in range(12)]
    >>> texts = [TextCounts(key, "code", 190, 80, h, t, (sum(h), 0, 0, 0), (sum(t), 0, 0, 0)) for key, h, t in rows]
    >>> found = summarise(texts)
    >>> round(found.alpha.value, 3), [round(depth.value, 3) for depth in found.by_depth], found.by_band[1]
    (0.725, [0.819, 0.611], None)
    """
    texts = distinct(texts)
    single = Sums.of(texts)
    return Summary(
        texts=len(texts),
        tokens=float(single.tokens.sum()),
        alpha=_share(single.hits.sum(axis=1), single.trials.sum(axis=1)),
        by_depth=_columns(single.hits, single.trials),
        by_band=_columns(single.band_hits, single.band_trials),
        per_round=_per_round(texts, single),
    )


def summarise_kinds(texts: Sequence[TextCounts]) -> dict[str, Summary]:
    """``summarise`` for every kind, in order of appearance."""
    return {kind: summarise(group) for kind, group in by_kind(distinct(texts)).items()}


def alpha(texts: Sequence[TextCounts]) -> Estimate | None:
    """Σ hits ÷ Σ trials over all depths with its interval; None if nothing was evaluated."""
    single = Sums.of(distinct(texts))
    return _share(single.hits.sum(axis=1), single.trials.sum(axis=1))


def _share(hits: Floats, trials: Floats) -> Estimate | None:
    found = TextShare.of(hits, trials)
    return None if found is None else found.estimate()


def _columns(hits: Floats, trials: Floats) -> tuple[Estimate | None, ...]:
    return tuple(map(_share, hits.T, trials.T))


def _per_round(texts: Sequence[TextCounts], single: Sums) -> Estimate | None:
    """Between 1 (nothing accepted) and D + 1 (everything)."""
    if not single.rounds.any():
        return None
    return Jackknife(texts).estimate(tokens_per_round, (1.0, single.depth + 1.0))
