"""A draft head in the form that ExecuTorch runs, beside its target and in the same file, so that the embedding is there
once.

Two methods: ``fuse`` turns the target's states into what the head reads, ``head`` is the layer with its output rows.
Nothing is promised about its bits: what a head says never changes the text. Shapes as in ``program``; V' draft
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from foredraft.export.program import (
    Fed,
    Layer,
    Norm,
    QuantizedEmbedding,
    Step,
    Turning,
    half_swap_product,
    linear,
    tiled,
)
from foredraft.models.decoder import Decoder
from foredraft.models.head import DraftHead


class FuseProgram(nn.Module):
    """states float32[N, T·h] -> float32[N, h]."""

    def __init__(self, head: DraftHead) -> None:
        super().__init__()
        self.parts = len(head.config.taps)
        self.norms = nn.ModuleList(Norm(norm) for norm in head.state_norms)
        self.fuse = linear(head.fuse.weight)

    def forward(self, states: Tensor) -> Tensor:
        """See the class."""
        parts = states.chunk(self.parts, dim=-1)
        return self.fuse(torch.cat([norm(part) for norm, part in zip(self.norms, parts, strict=True)], -1))


class HeadLayer(Layer):
    """The head's layer; its attention is a decoder layer's."""

    def __init__(self, head: DraftHead, context: int) -> None:
        nn.Module.__init__(self)
        self.config, self.local = head.config.decoder(context), False
        self.token_norm, self.input_norm = Norm(head.token_norm), Norm(head.input_norm)
        self.qkv, self.out = linear(head.qkv.weight), linear(head.out.weight)
        gate, up = head.gate_up.weight.chunk(2)
        self.gate, self.up, self.down = linear(gate.contiguous()), linear(up.contiguous()), linear(head.down.weight)
        self.ffn_norm = Norm(head.ffn_norm)
        self.swap = half_swap_product(head.config.head_dim)

    def forward(self, embedded: Tensor, state: Tensor, step: Step, caches: Sequence[Tensor]) -> Tensor:  # type: ignore[override]
        """embedded, state [N, h] -> [N, h]."""
        both = torch.cat([self.token_norm(embedded), self.input_norm(state)], -1)
        x = state + self.out(self._attend(self._heads(both, step.angles[0]), step, *caches))
        h = self.ffn_norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class HeadProgram(nn.Module):
    """One pass of the head. ``forward`` returns logits float32[R, V'] and outputs float32[N, h]."""

    def __init__(
        self, head: DraftHead, ids: Sequence[int], shared: tuple[Decoder, QuantizedEmbedding], context: int
    ) -> None:
        super().__init__()
        target, embedding = shared
        self.config = head.config.decoder(context)
        self.softcap = target.config.final_softcap
        self.embedding = embedding
        self.layer = HeadLayer(head, context)
        self.norm = Norm(head.norm)
        self.head = linear(target.head.weight[list(ids)])
        self.turning = Turning(self.config, context)

    def forward(
        self, fed: Fed, state: Tensor, masks: Sequence[Tensor], ones: Tensor, caches: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """``state`` float32[N, h]: fused, or the parents' outputs; the rest as in ``Program.forward``."""
        tokens, positions, slots, rows = fed
        angles = self.turning(positions)
        step = Step((angles, angles), tiled(masks, self.config.heads // self.config.kv_heads), slots, ones)
        embedded = self.embedding(tokens)
        if self.config.embed_scale != 1.0:
            embedded = embedded * self.config.embed_scale
        x = self.layer(embedded, state, step, caches)
        logits = self.head(self.norm(x[rows]))
        if self.softcap is not None:
            logits = torch.tanh(logits * (1 / self.softcap)) * self.softcap
        return logits, x
