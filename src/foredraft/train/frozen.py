"""The parts of the target that a head shares: embedding, last norm, and the output rows of its draft vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.models.decoder import Decoder, RmsNorm
from foredraft.train.rollout import Batch


@dataclass(frozen=True)
class Frozen:
    """``embedding`` [V, h]; ``norm`` and ``weight`` [V', h]: from last states to logits; ``ids`` int64[V'], ascending:
    the tokens of the draft vocabulary; ``softcap``: of logits."""

    embedding: Tensor
    norm: RmsNorm
    weight: Tensor
    ids: Tensor
    softcap: float | None = None

    @staticmethod
    def of(decoder: Decoder, ids: Sequence[int]) -> Frozen:
        """Copies what is needed: the decoder may go."""
        device = decoder.embedding.weight.device
        chosen = torch.tensor(list(ids), device=device)
        norm = RmsNorm(decoder.config.hidden_size, decoder.config.norm_eps)
        norm.load_state_dict(decoder.norm.state_dict())
        return Frozen(
            decoder.embedding.weight.detach(),
            norm.to(device).requires_grad_(False),
            decoder.head.weight.detach()[chosen],
            chosen,
            decoder.config.final_softcap,
        )

    def logits(self, normed: Tensor) -> Tensor:
        """normed [n, h] -> float32[n, V']."""
        logits = (normed.to(self.weight.dtype) @ self.weight.T).float()
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def slope(self, logits: Tensor, slope: Tensor) -> Tensor:
        """From a derivative by the logits, float32[n, V'], to that by what they were made from, [n, h]."""
        if self.softcap is not None:
            slope = slope * (1 - (logits / self.softcap) ** 2)
        return slope.to(self.weight.dtype) @ self.weight

    @torch.no_grad()
    def law(self, batch: Batch, rows: Tensor, positions: Tensor) -> Tensor:
        """The target's own law at these places of the texts, p float32[n, V']; what is missing from 1 it gives to
        tokens outside the draft vocabulary. The last of the tapped layers must be the target's last one."""
        last = batch.states[rows, positions, -self.embedding.shape[1] :]
        return (self.logits(self.norm(last)) - batch.log_totals[rows, positions, None]).exp()
