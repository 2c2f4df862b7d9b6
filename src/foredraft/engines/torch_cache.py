"""Keys and values of one sequence in torch tensors, and attention over them, written out.

Knows slots (rows of the cache) and masks; which token lies in which slot is the business of ``slots``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.engines.slots import Moves
from foredraft.models.config import DecoderConfig

SMALLEST = 256
"""Slots of the first allocation; then it doubles."""


class TorchCache:
    """Per layer two tensors [K, capacity, D]. The capacity grows in powers of two up to ``context``."""

    def __init__(self, config: DecoderConfig, context: int, weights: Tensor) -> None:
        """Type and device are those of ``weights``."""
        self._context, self.capacity = context, 0
        shape = (config.kv_heads, 0, config.head_dim)
        self._rows = [(weights.new_empty(shape), weights.new_empty(shape)) for _ in range(config.layers)]

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        device: torch.device = self._rows[0][0].device
        return device

    def reserve(self, slots: int) -> None:
        """Make room for ``slots`` rows; what is there stays."""
        if slots <= self.capacity:
            return
        before, self.capacity = self.capacity, min(self._context, max(SMALLEST, 1 << (slots - 1).bit_length()))
        for layer, (keys, values) in enumerate(self._rows):
            self._rows[layer] = self._grown(keys, before), self._grown(values, before)

    def _grown(self, rows: Tensor, before: int) -> Tensor:
        larger = rows.new_zeros((rows.shape[0], self.capacity, rows.shape[2]))
        larger[:, :before] = rows
        return larger

    def write(self, layer: int, first: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put k and v [N, K, D] into the slots from ``first`` on; all rows up to them, twice [K, first + N, D]."""
        end = first + k.shape[0]
        for rows, new in zip(self._rows[layer], (k, v), strict=True):
            rows[:, first:end] = new.transpose(0, 1)
        keys, values = self._rows[layer]
        return keys[:, :end], values[:, :end]

    def move(self, moves: Moves) -> None:
        """Copy rows; all sources are read before a target is written."""
        if not len(moves):
            return
        sources, targets = (torch.from_numpy(each).to(self.device) for each in (moves.sources, moves.targets))
        for rows in (tensor for pair in self._rows for tensor in pair):
            rows.index_copy_(1, targets, rows.index_select(1, sources))


def attention(q: Tensor, rows: tuple[Tensor, Tensor], hidden: Tensor, softcap: float | None) -> Tensor:
    """softmax(q·k) · v. q [N, H, D], scaled; rows: keys and values [K, S, D]; ``hidden`` bool[N, S]: what a token does
    not see. ``softcap`` c bends products: x -> c·tanh(x / c). Returns [N, H, D] in the values' type.

    Query head h looks at key/value head h·K/H (grouped queries, arXiv 2305.13245). The softmax is float32.
    """
    keys, values = rows
    count, heads, size = q.shape
    groups = keys.shape[0]
    stacked = q.to(keys.dtype).view(count, groups, heads // groups, size).permute(1, 2, 0, 3)
    products = (stacked.reshape(groups, -1, size) @ keys.transpose(1, 2)).float()
    if softcap is not None:
        products = products.div_(softcap).tanh_().mul_(softcap)
    products = products.view(groups, heads // groups, count, -1).masked_fill_(hidden, -torch.inf)
    weights = products.softmax(-1).to(values.dtype).view(groups, -1, keys.shape[1])
    mixed = (weights @ values).view(groups, heads // groups, count, size)
    return mixed.permute(2, 0, 1, 3).reshape(count, heads, size)
