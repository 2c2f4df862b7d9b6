"""The decoder in the form that ExecuTorch runs: caches are arguments, attention is plain matrix products.

Written so that no bit of a token's logits depends on the width of the pass, the cache's capacity or the siblings that
lie between a path's tokens (docs/design/mobile-engine.md): every sum runs over slots in order, masked slots add exact
zeros, and whatever else is reduced is reduced row by row. Slices with a symbolic size are avoided because XNNPACK does
not take them. Shapes: N tokens, R scored rows, C cache slots, H heads, K key/value heads, G = H / K, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from executorch.exir.passes import _quant_patterns_and_replacements as _embedding_ops
from torch import Tensor, nn
from torch.nn import functional

from foredraft.models.config import DecoderConfig
from foredraft.models.decoder import Block, Decoder, RmsNorm, angle_tables

EMBEDDING_OPERATORS = _embedding_ops.quantized_decomposed_lib
"""Importing it defines the quantized embedding operators."""

Pair = tuple[Tensor, Tensor]
Fed = tuple[Tensor, Tensor, Tensor, Tensor]
"""tokens, positions, slots int64[N]; rows int64[R]: which of the tokens are scored."""


@dataclass(frozen=True)
class Step:
    """What every layer of one pass shares. ``angles``: cosines and sines float32[N, H + 2K, D] of full and of local
    layers (``Turning``); ``masks`` float32[G·N, C] likewise; ``slots`` int64[N]; ``ones`` float32[K, C, 1]."""

    angles: tuple[Pair, Pair]
    masks: tuple[Tensor, Tensor]
    slots: Tensor
    ones: Tensor


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A frozen ``nn.Linear`` around ``weight`` [out, in]."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    module.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        module.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return module


class FixedLinear(nn.Linear):
    """A small float32 product that quantization leaves alone."""


def _fixed(weight: Tensor) -> FixedLinear:
    module = FixedLinear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    module.weight = nn.Parameter(weight, requires_grad=False)
    return module


class Norm(nn.Module):
    """RMS norm whose mean is a product with a vector of 1/n: XNNPACK then runs it, and in order."""

    def __init__(self, norm: RmsNorm) -> None:
        super().__init__()
        size = len(norm.weight)
        self.mean = _fixed(torch.full((1, size), 1.0 / size))
        self.weight = nn.Parameter(norm.weight.detach().clone(), requires_grad=False)
        self.eps = norm.eps

    def forward(self, x: Tensor) -> Tensor:
        """x [*, n] -> [*, n]."""
        return x * torch.rsqrt(self.mean(x * x) + self.eps) * self.weight


class QuantizedEmbedding(nn.Module):
    """Rows in 4 or 8 bits with one float32 scale per ``group`` values, symmetric."""

    def __init__(self, weight: Tensor, bits: int, group: int) -> None:
        super().__init__()
        rows, size = weight.shape
        top = 2 ** (bits - 1)
        grouped = weight.detach().float().view(rows, size // group, group)
        scales = (grouped.abs().amax(-1) / (top - 0.5)).clamp_min(1e-10)
        values = (grouped / scales[..., None]).round().clamp(-top, top - 1).to(torch.int8).view(rows, size)
        self.bits = bits
        if bits == 4:
            shifted = (values + 8).to(torch.uint8)
            values = (shifted[:, 0::2] << 4) | shifted[:, 1::2]
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int64[N] -> float32[N, size]."""
        ops = torch.ops.quantized_decomposed
        lookup = ops.embedding_4bit if self.bits == 4 else ops.embedding_byte
        low, high = -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        return lookup.dtype(self.values, self.scales, None, low, high, tokens, dtype=torch.float32)


