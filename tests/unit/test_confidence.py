"""How sure a draft is of its children, from the row that it drew them from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foredraft.errors import EngineFailure, InvalidValue
from foredraft.noise import GumbelNoise
from foredraft.sampling import History, Sampler
from foredraft.types import Rule, SamplingParams
from tests.unit.test_sampling import SOFT, logits


@pytest.mark.parametrize("k", [1, 2, 5, 40])
def test_greedy_is_the_probability_at_temperature_1(k: int) -> None:
    row = (np.random.default_rng(4).standard_normal(40) * 3).astype(np.float32)
    found = Sampler(SamplingParams()).children(row, History([0]), k)
    soft = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
    assert found.confidence == pytest.approx(soft[found.ids], rel=1e-5)
    assert list(found.confidence) == sorted(found.confidence, reverse=True)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("rule", ["residual", "relaxed"])
def test_accept_reject_is_the_probability_in_the_law(rule: Rule, k: int) -> None:
    for seed in range(20):
        sampler = Sampler(SamplingParams(temperature=0.7, top_k=3, seed=seed), rule=rule)
        ids, law, confidence = sampler.children(logits(0.0, 1.0, 0.5, -2.0), History([0]), k)
        assert law is not None
        assert confidence == pytest.approx([law.prob(int(token)) for token in ids])


@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_coupled_is_the_share_among_the_best_after_noise(k: int) -> None:
    """Of at least four rivals, whatever k is, so that a single child is not always certain."""
    sampler, history = Sampler(SOFT), History([0, 0])
    row = (np.random.default_rng(5).standard_normal(30) * 2).astype(np.float32)
    ids, law, confidence = sampler.children(row, history, k)
    soft = sampler.law(row, history)
    keys = soft.scores + GumbelNoise(SOFT.seed).gumbel(soft.ids, 2)
    order = np.argsort(-keys)
    best = np.exp(keys[order[: max(k, 4)]] - keys[order[0]])
    assert law is None and ids.tolist() == soft.ids[order[:k]].tolist()
    assert confidence == pytest.approx((best / best.sum())[:k])
    assert len(confidence) == k and list(confidence) == sorted(confidence, reverse=True)


def test_coupled_tells_clear_choices_from_close_ones() -> None:
    """A draft near to the target agrees more often where its choice is clear."""
    random = np.random.default_rng(6)
    sure, agreed = list[float](), list[bool]()
    for position in range(1, 600):
        row = (random.standard_normal(50) * 2).astype(np.float32)
        near = (row + random.standard_normal(50) * 0.4).astype(np.float32)
        sampler, history = Sampler(SOFT), History([0] * position)
        ids, _, confidence = sampler.children(near, history, 1)
        sure.append(confidence[0])
        agreed.append(int(ids[0]) == sampler.choose(row, history))
    clear = np.array(sure) > np.median(sure)
    assert np.array(agreed)[clear].mean() > np.array(agreed)[~clear].mean() + 0.2


@pytest.mark.parametrize("params", [SamplingParams(), SOFT])
@pytest.mark.parametrize("rule", ["coupled", "residual"])
def test_one_possible_token_is_certain(rule: Rule, params: SamplingParams) -> None:
    row = logits(0.0, -math.inf, -math.inf)
    ids, _, confidence = Sampler(params, rule=rule).children(row, History([0]), 3)
    assert (ids.tolist(), confidence) == ([0], (1.0,))


@pytest.mark.parametrize("params", [SamplingParams(), SOFT])
def test_hopeless_children_stay_finite(params: SamplingParams) -> None:
    """Their share may be too small for a float; it is never NaN."""
    _, _, confidence = Sampler(params).children(logits(0.0, -500.0, -3000.0), History([0]), 3)
    assert confidence[0] == pytest.approx(1.0) and all(0.0 <= each <= 1.0 for each in confidence)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("params", [SamplingParams(), SOFT])
def test_bad_rows_are_refused_whatever_k_is(params: SamplingParams, k: int) -> None:
    with pytest.raises(InvalidValue, match="-inf for every token"):
        Sampler(params, bars=[0, 1]).children(logits(0.0, 1.0), History([0]), k)
    with pytest.raises(EngineFailure, match="nan as the logit of token 1"):
        Sampler(params).children(logits(0.0, math.nan), History([0]), k)


def test_penalties_count() -> None:
    """The confidence is that of the row as it is drawn from."""
    params = SamplingParams(logit_bias={1: -100.0})
    ids, _, confidence = Sampler(params).children(logits(0.0, 5.0, 0.0), History([0]), 1)
    assert ids.tolist() == [0]
    assert confidence == pytest.approx((0.5,))
