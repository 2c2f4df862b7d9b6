"""The kept part of a law answers what the whole law would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import InvalidValue
from foredraft.profile.laws import Laws, acceptance, by_rank, processed, summarise
from foredraft.sampling import History, Sampler
from foredraft.types import Floats, Logits, Rule, SamplingParams

VOCAB = 3000


def rows(seed: int, count: int = 12, sharp: float = 3.0, vocab: int = VOCAB) -> Logits:
    return (np.random.default_rng(seed).standard_normal((count, vocab)) * sharp).astype(np.float32)


def whole(row: Logits, params: SamplingParams) -> Floats:
    """The law of the real sampler, dense."""
    law = Sampler(params).law(row, History([0]))
    dense = np.zeros(len(row))
    dense[law.ids] = law.probs()
    return dense


def kept(row: Logits, params: SamplingParams) -> tuple[Floats, float]:
    found = processed(summarise(row[None]), params)
    dense = np.zeros(len(row))
    dense[found.ids[0]] = found.probs[0]
    return dense, float(found.tail[0])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.8, top_k=20),
        SamplingParams(temperature=0.8, top_p=0.9),
        SamplingParams(temperature=1.0, min_p=0.05),
        SamplingParams(temperature=0.9, top_k=40, top_p=0.8, min_p=0.02),
        SamplingParams(temperature=0.05),
    ],
    ids=str,
)
def test_processed_laws_are_the_samplers(params: SamplingParams) -> None:
    for row in rows(1):
        found, tail = kept(row, params)
        expected = whole(row, params)
        assert found == pytest.approx(expected * (found > 0), abs=5e-3)
        assert tail == pytest.approx(expected[found == 0].sum(), abs=5e-3)


@pytest.mark.parametrize(
    ("temperature", "error"), [(0.2, 0.01), (0.4, 0.01), (0.6, 0.01), (0.8, 0.01), (1.3, 0.01), (1.7, 0.01)]
)
def test_the_mass_beyond_is_known_between_temperatures(temperature: float, error: float) -> None:
    """Real vocabularies are large: much lies beyond 64 tokens when it is hot."""
    for row in rows(2, sharp=2.0, vocab=30_000):
        _, tail = kept(row, SamplingParams(temperature=temperature))
        full = whole(row, SamplingParams(temperature=temperature))
        beyond = 1.0 - np.sort(full)[-64:].sum()
        assert tail == pytest.approx(beyond, abs=error)


def test_penalties_cannot_be_asked() -> None:
    with pytest.raises(InvalidValue, match="temperature, top-k, top-p and min-p only"):
        processed(summarise(rows(1)), SamplingParams(temperature=1.0, presence_penalty=1.0))


def test_ties_barred_tokens_and_small_vocabularies() -> None:
    row = np.full((1, 100), 2.0, np.float32)
    assert summarise(row).ids[0].tolist() == list(range(64)), "the lower id first"
    row[0, 10:] = -np.inf
    found = processed(summarise(row), SamplingParams(temperature=1.0))
    assert found.probs[0].sum() == pytest.approx(1.0) and found.tail[0] == 0.0
    assert found.probs[0, :10] == pytest.approx(0.1)
    assert summarise(np.zeros((2, 5), np.float32)).ids.shape == (2, 5)


def laws_of(p: Floats, q: Floats) -> tuple[Laws, Laws]:
    """Two laws over a tiny vocabulary, both kept whole."""
    return summarise(np.log(p).astype(np.float32)[None]), summarise(np.log(q).astype(np.float32)[None])


@given(st.integers(0, 10_000), st.sampled_from([2, 3, 6]))
def test_coupled_acceptance_is_how_often_the_same_noise_agrees(seed: int, size: int) -> None:
    """Against a sum over which token wins the race of exponentials, by direct integration on a grid of draws."""
    random = np.random.default_rng(seed)
    p, q = random.dirichlet(np.ones(size)), random.dirichlet(np.ones(size))
    mine, other = laws_of(p, q)
    params = SamplingParams(temperature=1.0)
    found = acceptance(processed(mine, params), processed(other, params), "coupled")[0]
    gumbel = np.random.default_rng(0).gumbel(size=(20_000, size))
    agreed = float(((np.log(p) + gumbel).argmax(1) == (np.log(q) + gumbel).argmax(1)).mean())
    assert found == pytest.approx(agreed, abs=0.015)
    assert found <= np.minimum(p, q).sum() + 1e-6, "no coupling agrees more often than the overlap"


@given(st.integers(0, 10_000), st.floats(0.01, 1.0))
def test_accept_reject_is_the_overlap(seed: int, weight: float) -> None:
    random = np.random.default_rng(seed)
    p, q = random.dirichlet(np.ones(5)), random.dirichlet(np.ones(5))
    mine, other = (processed(one, SamplingParams(temperature=1.0)) for one in laws_of(p, q))
    overlap = float(np.minimum(p, q).sum())
    assert acceptance(mine, other, "residual")[0] == pytest.approx(overlap, abs=1e-5)
    by_tokens = float((q * np.minimum(1.0, 1 - weight + weight * p / q)).sum())
    assert acceptance(mine, other, "relaxed", weight)[0] == pytest.approx(max(by_tokens, 1 - weight + weight * overlap))


@pytest.mark.parametrize("rule", ["coupled", "residual"])
def test_equal_laws_always_agree(rule: Rule) -> None:
    law = processed(summarise(rows(3)), SamplingParams(temperature=0.5))
    assert acceptance(law, law, rule) == pytest.approx(1.0 - law.tail, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_ranks_are_the_samplers_children(temperature: float) -> None:
    """How often the target's choice is the draft's guess of rank 0..3, from the real sampler."""
    random = np.random.default_rng(4)
    target = (random.standard_normal((40, 300)) * 3).astype(np.float32)
    draft = (target + random.standard_normal((40, 300))).astype(np.float32)
    params = SamplingParams(temperature=temperature)
    ranking = params if temperature else SamplingParams(temperature=1.0)
    found = by_rank(processed(summarise(target), params), processed(summarise(draft), ranking), 4).mean(axis=0)
    counts = np.zeros(4)
    seeds = range(12) if temperature else range(1)
    for seed in seeds:
        sampler = Sampler(SamplingParams(temperature=temperature, seed=seed))
        for at in range(40):
            context = History([0] * (at + 1))
            choice, guesses = sampler.choose(target[at], context), sampler.children(draft[at], context, 4).ids
            counts += guesses == choice
    assert found == pytest.approx(counts / (40 * len(seeds)), abs=0.0 if not temperature else 0.06)


def test_laws_of_different_lengths_are_refused() -> None:
    one, two = summarise(rows(1, 3)), summarise(rows(1, 4))
    params = SamplingParams()
    with pytest.raises(InvalidValue, match="as many positions"):
        acceptance(processed(one, params), processed(two, params), "coupled")
    with pytest.raises(InvalidValue, match="laws"):
        Laws(one.ids, two.scores, one.rest)