class HeadNorm(nn.Module):
    """RMS norms of the q and k heads in one go; v heads are multiplied by exactly 1."""

    def __init__(self, q_norm: RmsNorm, k_norm: RmsNorm, config: DecoderConfig) -> None:
        super().__init__()
        size, kv = config.head_dim, config.kv_heads
        self.mean = _fixed(torch.full((1, size), 1.0 / size))
        rows = [q_norm.weight.expand(config.heads, size), k_norm.weight.expand(kv, size), torch.ones(kv, size)]
        self.register_buffer("weight", torch.cat(rows).detach().contiguous())
        self.register_buffer("normed", _by_head(config, 1.0, 1.0, 0.0))
        self.register_buffer("plain", _by_head(config, 0.0, 0.0, 1.0))
        self.eps = q_norm.eps

    def forward(self, x: Tensor) -> Tensor:
        """x [N, H + 2K, D] -> the same shape."""
        factors = torch.rsqrt(self.mean(x * x) + self.eps) * self.normed + self.plain
        return x * factors * self.weight


class Layer(nn.Module):
    """One block; reads and writes its caches k and v, float32[K, C, D] each, in place."""

    def __init__(self, block: Block, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.config, self.local = config, config.is_local(index)
        attention, ffn = block.attention, block.ffn
        self.qkv = linear(attention.qkv.weight, attention.qkv.bias if config.qkv_bias else None)
        self.out = linear(attention.out.weight)
        gate, up = ffn.gate_up.weight.chunk(2)
        self.gate, self.up, self.down = linear(gate.contiguous()), linear(up.contiguous()), linear(ffn.down.weight)
        self.norm, self.ffn_norm = Norm(block.attention_norm), Norm(block.ffn_norm)
        if config.qk_norm:
            self.head_norm = HeadNorm(attention.q_norm, attention.k_norm, config)
        if config.post_norms:
            self.post_norm, self.post_ffn_norm = Norm(block.post_attention_norm), Norm(block.post_ffn_norm)
        self.swap = half_swap_product(config.head_dim)

    def forward(self, x: Tensor, step: Step, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """x [N, hidden] -> [N, hidden]."""
        heads = self._heads(self.norm(x), step.angles[self.local])
        y = self.out(self._attend(heads, step, k_cache, v_cache))
        x = x + (self.post_norm(y) if self.config.post_norms else y)
        h = self.ffn_norm(x)
        gate, silu = self.gate(h), self.config.activation == "silu"
        active = functional.silu(gate) if silu else functional.gelu(gate, approximate="tanh")
        y = self.down(active * self.up(h))
        return x + (self.post_ffn_norm(y) if self.config.post_norms else y)

    def _heads(self, h: Tensor, angles: Pair) -> Tensor:
        """h [N, hidden] -> q, k and v heads, rotated where they are to be: [H + 2K, N, D].

        ``swap`` gives (-right, left) exactly: each of its sums has one term that is not zero.
        """
        c = self.config
        x = self.qkv(h).view(-1, c.heads + 2 * c.kv_heads, c.head_dim)
        if c.qk_norm:
            x = self.head_norm(x)
        return (x * angles[0] + self.swap(x) * angles[1]).permute(1, 0, 2)

    def _attend(self, heads: Tensor, step: Step, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """softmax(q·k + mask)·v as two products: the denominator is a product with ones, in the same order."""
        c = self.config
        kv, groups, size = c.kv_heads, c.heads // c.kv_heads, c.head_dim
        k_cache.index_copy_(1, step.slots, heads[c.heads : c.heads + kv])
        v_cache.index_copy_(1, step.slots, heads[c.heads + kv :])
        q = heads[: c.heads].reshape(kv, -1, size)
        scores = torch.bmm(q, k_cache.permute(0, 2, 1))
        if c.attention_softcap is not None:
            scores = torch.tanh(scores * (1 / c.attention_softcap)) * c.attention_softcap
        scores = scores + step.masks[self.local]
        shares = torch.exp(scores - scores.amax(-1, keepdim=True))
        y = torch.bmm(shares, v_cache) / torch.bmm(shares, step.ones)
        return y.view(kv, groups, -1, size).permute(2, 0, 1, 3).reshape(-1, c.heads * size)


def _by_head(config: DecoderConfig, q: float, k: float, v: float) -> Tensor:
    """One number for each head of q, k and v: float32[H + 2K, 1]."""
    kv = config.kv_heads
    return torch.tensor([q] * config.heads + [k] * kv + [v] * kv)[:, None]


def half_swap_product(size: int) -> FixedLinear:
    """The product that takes (left, right) to (-right, left), each of ``size`` / 2 elements."""
    matrix, left = torch.zeros(size, size), torch.arange(size // 2)
    matrix[left, left + size // 2] = -1.0
    matrix[left + size // 2, left] = 1.0
    return _fixed(matrix)


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """``context``: slots a session may have; ``taps``: layers whose hidden states are an output; ``rows``: rows of the
    output matrix to keep, None = all; ``embedding_bits`` 4 or 8; ``group``: values per embedding scale."""

    context: int
    taps: tuple[int, ...] = ()
    rows: tuple[int, ...] | None = None
    embedding_bits: int = 4
    group: int = 32


class Turning(nn.Module):
    """Cosines and sines of positions below ``context``: q heads turn and are scaled, k heads turn, v heads stay as they
    are (cosine 1, sine 0)."""

    def __init__(self, config: DecoderConfig, context: int, *, local: bool = False) -> None:
        super().__init__()
        full, near = angle_tables(config, context)
        cos, sin = near if local else full
        self.register_buffer("cos", torch.cat([cos, cos], -1))
        self.register_buffer("sin", torch.cat([sin, sin], -1))
        self.register_buffer("turned", _by_head(config, config.query_scale, 1.0, 0.0))
        self.register_buffer("still", _by_head(config, 0.0, 0.0, 1.0))

    def forward(self, positions: Tensor) -> Pair:
        """positions int64[N] -> two of float32[N, H + 2K, D]."""
        cosines, sines = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        return cosines * self.turned + self.still, sines * self.turned


class Program(nn.Module):
    """The module that is exported. ``forward`` returns logits float32[R, V'], then hidden float32[N, T·hidden] if there
    are taps; V' = V, or the number of kept output rows."""

    def __init__(self, decoder: Decoder, spec: ProgramSpec) -> None:
        super().__init__()
        config = decoder.config
        self.config, self.taps = config, spec.taps
        weight = decoder.head.weight
        self.head = linear(weight[list(spec.rows)] if spec.rows is not None else weight.clone())
        self.embedding = QuantizedEmbedding(decoder.embedding.weight, spec.embedding_bits, spec.group)
        self.layers = nn.ModuleList(Layer(block, config, i) for i, block in enumerate(decoder.blocks))
        self.norm = Norm(decoder.norm)
        self.windowed = any(config.is_local(i) for i in range(config.layers))
        self.turning = Turning(config, spec.context)
        if self.windowed:
            self.local_turning = Turning(config, spec.context, local=True)

    def forward(self, fed: Fed, masks: Sequence[Tensor], ones: Tensor, caches: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """``masks``: float32[N, C], 0 where a token sees a slot and very negative elsewhere, a second one for local
        layers; ``ones``: float32[K, C, 1]; ``caches``: k then v of each layer, float32[K, C, D], written in place."""
        tokens, positions, slots, rows = fed
        groups = self.config.heads // self.config.kv_heads
        x = self.embedding(tokens)
        if self.config.embed_scale != 1.0:
            x = x * self.config.embed_scale
        full = self.turning(positions)
        angles = (full, self.local_turning(positions) if self.windowed else full)
        step = Step(angles, tiled(masks, groups), slots, ones)
        tapped = {}
        for index, layer in enumerate(self.layers):
            x = layer(x, step, caches[2 * index], caches[2 * index + 1])
            tapped[index] = x
        logits = self.head(self.norm(x[rows]))
        if (cap := self.config.final_softcap) is not None:
            logits = torch.tanh(logits * (1 / cap)) * cap
        return (logits, torch.cat([tapped[i] for i in self.taps], -1)) if self.taps else (logits,)


def tiled(masks: Sequence[Tensor], groups: int) -> tuple[Tensor, Tensor]:
    """One copy of a mask for each query head of a group: float32[G·N, C]."""
    tiled = [torch.cat([mask] * groups) if groups > 1 else mask for mask in masks]
    return tiled[0], tiled[-1]
