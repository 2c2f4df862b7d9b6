"""Which tensors of a file make up each parameter of a ``Decoder``, and the copying, a few rows at a time.

Knows nothing about file formats: a ``TensorSource`` hands out rows, a ``Style`` says how its makers name things.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from foredraft.gguf_types import fail, printable
from foredraft.models.config import DecoderConfig

PIECE = 1 << 22
"""Elements read at once: the memory that loading needs beside the weights themselves."""


class TensorSource(Protocol):
    """The tensors of one model. Shapes are in torch's order: rows (outputs) first."""

    @property
    def path(self) -> Path:
        """The file or directory, for messages."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor that the file holds."""
        ...

    def check(self, name: str) -> None:
        """ModelFileError if the tensor's element type cannot be read."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a tensor, of a floating type."""
        ...


@dataclass(frozen=True, slots=True)
class Style:
    """How a file format names and stores weights.

    ``names``: role -> name without ".weight"; those inside a block hold ``{}``. ``interleaved``: q and k rows are in
    the order that rotates neighbours (2j, 2j + 1), not halves (j, j + D/2). ``norm_shift`` is added to norm weights.
    """

    names: Mapping[str, str]
    interleaved: bool = False
    norm_shift: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of the file whose rows go below those of the parts before it. ``heads``: 0, or the number of heads
    whose rows are interleaved; ``shift`` is added to every element."""

    name: str
    shape: tuple[int, ...]
    heads: int = 0
    shift: float = 0.0


Layout = dict[str, tuple[Part, ...]]
"""Name of a parameter of ``Decoder`` -> what it is made of."""


def layout(config: DecoderConfig, style: Style) -> Layout:
    """The tensors of a model of this shape. Of a tied head there is none."""
    table = (config.vocab_size, config.hidden_size)
    result: Layout = {
        "embedding.weight": (Part(f"{style.names['embedding']}.weight", table),),
        "norm.weight": _norm(style, "norm", config.hidden_size, 0),
    }
    if not config.tied:
        result["head.weight"] = (Part(f"{style.names['head']}.weight", table),)
    for layer in range(config.layers):
        block = {**_attention(config, style, layer), **_feed_forward(config, style, layer)}
        result |= {f"blocks.{layer}.{name}": parts for name, parts in block.items()}
    return result


def _norm(style: Style, role: str, size: int, layer: int) -> tuple[Part, ...]:
    return (Part(f"{style.names[role].format(layer)}.weight", (size,), shift=style.norm_shift),)


def _attention(config: DecoderConfig, style: Style, layer: int) -> Layout:
    c, hidden = config, config.hidden_size
    heads = {"q": c.heads, "k": c.kv_heads, "v": c.kv_heads}

    def fused(ending: str, tail: tuple[int, ...]) -> tuple[Part, ...]:
        return tuple(
            Part(
                f"{style.names[role].format(layer)}.{ending}",
                (count * c.head_dim, *tail),
                heads=count if style.interleaved and role != "v" else 0,
            )
            for role, count in heads.items()
        )

    result: Layout = {
        "attention_norm.weight": _norm(style, "attention_norm", hidden, layer),
        "attention.qkv.weight": fused("weight", (hidden,)),
        "attention.out.weight": (Part(f"{style.names['out'].format(layer)}.weight", (hidden, c.heads * c.head_dim)),),
    }
    if c.qkv_bias:
        result["attention.qkv.bias"] = fused("bias", ())
    if c.qk_norm:
        result |= {f"attention.{role}.weight": _norm(style, role, c.head_dim, layer) for role in ("q_norm", "k_norm")}
    if c.post_norms:
        result["post_attention_norm.weight"] = _norm(style, "post_attention_norm", hidden, layer)
    return result


def _feed_forward(config: DecoderConfig, style: Style, layer: int) -> Layout:
    hidden, size = config.hidden_size, config.ffn_size

    def matrix(role: str, shape: tuple[int, int]) -> Part:
        return Part(f"{style.names[role].format(layer)}.weight", shape)

    result: Layout = {
        "ffn_norm.weight": _norm(style, "ffn_norm", hidden, layer),
        "ffn.gate_up.weight": (matrix("gate", (size, hidden)), matrix("up", (size, hidden))),
        "ffn.down.weight": (matrix("down", (hidden, size)),),
    }
    if config.post_norms:
        result["post_ffn_norm.weight"] = _norm(style, "post_ffn_norm", hidden, layer)
    return result


def check_tensors(source: TensorSource, plan: Layout, unused: Iterable[str] = ()) -> None:
    """ModelFileError unless the file holds the tensors of ``plan``, in their shapes, and else only ``unused``."""
    wanted = {part.name: part.shape for parts in plan.values() for part in parts}
    missing = [name for name in wanted if name not in source.shapes]
    if missing:
        fail(source.path, f"lacks {_listed(missing)} of its architecture; get a complete copy")
    extra = sorted(source.shapes.keys() - wanted.keys() - set(unused))
    if extra:
        fail(source.path, f"holds {_listed(extra)}, which its architecture does not use here; use another engine")
    for name, shape in wanted.items():
        if source.shapes[name] != shape:
            fail(source.path, f"tensor '{name}' has shape {source.shapes[name]}, not {shape}; get another copy")
        source.check(name)


def _listed(names: list[str]) -> str:
    first = f"tensor '{printable(names[0], 80)}'"
    return first if len(names) == 1 else f"{len(names)} tensors ('{printable(names[0], 80)}' and others)"


def read_parameter(source: TensorSource, parts: tuple[Part, ...], dtype: torch.dtype) -> Tensor:
    """One parameter as a new tensor; never more than ``PIECE`` elements exist a second time."""
    height = sum(part.shape[0] for part in parts)
    result = torch.empty((height, *parts[0].shape[1:]), dtype=dtype)
    base = 0
    for part in parts:
        _copy(source, part, result[base : base + part.shape[0]])
        base += part.shape[0]
    return result


def _copy(source: TensorSource, part: Part, into: Tensor) -> None:
    height, step = part.shape[0], max(1, PIECE // prod(part.shape[1:]))
    order = _halves_apart(height, part.heads) if part.heads else None
    for start in range(0, height, step):
        stop = min(start + step, height)
        rows = source.rows(part.name, start, stop)
        if part.shift:
            rows = rows.float() + part.shift
        if order is None:
            into[start:stop].copy_(rows)
        else:
            into.index_copy_(0, order[start:stop], rows.to(into.dtype))


def _halves_apart(height: int, heads: int) -> Tensor:
    """Where each row goes: within a head row 2j goes to j, row 2j + 1 to j + D/2."""
    return torch.arange(height).view(heads, 2, -1).transpose(1, 2).flatten()
