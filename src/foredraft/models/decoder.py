"""One compact decoder: Llama, Qwen 2 / 3 and Gemma 2 / 3 differ by configuration only.

Attention over a cache is not in here: the caller gives an ``Attend``, so that export, the pytorch engine and training
share every other line. Shapes: N tokens, H heads, K key/value heads, D head size; ``*`` any leading dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from foredraft.models.config import DecoderConfig

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [*, N, H, D], k [*, N, K, D], v [*, N, K, D]) -> [*, N, H, D]; q and k are rotated, q is scaled."""


@dataclass(frozen=True)
class Angles:
    """Cosines and sines float32[*, N, 1, D/2] of the tokens' positions: for layers that see all, and for local ones."""

    full: tuple[Tensor, Tensor]
    local: tuple[Tensor, Tensor]


def angle_tables(config: DecoderConfig, length: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Cosines and sines float32[length, D/2] for positions 0..length-1, of full and of local layers.

    Computed in float64: the same table whatever its length, so that a larger context keeps every bit.
    """
    rope = config.rope
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim

    def table(theta: float, divisors: tuple[float, ...] | None) -> tuple[Tensor, Tensor]:
        frequencies = theta**-steps
        if divisors is not None:
            frequencies = frequencies / torch.tensor(divisors, dtype=torch.float64)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies[None]
        return angles.cos().float(), angles.sin().float()

    full = table(rope.theta, rope.divisors)
    return full, full if rope.local_theta is None else table(rope.local_theta, None)


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the halves of the last dimension against each other: x [*, N, H, D], angles [*, N, 1, D/2]."""
    cos, sin = angles
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


class RmsNorm(nn.Module):
    """x · rsqrt(mean(x²) + eps) · weight (arXiv 1910.07467), in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and type as ``x``."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (scaled * self.weight.float()).to(x.dtype)


class Attention(nn.Module):
    """Fused q/k/v projection, optional per-head norms, rotation; the caller's ``Attend``; output projection."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        c = config
        self.qkv = nn.Linear(c.hidden_size, (c.heads + 2 * c.kv_heads) * c.head_dim, bias=c.qkv_bias)
        self.out = nn.Linear(c.heads * c.head_dim, c.hidden_size, bias=False)
        if c.qk_norm:
            self.q_norm, self.k_norm = RmsNorm(c.head_dim, c.norm_eps), RmsNorm(c.head_dim, c.norm_eps)

    def forward(self, x: Tensor, angles: Angles, attend: Attend) -> Tensor:
        """x [*, N, hidden] -> [*, N, hidden]."""
        c = self.config
        heads = self.qkv(x).unflatten(-1, (c.heads + 2 * c.kv_heads, c.head_dim))
        q, k, v = heads.split([c.heads, c.kv_heads, c.kv_heads], dim=-2)
        if c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        at = angles.local if c.is_local(self.layer) else angles.full
        y = attend(self.layer, rotate(q, at) * c.query_scale, rotate(k, at), v)
        return self.out(y.flatten(-2))


class FeedForward(nn.Module):
    """Gated feed-forward (arXiv 2002.05202); gate and up projections are one matrix."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.silu = config.activation == "silu"
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.ffn_size, bias=False)
        self.down = nn.Linear(config.ffn_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [*, N, hidden] -> [*, N, hidden]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        active = functional.silu(gate) if self.silu else functional.gelu(gate, approximate="tanh")
        return self.down(active * up)


class Block(nn.Module):
    """Attention and feed-forward, each with a norm before (and behind, Gemma) and a residual connection."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.norm_eps
        self.attention_norm, self.ffn_norm = RmsNorm(size, eps), RmsNorm(size, eps)
        self.attention = Attention(config, layer)
        self.ffn = FeedForward(config)
        self.post_norms = config.post_norms
        if config.post_norms:
            self.post_attention_norm, self.post_ffn_norm = RmsNorm(size, eps), RmsNorm(size, eps)

    def forward(self, x: Tensor, angles: Angles, attend: Attend) -> Tensor:
        """x [*, N, hidden] -> [*, N, hidden]."""
        y = self.attention(self.attention_norm(x), angles, attend)
        x = x + (self.post_attention_norm(y) if self.post_norms else y)
        y = self.ffn(self.ffn_norm(x))
        return x + (self.post_ffn_norm(y) if self.post_norms else y)


class Decoder(nn.Module):
    """Token ids -> logits. ``head`` shares the embedding's parameter where the model ties them."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = RmsNorm(config.hidden_size, config.norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight

    def hidden(self, tokens: Tensor, angles: Angles, attend: Attend, taps: Sequence[int] = ()) -> list[Tensor]:
        """tokens int[*, N] -> residual streams [*, N, hidden]: behind each layer of ``taps``, and the last one."""
        x = self.embedding(tokens)
        if self.config.embed_scale != 1.0:
            x = x * self.config.embed_scale
        tapped = {}
        for layer, block in enumerate(self.blocks):
            x = block(x, angles, attend)
            tapped[layer] = x
        return [*(tapped[layer] for layer in taps), x]

    def logits(self, x: Tensor) -> Tensor:
        """The last residual stream [*, R, hidden] -> logits [*, R, V]."""
        logits: Tensor = self.head(self.norm(x))
        cap = self.config.final_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)
