"""A head trained on its own output: several steps without the target, as it will draft (arXiv 2503.01840, section 3.2,
"training-time test").

The stream is indexed by t, the last token whose states are known. Step j reads the token t+1+j, and instead of states
its own output of step j-1; it predicts token t+2+j. Its attention sees what was known, indices up to t, and its own
steps 1..j at the same t: exactly what its cache holds when it drafts. Shapes: B texts, N stream indices, h hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.models.head import DraftHead
from foredraft.train.batch import Rotation, causal_attention


@dataclass(frozen=True)
class Batch:
    """``ids`` int64[B, T], padded on the right; ``states`` float[B, T, taps·h]; ``log_totals`` float32[B, T]: log of
    the sum of the target's exponentials; ``best`` int64[B, T]: its likeliest next token; ``first``, ``end`` int64[B]:
    the answer's first token, and the text's length."""

    ids: Tensor
    states: Tensor
    log_totals: Tensor
    best: Tensor
    first: Tensor
    end: Tensor


def rollout(head: DraftHead, embedding: Tensor, batch: Batch, steps: int, rotation: Rotation) -> Iterator[Tensor]:
    """The head's outputs [B, N, h] of steps 0 .. ``steps`` - 1, N = T - 1; ``embedding`` [V, h] is the target's.

    The law that step j guesses at index t is the target's at position t+1+j.
    """
    config = head.config
    count = batch.ids.shape[1] - 1
    index = torch.arange(count, device=batch.ids.device)
    attention = _Steps(head)
    state = head.fused(batch.states[:, :count])
    for step in range(steps):
        read = batch.ids[:, (index + 1 + step).clamp_max(count)]
        embedded = embedding[read].to(state.dtype)
        if config.embed_scale != 1.0:
            embedded = embedded * config.embed_scale
        state = head(embedded, state, rotation.at((index + step)[None]), attention.attend)
        yield state


def answers(batch: Batch) -> tuple[Tensor, Tensor]:
    """(text, position) int64[n] each: the positions whose next token belongs to an answer, text by text."""
    at = torch.arange(batch.ids.shape[1], device=batch.ids.device)[None]
    inside = (at >= batch.first[:, None] - 1) & (at < batch.end[:, None] - 1)
    rows, positions = inside.nonzero(as_tuple=True)
    return rows, positions


class _Steps:
    """Attention of one rollout: remembers keys and values of the steps before."""

    def __init__(self, head: DraftHead) -> None:
        self._config = head.config.decoder(1)
        self._known: tuple[Tensor, Tensor] | None = None
        self._own: list[tuple[Tensor, Tensor]] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, N, H, D], scaled; k, v [B, N, K, D] -> [B, N, H, D]."""
        if self._known is None:
            self._known = k, v
            return causal_attention(self._config, layer, q, k, v)
        self._own.append((k, v))
        return self._later(q)

    def _later(self, q: Tensor) -> Tensor:
        """One softmax over the known indices up to t and over the own steps at t."""
        assert self._known is not None
        size, kv = q.shape, self._config.kv_heads
        grouped = q.unflatten(2, (kv, -1)).permute(0, 2, 3, 1, 4)  # [B, K, G, N, D]
        keys, values = (x.transpose(1, 2).unsqueeze(2) for x in self._known)  # [B, K, 1, N, D]
        hidden = torch.ones(size[1], size[1], dtype=torch.bool, device=q.device).triu(1)
        scores = (grouped @ keys.transpose(-1, -2)).float().masked_fill(hidden, -torch.inf)
        own = [(grouped * _by_head(key)).sum(-1, keepdim=True).float() for key, _ in self._own]
        shares = torch.cat([scores, *own], -1).softmax(-1).to(q.dtype)
        mixed = shares[..., : size[1]] @ values
        for number, (_, value) in enumerate(self._own):
            mixed = mixed + shares[..., size[1] + number, None] * _by_head(value)
        return mixed.permute(0, 3, 1, 2, 4).reshape(size)


def _by_head(x: Tensor) -> Tensor:
    """[B, N, K, D] -> [B, K, 1, N, D]."""
    return x.transpose(1, 2).unsqueeze(2)
