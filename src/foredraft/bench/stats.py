"""Means of ratios and their intervals. Pure numbers.

A ratio's mean is geometric, so that 2× and ½× cancel. Intervals come from a cluster bootstrap over prompts (percentile
method; Efron and Tibshirani 1993, ch. 13; clusters: Davison and Hinkley 1997, §3.8): prompts are drawn again with
replacement, each with all its runs, because runs of one prompt say nothing about other prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foredraft.types import Floats

RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A geometric mean over ``prompts`` prompts with its 95 % interval; no interval of a single prompt."""

    value: float
    low: float | None
    high: float | None
    prompts: int

    def as_json(self) -> dict[str, float | int | None]:
        """Plain types."""
        return {"value": self.value, "low": self.low, "high": self.high, "prompts": self.prompts}


def mean_ratio(groups: Sequence[Sequence[float]], resamples: int = RESAMPLES) -> Ratio:
    """Geometric mean of all ratios in ``groups`` (positive; at least one), each prompt weighing the same.

    A group is a kind of prompts: resampling draws as many from each as it has, since the kinds were chosen and not
    drawn; but if some kind has a single prompt, from all together. The same numbers give the same interval.

    >>> mean_ratio([[2.0, 0.5]]).value
    1.0
    >>> mean_ratio([[1.5]])
    Ratio(value=1.5, low=None, high=None, prompts=1)
    """
    logs = [np.log(np.asarray(group, np.float64)) for group in groups if len(group)]
    count = sum(len(group) for group in logs)
    value = float(np.exp(sum(group.sum() for group in logs) / count))
    if count < 2:
        return Ratio(value, None, None, count)
    if min(map(len, logs)) < 2:
        logs = [np.concatenate(logs)]
    random = np.random.default_rng(0)
    total: Floats = np.zeros(resamples)
    for group in logs:
        total += group[random.integers(0, len(group), (resamples, len(group)))].sum(axis=1)
    low, high = np.exp(np.quantile(total / count, (0.025, 0.975)))
    return Ratio(value, float(low), float(high), count)
