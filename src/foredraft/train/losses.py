"""How far a draft's law q is from the target's law p: what training makes small. Knows no model.

Shapes: n places, V' draft vocabulary, h hidden size, J steps of a rollout. p may sum to less than 1: what is missing
the target gives to tokens that the draft cannot say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Loss = Literal["lk", "kl"]
LOSSES: tuple[Loss, ...] = ("lk", "kl")
_LEAST = 1e-6
PIECE = 256
"""Places whose laws exist at once: float32[PIECE, V'] stays in the processor's caches."""


class Shared(Protocol):
    """The output matrix that the draft shares with the target."""

    def logits(self, normed: Tensor) -> Tensor:
        """Normed states [n, h] -> logits float32[n, V']."""
        ...

    def slope(self, logits: Tensor, slope: Tensor) -> Tensor:
        """From a derivative by the logits float32[n, V'] to that by the normed states [n, h]."""
        ...


def overlap(log_q: Tensor, p: Tensor) -> Tensor:
    """Σ min(p, q), float32[n]: the probability that a token drawn from q is accepted (arXiv 2211.17192, theorem 3.5).

    log_q, p: float32[n, V'].
    """
    return torch.minimum(p, log_q.exp()).sum(-1)


def lk(log_q: Tensor, p: Tensor) -> Tensor:
    """-log Σ min(p, q), float32[n]: the negative log of the acceptance rate (arXiv 2602.23881)."""
    return -overlap(log_q, p).clamp_min(_LEAST).log()


def kl(log_q: Tensor, p: Tensor) -> Tensor:
    """Σ p·(log p - log q) over the draft vocabulary, float32[n], in nats."""
    return (torch.special.xlogy(p, p) - p * log_q).sum(-1)


def loss(kind: Loss, log_q: Tensor, p: Tensor) -> Tensor:
    """float32[n] of one kind."""
    return lk(log_q, p) if kind == "lk" else kl(log_q, p)


def loss_and_slope(kind: Loss, z: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """The loss float32[n] of logits z, q = softmax(z), and its derivative by z, float32[n, V'].

    For S = Σ min(p, q) and m = 1 where q < p: ∂(-log S)/∂z = -q·(m - Σ m·q) / S. For kl: q·Σ p - p.
    """
    log_q = z.log_softmax(-1)
    q = log_q.exp()
    if kind == "kl":
        return (torch.special.xlogy(p, p) - p * log_q).sum(-1), q * p.sum(-1, keepdim=True) - p
    share = torch.minimum(p, q).sum(-1).clamp_min(_LEAST)
    below = q * (q < p)
    slope = q.mul_(below.sum(-1, keepdim=True)).sub_(below).div_(share[:, None])
    return -share.log(), slope


@dataclass(frozen=True)
class Guesses:
    """What a rollout said: ``normed`` [J, n, h], the normed outputs; ``weights`` float32[J, n] of their losses; ``law``
    gives p float32[., V'] of a slice of the n places; ``shared``: the output matrix."""

    normed: Tensor
    weights: Tensor
    law: Callable[[slice], Tensor]
    shared: Shared


def rollout_loss(kind: Loss, guesses: Guesses) -> Tensor:
    """Σ weights · loss over all steps and places; a scalar, differentiable by ``guesses.normed``.

    Laws of ``PIECE`` places exist at once, and none is kept for the way back: the output matrix is not trained, so all
    that is needed there is the slope by the normed outputs.
    """
    return _RolloutLoss.apply(guesses.normed, guesses, kind)


class _RolloutLoss(torch.autograd.Function):
    """See ``rollout_loss``."""

    @staticmethod
    def forward(ctx: Any, normed: Tensor, guesses: Guesses, kind: Loss) -> Tensor:
        shared, weights = guesses.shared, guesses.weights
        total = weights.new_zeros(())
        slopes = torch.empty_like(normed)
        for start in range(0, normed.shape[1], PIECE):
            piece = slice(start, start + PIECE)
            p = guesses.law(piece)
            for step in range(normed.shape[0]):
                weight = weights[step, piece]
                z = shared.logits(normed[step, piece])
                values, slope = loss_and_slope(kind, z, p)
                total = total + (values * weight).sum()
                slopes[step, piece] = shared.slope(z, slope.mul_(weight[:, None]))
        ctx.save_for_backward(slopes)
        return total

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * outer, None, None
