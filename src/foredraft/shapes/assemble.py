"""Makes a ModelShape of a decoder's sizes, for models of which no file is at hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType

from foredraft.modelfile import ModelShape
from foredraft.shapes.weights import Sizes, Weights, count


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside the sizes. ``window``: tokens a local layer sees; ``period`` n: every n-th layer sees all,
    0 = none does. ``parameters``: as its maker counts them; None = the tensors' count."""

    name: str
    architecture: str
    context: int
    window: int | None = None
    period: int = 0
    parameters: int | None = None


def assemble(sizes: Sizes, weights: Weights, facts: Facts) -> ModelShape:
    """The shape. Weights are counted tensor by tensor, unless ``facts.parameters`` says how many there are: then their
    bytes are parameters × bits / 8, rounded up. The file counts as the weights alone."""
    counted = count(sizes, weights)
    total, by_type, number = sum(counted.by_type.values()), counted.by_type, counted.parameters
    if facts.parameters is not None:
        number = facts.parameters
        total = math.ceil(number * weights.bits(sizes) / 8)
        by_type = {weights.name: total}
    return ModelShape(
        architecture=facts.architecture,
        name=facts.name,
        vocab_size=sizes.vocab,
        context_length=facts.context,
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        kv_heads_by_layer=(sizes.kv_heads,) * sizes.layers,
        head_size_k=sizes.head_size,
        head_size_v=sizes.head_size,
        embedding_length=sizes.hidden,
        feed_forward_length=sizes.ffn,
        sliding_window=facts.window,
        parameters=number,
        weight_bytes=total,
        quantization=MappingProxyType(by_type),
        chat_template=None,
        recurrent=False,
        windows=_windows(sizes.layers, facts),
        file_bytes=total,
        embedding_bytes=counted.embedding,
        output_bytes=counted.output,
        source="description",
    )


def _windows(layers: int, facts: Facts) -> tuple[int | None, ...]:
    if facts.window is None or facts.period == 1:
        return ()
    period = facts.period or layers + 1
    return tuple(facts.window if layer % period < period - 1 else None for layer in range(layers))
