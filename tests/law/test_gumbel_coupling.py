"""The shipped noise against its theory: acceptance of the coupled rule, and laws by counting."""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.noise import GumbelNoise
from foredraft.sampling import History, Sampler
from foredraft.types import Draft, Floats, Law, Rule, SamplingParams
from foredraft.verify import verify

POSITIONS = 6000


def law(probs: Floats) -> Law:
    return Law(np.arange(len(probs), dtype=np.int32), np.log(probs))


def acceptance(p: Floats, q: Floats) -> float:
    """Σ_i 1 / Σ_k max(p_k / p_i, q_k / q_i): the probability that argmax(log p + G) = argmax(log q + G) (Daliri et
    al., arXiv 2408.07978)."""
    ratios = np.maximum(p[None, :] / p[:, None], q[None, :] / q[:, None])
    return float((1.0 / ratios.sum(axis=1)).sum())


def random_pair(seed: int, size: int, temperature: float) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(size, temperature))
    q = 0.5 * p + 0.5 * rng.dirichlet(np.full(size, temperature))
    return p, q


@pytest.mark.parametrize(("seed", "size", "concentration"), [(5, 3, 1.0), (2, 8, 0.7), (3, 50, 1.0), (4, 400, 2.0)])
def test_acceptance_of_a_coupled_chain(seed: int, size: int, concentration: float) -> None:
    p, q = random_pair(seed, size, concentration)
    noise = GumbelNoise(seed)
    hits = sum(noise.pick(law(p), at) == noise.pick(law(q), at) for at in range(POSITIONS))
    expected = acceptance(p, q)
    sigma = np.sqrt(expected * (1 - expected) / POSITIONS)
    assert 0.2 < expected < 0.99
    assert abs(hits / POSITIONS - expected) < 4 * sigma


def test_acceptance_formula_at_its_ends() -> None:
    p = np.array([0.5, 0.3, 0.2])
    assert acceptance(p, p) == pytest.approx(1.0, abs=1e-15)
    assert acceptance(np.array([1 - 2e-9, 1e-9, 1e-9]), np.array([1e-9, 1e-9, 1 - 2e-9])) < 1e-8
    total_variation = 0.5 * np.abs(p - p[::-1]).sum()
    found = acceptance(p, p[::-1])
    assert (1 - total_variation) / (1 + total_variation) <= found <= 1 - total_variation


@pytest.mark.parametrize("rule", ["coupled", "residual"])
def test_law_of_a_round_by_counting(rule: Rule) -> None:
    """8000 tokens of the rules with the shipped noise, chi-square against the target (case D1's logits)."""
    count = 8000
    row = np.array([2.0, 1.5, 1.0, 0.5], np.float32)
    draft_row = np.array([0.5, 2.0, 1.0, 1.0], np.float32)
    seen = np.zeros(4)
    sampler = Sampler(SamplingParams(temperature=1.0, seed=9), rule=rule)
    history = History([0])
    for _ in range(count):
        ids, soft, _ = sampler.children(draft_row, history, 1)
        draft = Draft.chain(ids.tolist(), "test", None if soft is None else (soft,))
        verdict = verify(draft, np.stack([row, row]), sampler, history)
        first = int(draft.tokens[0]) if verdict.path else verdict.token
        seen[first] += 1
        history.push(first)
    expected = count * np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
    assert expected / count == pytest.approx([0.4551, 0.2760, 0.1674, 0.1015], abs=5e-5)
    assert ((seen - expected) ** 2 / expected).sum() < 21.1  # 99.99 % quantile, 3 degrees of freedom
