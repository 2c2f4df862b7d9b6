"""A draft head: one decoder layer that shares the target's embedding and output matrix (EAGLE-3, arXiv 2503.01840).

It reads the target's hidden states behind the last known token, fused from several layers, with the embedding of the
token that follows; where there are none yet, its own output stands in for them. Knows no caches and no files. Shapes:
N tokens, h hidden size, T tapped layers, V' draft vocabulary; ``*`` any leading dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from foredraft.models.config import DecoderConfig, Rope
from foredraft.models.decoder import Angles, Attend, Decoder, RmsNorm, rotate


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes in elements. ``taps``: layers of the target whose outputs are fused, ascending; ``rows``: V', the size of
    the draft vocabulary; the rest is the target's (see ``DecoderConfig``)."""

    taps: tuple[int, ...]
    rows: int
    vocab_size: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_size: int
    norm_eps: float
    rope_theta: float
    query_scale: float
    embed_scale: float = 1.0

    @staticmethod
    def of(target: DecoderConfig, taps: tuple[int, ...], rows: int, ffn_size: int = 0) -> HeadConfig:
        """A head with the target's own sizes; ``ffn_size`` 0: the target's."""
        return HeadConfig(
            taps=taps,
            rows=rows,
            vocab_size=target.vocab_size,
            hidden_size=target.hidden_size,
            heads=target.heads,
            kv_heads=target.kv_heads,
            head_dim=target.head_dim,
            ffn_size=ffn_size or target.ffn_size,
            norm_eps=target.norm_eps,
            rope_theta=target.rope.theta,
            query_scale=target.head_dim**-0.5,
            embed_scale=target.embed_scale,
        )

    @property
    def state_size(self) -> int:
        """Elements of what the target says of a token: T·h."""
        return len(self.taps) * self.hidden_size

    @property
    def pass_size(self) -> int:
        """Weights that one pass reads, the shared output rows included."""
        c = self
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
        layer = 2 * c.hidden_size * (queries + 2 * keys) + queries * c.hidden_size + 3 * c.hidden_size * c.ffn_size
        return layer + c.rows * c.hidden_size

    def decoder(self, context: int) -> DecoderConfig:
        """The layer as a decoder of its own: what caches and tables of angles are made from."""
        return DecoderConfig(
            architecture="llama",
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            layers=1,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            ffn_size=self.ffn_size,
            context_length=context,
            norm_eps=self.norm_eps,
            rope=Rope(self.rope_theta),
            tied=False,
            query_scale=self.query_scale,
            embed_scale=self.embed_scale,
        )


def default_taps(layers: int) -> tuple[int, ...]:
    """A low, a middle and the last layer. The last one also carries the target's own law, so that nothing else has to
    be kept of a text (arXiv 2503.01840, section 3.1, takes one that is high, but not the last)."""
    return tuple(sorted({min(2, layers - 1), layers // 2, layers - 1}))


class DraftHead(nn.Module):
    """What is trained. Embedding and output matrix are the target's and are not part of it."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        c = self.config = config
        self.state_norms = nn.ModuleList(RmsNorm(c.hidden_size, c.norm_eps) for _ in c.taps)
        self.fuse = nn.Linear(c.state_size, c.hidden_size, bias=False)
        self.token_norm, self.input_norm = RmsNorm(c.hidden_size, c.norm_eps), RmsNorm(c.hidden_size, c.norm_eps)
        self.qkv = nn.Linear(2 * c.hidden_size, (c.heads + 2 * c.kv_heads) * c.head_dim, bias=False)
        self.out = nn.Linear(c.heads * c.head_dim, c.hidden_size, bias=False)
        self.ffn_norm = RmsNorm(c.hidden_size, c.norm_eps)
        self.gate_up = nn.Linear(c.hidden_size, 2 * c.ffn_size, bias=False)
        self.down = nn.Linear(c.ffn_size, c.hidden_size, bias=False)
        self.norm = RmsNorm(c.hidden_size, c.norm_eps)

    def fused(self, states: Tensor) -> Tensor:
        """The target's states [*, N, T·h] -> [*, N, h]. Each layer's are normalised first: their sizes differ by orders
        of magnitude."""
        parts = states.unflatten(-1, (len(self.config.taps), self.config.hidden_size)).unbind(-2)
        return self.fuse(torch.cat([norm(part) for norm, part in zip(self.state_norms, parts, strict=True)], -1))

    def forward(self, embedded: Tensor, state: Tensor, angles: Angles, attend: Attend) -> Tensor:
        """embedded [*, N, h] of the tokens that follow; state [*, N, h], fused or this head's own -> [*, N, h]."""
        c = self.config
        both = torch.cat([self.token_norm(embedded), self.input_norm(state)], -1)
        heads = self.qkv(both).unflatten(-1, (c.heads + 2 * c.kv_heads, c.head_dim))
        q, k, v = heads.split([c.heads, c.kv_heads, c.kv_heads], dim=-2)
        y = attend(0, rotate(q, angles.full) * c.query_scale, rotate(k, angles.full), v)
        x = state + self.out(y.flatten(-2))
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)

    def parameter_count(self) -> int:
        """Trained parameters."""
        return sum(parameter.numel() for parameter in self.parameters())


def begin(head: DraftHead, target: Decoder, generator: torch.Generator) -> None:
    """Weights before training: the layer is a copy of the target's last one, which sees the states; what sees the
    embedding begins small. Fusing begins as the last layer's states."""
    last, size = target.blocks[-1], head.config.hidden_size
    with torch.no_grad():
        for module in (head.fuse, head.qkv, head.out, head.gate_up, head.down):
            nn.init.normal_(module.weight, std=0.02, generator=generator)
        head.fuse.weight[:, -size:] += torch.eye(size)
        if head.config.ffn_size == target.config.ffn_size:
            head.gate_up.weight.copy_(last.ffn.gate_up.weight)
            head.down.weight.copy_(last.ffn.down.weight)
            head.ffn_norm.weight.copy_(last.ffn_norm.weight)
        head.out.weight.copy_(last.attention.out.weight)
        head.qkv.weight[:, size:] = last.attention.qkv.weight
        head.norm.weight.copy_(target.norm.weight)
