"""How many bytes a decoder's weights take in a given type, counted tensor by tensor. Knows no files."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from foredraft.errors import InvalidValue
from foredraft.gguf_types import TENSOR_TYPES, TensorType, printable

DEFAULT_WEIGHTS = "q4_0"
_NOT_FOR_WEIGHTS = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")
_TYPES = {kind.name: kind for kind in TENSOR_TYPES.values() if kind.name not in _NOT_FOR_WEIGHTS}
_ARTICLES = {kind.name: kind for kind in (TensorType("INT4", 2, 1), TensorType("INT8", 1, 1))}
"""What articles write: exactly 4 or 8 bits for every parameter, scales not counted."""
_GROUPED = TensorType("INT4-G32", 32, 18)
"""4 bits and one 16-bit scale for every 32 weights: 4.5 bits."""
_MIX = "Q4_K_M"
_FALLBACKS = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""What llama.cpp takes when a row is no whole number of blocks (``tensor_type_fallback`` in llama-quant.cpp); F16 when
that does not divide the row either."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes, in elements, of a decoder with gated feed-forward. ``tied``: the output matrix is the embedding.

    ``qkv_bias``: q, k and v have biases (Qwen2); ``qk_norm``: norms on the heads of q and k (Qwen3, Gemma 3);
    ``post_norms``: a second norm behind attention and feed-forward (Gemma 2 and 3).
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight of ``rows`` × ``columns`` elements; ``role`` is embedding, output, v, down, matrix or vector."""

    role: str
    rows: int
    columns: int
    layer: int = 0

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return self.rows * self.columns


def tensors(sizes: Sizes) -> Iterator[Tensor]:
    """Every tensor of the model, each once; a tied output matrix is not there."""
    yield Tensor("embedding", sizes.vocab, sizes.hidden)
    if not sizes.tied:
        yield Tensor("output", sizes.vocab, sizes.hidden)
    yield Tensor("vector", 1, sizes.hidden)
    for layer in range(sizes.layers):
        yield from _layer(sizes, layer)


def _layer(sizes: Sizes, layer: int) -> Iterator[Tensor]:
    queries, keys = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    yield Tensor("matrix", queries, sizes.hidden, layer)
    yield Tensor("matrix", keys, sizes.hidden, layer)
    yield Tensor("v", keys, sizes.hidden, layer)
    yield Tensor("matrix", sizes.hidden, queries, layer)
    yield Tensor("matrix", sizes.ffn, sizes.hidden, layer)
    yield Tensor("matrix", sizes.ffn, sizes.hidden, layer)
    yield Tensor("down", sizes.hidden, sizes.ffn, layer)
    yield Tensor("vector", 4 if sizes.post_norms else 2, sizes.hidden, layer)
    if sizes.qkv_bias:
        yield Tensor("vector", 1, queries + 2 * keys, layer)
    if sizes.qk_norm:
        yield Tensor("vector", 2, sizes.head_size, layer)


def parameters(sizes: Sizes) -> int:
    """Number of weights."""
    return sum(tensor.elements for tensor in tensors(sizes))


@dataclass(frozen=True, slots=True)
class Weights:
    """How weights are stored: ``kind`` for matrices, ``better`` for those that a mix keeps more exactly.

    ``uniform``: every parameter takes the same bits, as articles count. Otherwise norms and biases are F32, as in
    GGUF files.
    """

    name: str
    kind: TensorType
    better: TensorType | None = None
    uniform: bool = False

    def bits(self, sizes: Sizes) -> Fraction:
        """Bits of a parameter: those of ``kind``, or for a mix the mean over the model's tensors."""
        if self.better is None:
            return Fraction(8 * self.kind.nbytes, self.kind.block)
        counted = count(sizes, self)
        return Fraction(8 * sum(counted.by_type.values()), counted.parameters)

    def type_of(self, tensor: Tensor, sizes: Sizes) -> TensorType:
        """The type of one tensor.

        The mix is llama.cpp's Q4_K_M (``llama_tensor_get_type`` in llama-quant.cpp): Q6_K for the output matrix, or
        for the embedding that serves as one, and for v and down in the first and the last eighth of the layers and
        in every third one between; Q4_K for the rest.
        """
        if self.uniform:
            return self.kind
        if tensor.role == "vector":
            return _TYPES["F32"]
        kind = self.kind
        if self.better is not None and _is_better(tensor, sizes):
            kind = self.better
        return _fitting(kind, tensor.columns)


def _is_better(tensor: Tensor, sizes: Sizes) -> bool:
    if tensor.role in ("v", "down"):
        eighth = sizes.layers // 8
        inner = tensor.layer - eighth
        return inner < 0 or tensor.layer >= 7 * sizes.layers // 8 or inner % 3 == 2
    return tensor.role == "output" or (tensor.role == "embedding" and sizes.tied)


def _fitting(kind: TensorType, columns: int) -> TensorType:
    for name in (kind.name, _FALLBACKS.get(kind.name, "F16")):
        if columns % _TYPES[name].block == 0:
            return _TYPES[name]
    return _TYPES["F16"]


@dataclass(frozen=True, slots=True)
class Counted:
    """Weights of a model: how many, and bytes by type, of the embedding and of a separate output matrix."""

    parameters: int
    by_type: dict[str, int]
    embedding: int
    output: int


def count(sizes: Sizes, weights: Weights) -> Counted:
    """Count every tensor once. Bytes of a type are elements / block × bytes per block, rounded up once per type."""
    elements: dict[TensorType, int] = {}
    large = {"embedding": 0, "output": 0}
    for tensor in tensors(sizes):
        kind = weights.type_of(tensor, sizes)
        elements[kind] = elements.get(kind, 0) + tensor.elements
        if tensor.role in large:
            large[tensor.role] = _nbytes(kind, tensor.elements)
    by_type = {kind.name: _nbytes(kind, number) for kind, number in elements.items()}
    largest_first = dict(sorted(by_type.items(), key=lambda item: -item[1]))
    return Counted(sum(elements.values()), largest_first, large["embedding"], large["output"])


def _nbytes(kind: TensorType, elements: int) -> int:
    return -(-elements * kind.nbytes // kind.block)


def weights_named(name: str) -> Weights:
    """The type called ``name``: one of GGUF, the mix q4_k_m, or int4, int8, int4-g32; InvalidValue for others."""
    wanted = name.strip().upper().replace("-", "_")
    if wanted == _MIX:
        return Weights(_MIX, _TYPES["Q4_K"], _TYPES["Q6_K"])
    if wanted == "INT4_G32":
        return Weights(_GROUPED.name, _GROUPED, uniform=True)
    if wanted in _ARTICLES:
        return Weights(wanted, _ARTICLES[wanted], uniform=True)
    if wanted in _TYPES:
        return Weights(wanted, _TYPES[wanted])
    known = [*_TYPES, _MIX, *_ARTICLES, _GROUPED.name]
    near = difflib.get_close_matches(wanted, known, 3, 0.5) or ["Q4_0", _MIX, "Q8_0", "F16", "INT4"]
    names = ", ".join(one.lower() for one in near)
    raise InvalidValue("weights", printable(name, 40), f"a GGUF type, q4_k_m, int4, int8 or int4-g32, such as {names}")
