"""Losses of training: derivatives, a worked example, and what they mean for accept-reject."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foredraft.models.decoder import RmsNorm
from foredraft.train import losses
from foredraft.train.frozen import Frozen
from foredraft.train.losses import LOSSES, Guesses, Loss, kl, lk, loss, loss_and_slope, overlap, rollout_loss
from foredraft.types import SamplingParams
from tests.law.enumerate import law_of
from tests.law.scenes import Scene, constant, masked, one_round, world

SOFT = SamplingParams(temperature=1.0)
DOUBLE = torch.float64


def random_logits(count: int, rows: int, seed: int, size: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, rows, generator=generator, dtype=DOUBLE) * size


def random_law(count: int, rows: int, seed: int, left_out: int = 0) -> Tensor:
    """Laws over ``left_out`` more tokens than are shown."""
    return random_logits(count, rows + left_out, seed).softmax(-1)[:, :rows]


def finite_differences(kind: Loss, z: Tensor, p: Tensor, step: float = 1e-6) -> Tensor:
    slope = torch.empty_like(z)
    for column in range(z.shape[1]):
        shift = torch.zeros_like(z)
        shift[:, column] = step
        upper, lower = (loss_and_slope(kind, z + sign * shift, p)[0] for sign in (1, -1))
        slope[:, column] = (upper - lower) / (2 * step)
    return slope


LAWS: dict[str, Tensor] = {
    "whole": random_law(8, 6, seed=1),
    "less than 1": random_law(8, 6, seed=2, left_out=5),
    "zeros": torch.where(torch.rand(8, 6, generator=torch.Generator().manual_seed(3)) < 0.5, 0.0, 0.15).to(DOUBLE),
    "one token": torch.nn.functional.one_hot(torch.arange(8) % 6, 6).to(DOUBLE),
    "hardly anything": random_law(8, 6, seed=4) * 1e-3,
}


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("name", LAWS)
def test_slopes_are_derivatives(kind: Loss, name: str) -> None:
    """By finite differences and by autograd through the loss as it is written down."""
    z, p = random_logits(8, 6, seed=9), LAWS[name]
    values, slope = loss_and_slope(kind, z, p)
    torch.testing.assert_close(slope, finite_differences(kind, z, p), rtol=1e-6, atol=1e-8)
    free = z.clone().requires_grad_()
    written = loss(kind, free.log_softmax(-1), p)
    torch.testing.assert_close(values, written.detach(), rtol=1e-12, atol=1e-12)
    written.sum().backward()
    torch.testing.assert_close(slope, free.grad, rtol=1e-10, atol=1e-12)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 9), left_out=st.integers(0, 4), size=st.floats(0.1, 6.0))
def test_slopes_of_random_laws(seed: int, rows: int, left_out: int, size: float) -> None:
    z, p = random_logits(3, rows, seed, size), random_law(3, rows, seed + 1, left_out)
    for kind in LOSSES:
        slope = loss_and_slope(kind, z, p)[1]
        torch.testing.assert_close(slope, finite_differences(kind, z, p), rtol=1e-4, atol=1e-6)
        assert slope.sum(-1).abs().max() < 1e-12  # adding a number to all logits changes nothing


def test_where_p_and_q_are_equal_the_slope_lies_between_those_of_both_sides() -> None:
    """-log Σ min(p, q) has an edge there; two of five probabilities are equal."""
    z = random_logits(1, 5, seed=5)
    p = random_law(1, 5, seed=6)
    p[0, :2] = z.log_softmax(-1).exp()[0, :2]
    slope = loss_and_slope("lk", z, p)[1]
    generator = torch.Generator().manual_seed(0)
    edges = 0
    for _ in range(50):
        way = torch.randn(1, 5, generator=generator, dtype=DOUBLE)
        step = 1e-7
        here, ahead, behind = (loss_and_slope("lk", z + move * way, p)[0] for move in (0.0, step, -step))
        right, left = float((ahead - here) / step), float((here - behind) / step)
        along = float((slope * way).sum())
        assert min(left, right) - 1e-5 <= along <= max(left, right) + 1e-5
        edges += abs(right - left) > 1e-3
    assert edges > 25


def test_equal_laws_cost_nothing_and_pull_nowhere() -> None:
    z = random_logits(4, 7, seed=7)
    p = z.log_softmax(-1).exp()
    for kind in LOSSES:
        values, slope = loss_and_slope(kind, z, p)
        assert values.abs().max() < 1e-12 and slope.abs().max() < 1e-12


def test_worked_example() -> None:
    """p = (.5, .3, .2), q = (.25, .25, .5): Σ min = .7; q < p in the first two, which hold .5 of q."""
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=DOUBLE)
    q = torch.tensor([[0.25, 0.25, 0.5]], dtype=DOUBLE)
    assert overlap(q.log(), p).item() == pytest.approx(0.7)
    value, slope = loss_and_slope("lk", q.log(), p)
    assert value.item() == pytest.approx(-math.log(0.7)) == pytest.approx(0.356675, abs=1e-6)
    assert slope[0].tolist() == pytest.approx([-0.25 * 0.5 / 0.7, -0.25 * 0.5 / 0.7, 0.5 * 0.5 / 0.7])
    value, slope = loss_and_slope("kl", q.log(), p)
    assert value.item() == pytest.approx(0.5 * math.log(2) + 0.3 * math.log(1.2) + 0.2 * math.log(0.4))
    assert slope[0].tolist() == pytest.approx([-0.25, -0.05, 0.3])


def test_worked_example_with_tokens_that_the_draft_cannot_say() -> None:
    """p = (.5, .1) and .4 elsewhere, q = (.5, .5), a tie: Σ min = .6, and nothing of q lies below p."""
    p = torch.tensor([[0.5, 0.1]], dtype=DOUBLE)
    q = torch.tensor([[0.5, 0.5]], dtype=DOUBLE)
    value, slope = loss_and_slope("lk", q.log(), p)
    assert value.item() == pytest.approx(-math.log(0.6)) and slope.abs().max() < 1e-12
    value, slope = loss_and_slope("kl", q.log(), p)
    assert value.item() == pytest.approx(0.1 * math.log(0.2)) and slope[0].tolist() == pytest.approx([-0.2, 0.2])


def test_laws_that_do_not_meet_stay_finite() -> None:
    z = torch.tensor([[80.0, -80.0]], dtype=torch.float32)
    p = torch.tensor([[0.0, 1.0]])
    value, slope = loss_and_slope("lk", z, p)
    assert value.item() == pytest.approx(-math.log(1e-6), rel=1e-4) == lk(z.log_softmax(-1), p).item()
    assert torch.isfinite(slope).all() and slope.abs().max() <= 1
    value, slope = loss_and_slope("kl", z, p)
    assert value.item() == pytest.approx(160.0) and slope[0].tolist() == pytest.approx([1.0, -1.0])
    assert kl(z.log_softmax(-1), p).item() == pytest.approx(160.0)


# --- what Σ min(p, q) means --------------------------------------------------------------------------------


def accepted_share(scene: Scene) -> float:
    """How often accept-reject keeps one drafted token, by enumeration."""
    law = law_of(lambda noise: bool(one_round(scene, noise).slots))
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    return law.get(True, 0.0)


def overlap_of(scene: Scene, draft_ids: tuple[int, ...]) -> float:
    """Over the draft vocabulary alone."""
    p = torch.tensor(scene.target(scene.prompt)).double().softmax(-1)[None, list(draft_ids)]
    log_q = torch.tensor(scene.draft(scene.prompt)).double()[None, list(draft_ids)].log_softmax(-1)
    return float(overlap(log_q, p))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("draft_ids", [(0, 1, 2, 3), (1, 2), (3,)], ids=str)
def test_overlap_is_the_acceptance_rate(seed: int, draft_ids: tuple[int, ...]) -> None:
    """Also where the draft cannot say some tokens, so that p sums to less than 1 over those that it can."""
    target, draft = world(seed, vocab=4)
    scene = Scene(target, masked(draft, draft_ids), SOFT, "residual")
    assert overlap_of(scene, draft_ids) == pytest.approx(accepted_share(scene), abs=1e-12)


def test_overlap_of_the_worked_example_is_its_acceptance_rate() -> None:
    target, draft = (constant(*map(math.log, law)) for law in ((0.5, 0.3, 0.2), (0.25, 0.25, 0.5)))
    assert accepted_share(Scene(target, draft, SOFT, "residual")) == pytest.approx(0.7, abs=1e-7)


# --- the loss of a rollout ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """An output matrix [V', h] in float64."""

    weight: Tensor

    def logits(self, normed: Tensor) -> Tensor:
        return normed @ self.weight.T

    def slope(self, logits: Tensor, slope: Tensor) -> Tensor:
        return slope @ self.weight


def frozen(rows: int, size: int, softcap: float | None) -> Frozen:
    generator = torch.Generator().manual_seed(8)
    weight = torch.randn(rows, size, generator=generator)
    return Frozen(torch.zeros(rows, size), RmsNorm(size, 1e-6), weight, torch.arange(rows), softcap)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("softcap", [None, 2.0], ids=["plain", "softcap"])
@pytest.mark.parametrize("piece", [1, 3, 7, 10, 256])
def test_a_rollout_is_the_sum_of_its_parts(
    kind: Loss, softcap: float | None, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "PIECE", piece)
    generator = torch.Generator().manual_seed(11)
    shared = frozen(12, 6, softcap)
    p = random_law(10, 12, seed=12, left_out=3).float()
    normed = torch.randn(3, 10, 6, generator=generator).requires_grad_()
    weights = torch.rand(3, 10, generator=generator)
    weights[1, :4] = 0.0
    asked: list[int] = []

    def law(places: slice) -> Tensor:
        asked.extend(range(10)[places])
        return p[places].clone()

    got = rollout_loss(kind, Guesses(normed, weights, law, shared))
    (2.5 * got).backward()
    assert asked == list(range(10))
    free = normed.detach().clone().requires_grad_()
    logits = free @ shared.weight.T
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    want = (loss(kind, logits.log_softmax(-1), p) * weights).sum()
    (2.5 * want).backward()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(normed.grad, free.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_way_back_of_a_rollout(kind: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "PIECE", 2)
    normed = random_logits(6, 4, seed=13).view(2, 3, 4).requires_grad_()
    matrix, p = Matrix(random_logits(5, 4, seed=14)), random_law(3, 5, seed=15, left_out=1)
    weights = random_law(2, 3, seed=16)

    def value(x: Tensor) -> Tensor:
        return rollout_loss(kind, Guesses(x, weights, lambda places: p[places], matrix))

    assert torch.autograd.gradcheck(value, (normed,))


@pytest.mark.parametrize("softcap", [None, 2.0], ids=["plain", "softcap"])
def test_slopes_through_the_output_matrix(softcap: float | None) -> None:
    shared = frozen(12, 6, softcap)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(17)).requires_grad_()
    slope = torch.randn(4, 12, generator=torch.Generator().manual_seed(18))
    logits = shared.logits(x)
    logits.backward(slope)
    torch.testing.assert_close(shared.slope(logits.detach(), slope), x.grad, rtol=1e-4, atol=1e-5)
