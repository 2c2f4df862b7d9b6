"""A torch decoder over many texts at once: writes them side by side, or reads finished ones for states and laws.

Knows nothing about prompts, files or sampling. Shapes: B texts, N tokens, S slots, H heads, K key/value heads, D head
size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from foredraft.models.config import DecoderConfig
from foredraft.models.decoder import Angles, Attend, Decoder, angle_tables

Pair = tuple[Tensor, Tensor]


class Rotation:
    """Angles of positions below ``length``; type and device are those of ``weight``."""

    def __init__(self, config: DecoderConfig, weight: Tensor, length: int) -> None:
        tables = angle_tables(config, length)
        self._full, self._local = (tuple(table.to(weight) for table in pair) for pair in tables)

    def at(self, positions: Tensor) -> Angles:
        """positions int64[*] -> angles [*, 1, D/2]."""

        def picked(pair: tuple[Tensor, ...]) -> Pair:
            cos, sin = pair
            return cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)

        return Angles(picked(self._full), picked(self._local))


class RowCaches:
    """Keys and values of ``rows`` texts of up to ``context`` tokens: for each layer two tensors [B, K, context, D]."""

    def __init__(self, decoder: Decoder, rows: int, context: int) -> None:
        config = decoder.config
        self.decoder, self.rows, self.context = decoder, rows, context
        shape = (rows, config.kv_heads, context, config.head_dim)
        weight = decoder.embedding.weight
        self._caches = [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in range(config.layers)]
        self._rotation = Rotation(config, weight, context)

    @torch.inference_mode()
    def read(self, rows: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
        """Start new ``texts`` in ``rows``: logits [len(rows), V] behind the last token of each."""
        config, lengths = self.decoder.config, [len(text) for text in texts]
        device = self.decoder.embedding.weight.device
        tokens = padded(texts).to(device)
        at = torch.tensor(list(rows), device=device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            for cache, new in zip(self._caches[layer], (k, v), strict=True):
                cache[at, :, : new.shape[1]] = new.transpose(1, 2)
            return causal_attention(config, layer, q, k, v)

        angles = self._rotation.at(torch.arange(tokens.shape[1], device=device)[None])
        last = self.decoder.hidden(tokens, angles, attend)[-1]
        ends = torch.tensor(lengths, device=device) - 1
        return self.decoder.logits(last[torch.arange(len(texts), device=device), ends])

    @torch.inference_mode()
    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """One more token for every row, the one at ``positions`` of its text: logits [B, V]. A row that is not in use
        is given any token, and its result means nothing."""
        config, device = self.decoder.config, self.decoder.embedding.weight.device
        at, used = torch.tensor(list(positions), device=device), max(positions) + 1
        slots = torch.arange(used, device=device)[None]
        seen = slots <= at[:, None]
        near = seen if config.window is None else seen & (slots > at[:, None] - config.window)
        rows = torch.arange(self.rows, device=device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._caches[layer]
            keys[rows, :, at], values[rows, :, at] = k[:, 0], v[:, 0]
            mask = (near if config.is_local(layer) else seen)[:, None, None]
            grouped = q.view(self.rows, config.kv_heads, -1, config.head_dim).transpose(1, 2)  # [B, G, K, D]
            return (
                _attention(config, grouped, (keys[:, :, :used], values[:, :, :used]), mask)
                .transpose(1, 2)
                .flatten(1, 2)[:, None]
            )

        angles = self._rotation.at(at[:, None])
        last = self.decoder.hidden(torch.tensor(list(tokens), device=device)[:, None], angles, attend)[-1]
        return self.decoder.logits(last[:, 0])


def causal(config: DecoderConfig) -> Attend:
    """Attention of whole texts, fed at once and padded on the right."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal_attention(config, layer, q, k, v)

    return attend


def causal_attention(config: DecoderConfig, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [B, N, H, D], scaled; k, v [B, N, K, D] -> [B, N, H, D]: every token sees itself and those before it."""
    mask = None
    if config.is_local(layer) or config.attention_softcap is not None:
        at = torch.arange(q.shape[1], device=q.device)
        back = at[:, None] - at[None]
        mask = (back >= 0) & (back < (config.window or len(back) if config.is_local(layer) else len(back)))
    return _attention(config, q, (k.transpose(1, 2), v.transpose(1, 2)), mask)


def _attention(config: DecoderConfig, q: Tensor, rows: Pair, mask: Tensor | None) -> Tensor:
    """q [B, N, H, D], rows [B, K, S, D]; ``mask`` bool [*, N, S], True = seen, None = causal. For one new token a text
    the heads of a group may stand in for N: then each key is read once."""
    keys, values = rows
    heads = q.transpose(1, 2)
    if config.attention_softcap is None:
        mixed = functional.scaled_dot_product_attention(
            heads, keys, values, attn_mask=mask, is_causal=mask is None, scale=1.0, enable_gqa=True
        )
        return mixed.transpose(1, 2)
    assert mask is not None
    cap, groups = config.attention_softcap, q.shape[2] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    products = cap * torch.tanh((heads @ keys.transpose(-1, -2)).float() / cap)
    shares = products.masked_fill(~mask, -torch.inf).softmax(-1).to(values.dtype)
    return (shares @ values).transpose(1, 2)


def padded(texts: Sequence[Sequence[int]]) -> Tensor:
    """int64[len(texts), longest], zeros on the right."""
    longest = max(len(text) for text in texts)
    return torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
