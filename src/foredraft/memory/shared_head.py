"""The size of a draft head that shares the target's embedding and output matrix: EAGLE-3 (arXiv 2503.01840)."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from foredraft.modelfile import ModelShape

_BITS = 4.5
_TAPS = 3


def head_shape(target: ModelShape) -> ModelShape:
    """One decoder layer over the fused hidden states of three target layers (arXiv 2503.01840, section 3.1), with the
    target's own sizes, at 4.5 bits a weight: fusing 3·h·h, queries 2·h·q, keys and values 2·2·h·k, output q·h, feed-
    forward 3·h·f elements, for h hidden, q and k elements of all query and KV heads, f of the feed-forward layer.
    Embedding and output matrix are the target's and count there."""
    hidden, inner = target.embedding_length, target.feed_forward_length or 4 * target.embedding_length
    queries = target.heads * target.head_size_k
    keys = target.kv_heads * target.head_size_k
    elements = _TAPS * hidden**2 + 2 * hidden * queries + 4 * hidden * keys + queries * hidden + 3 * hidden * inner
    nbytes = int(elements * _BITS / 8)
    return replace(
        target,
        name="shared-weight head",
        layers=1,
        kv_heads_by_layer=(target.kv_heads,),
        windows=(),
        parameters=elements,
        weight_bytes=nbytes,
        file_bytes=nbytes,
        embedding_bytes=0,
        output_bytes=0,
        quantization=MappingProxyType({"4.5 bits": nbytes}),
        recurrent=False,
        state_bytes=0,
        arena_bytes=None,
        source="description",
    )
