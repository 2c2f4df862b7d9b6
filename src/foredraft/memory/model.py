"""Memory of one model: weights, keys and values, buffers. One formula a line, with its units and source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from foredraft.errors import InvalidValue
from foredraft.gguf_types import TENSOR_TYPES, TensorType
from foredraft.memory.lines import DIRTY, Line, size
from foredraft.memory.runtimes import Runtime
from foredraft.modelfile import ModelShape

_BY_NAME = {kind.name.lower(): kind for kind in TENSOR_TYPES.values()}
KV_TYPES: dict[str, TensorType] = {name: _BY_NAME[name] for name in ("f32", "f16", "q8_0", "q5_1", "q4_0")}
"""Types that cached keys and values may have: a block of elements in so many bytes."""
_DRAFT_CHUNK = 64
"""Tokens a draft reads at once: it proposes a few and its prompt may take a few passes more."""


@dataclass(frozen=True, slots=True)
class Use:
    """``context``: tokens one request may have, prompt and answer. ``kv_type``: of cached keys and values.
    ``sequences``: requests at the same time. ``chunk``: tokens of a prompt in one pass; ``rows``: positions scored in
    one pass, which is the width of verification. ``windows``: layers with a sliding window keep only what they see and
    one chunk more; foredraft's engines keep all, because a rejected draft must be taken back from every layer. Raises
    InvalidValue."""

    context: int
    kv_type: str = "f16"
    sequences: int = 1
    chunk: int = 512
    rows: int = 64
    windows: bool = False

    def __post_init__(self) -> None:
        if self.kv_type not in KV_TYPES:
            raise InvalidValue("type of keys and values", self.kv_type, ", ".join(KV_TYPES))
        for name, most in (("context", 1 << 24), ("sequences", 256), ("chunk", 1 << 16), ("rows", 1 << 16)):
            if not 1 <= getattr(self, name) <= most:
                raise InvalidValue(name, getattr(self, name), f"1 to {most}")


def draft_use(use: Use, kv_type: str | None = None) -> Use:
    """How a draft is used beside a target: it reads at most 64 tokens at once, because a draft that inherits the
    target's chunk needs gigabytes of scratch for nothing (qualcomm/GenieX#1195), and scores few."""
    rows = min(use.rows, 16)
    chunk = min(use.chunk, max(_DRAFT_CHUNK, rows))
    return replace(use, kv_type=kv_type or use.kv_type, chunk=chunk, rows=rows)


def row_bytes(kind: str, elements: int) -> int:
    """Bytes of one row, which holds whole blocks.

    >>> row_bytes("f16", 128), row_bytes("q8_0", 128), row_bytes("q4_0", 64)
    (256, 136, 36)
    """
    block = KV_TYPES[kind]
    return -(-elements // block.block) * block.nbytes


def kv_bytes_per_token(shape: ModelShape, kv_type: str = "f16") -> int:
    """Σ over layers of KV heads × (key + value bytes of a head): bytes that each token of context takes in layers that
    see all of it or not. 2 × layers × KV heads × head size × bytes, where all layers are alike."""
    one = row_bytes(kv_type, shape.head_size_k) + row_bytes(kv_type, shape.head_size_v)
    return sum(heads * one for heads in shape.kv_heads_by_layer)


def cache_bytes(shape: ModelShape, use: Use, cells: int = 1) -> int:
    """Keys and values of all requests. ``cells``: the context is rounded up to a multiple of it."""
    whole = -(-use.context // cells) * cells
    one = row_bytes(use.kv_type, shape.head_size_k) + row_bytes(use.kv_type, shape.head_size_v)
    seen = shape.windows if use.windows and shape.windows else (None,) * shape.layers
    kept = (min(whole, -(-(window + use.chunk) // cells) * cells) if window else whole for window in seen)
    heads = shape.kv_heads_by_layer
    return use.sequences * sum(count * one * cells_of for count, cells_of in zip(heads, kept, strict=True))


def model_lines(shape: ModelShape, use: Use, runtime: Runtime, part: str) -> Iterator[Line]:
    """All lines of one model inside ``runtime``. InvalidValue for a cache type that the runtime does not have."""
    if use.kv_type not in runtime.kv_types:
        allowed = f"{', '.join(runtime.kv_types)} with {runtime.name}"
        raise InvalidValue("type of keys and values", use.kv_type, allowed)
    yield _weights(shape, runtime, part)
    yield _cache(shape, use, runtime, part)
    if runtime.name == "executorch":
        yield from _executorch_buffers(shape, use, part)
    else:
        yield from _llama_buffers(shape, use, part)
    if shape.recurrent and shape.state_bytes:
        yield _states(shape, use, part)
    formula = f"{shape.vocab_size} tokens × {runtime.per_token} bytes"
    yield Line(part, "vocabulary", shape.vocab_size * runtime.per_token, DIRTY, formula, runtime.source)


def _weights(shape: ModelShape, runtime: Runtime, part: str) -> Line:
    listed = [f"{name} {size(nbytes)}" for name, nbytes in shape.quantization.items() if nbytes >= 1 << 19]
    formula = f"tensor by tensor: {', '.join(listed)}"
    if shape.source == "export":
        formula = "size of the program"
    elif shape.source == "description" and len(shape.quantization) == 1:
        formula = f"{shape.parameters} parameters as {next(iter(shape.quantization))}"
    source = {"gguf": "header of the file", "export": "manifest of the export", "safetensors": "headers of the files"}
    return Line(
        part, "weights", shape.weight_bytes, runtime.weights, formula, source.get(shape.source, "the description given")
    )


def _cache(shape: ModelShape, use: Use, runtime: Runtime, part: str) -> Line:
    nbytes = cache_bytes(shape, use, runtime.cells)
    cells = -(-use.context // runtime.cells) * runtime.cells
    alike = len(set(shape.kv_heads_by_layer)) == 1
    layers = (
        f"{shape.layers} layers × {shape.kv_heads} KV heads" if alike else f"{sum(shape.kv_heads_by_layer)} KV heads"
    )
    sizes = f"({shape.head_size_k} + {shape.head_size_v})"
    several = f" × {use.sequences} requests" if use.sequences > 1 else ""
    several += ", layers with a window less" if use.windows and any(shape.windows) else ""
    formula = f"{layers} × {sizes} × {cells} tokens{several} as {use.kv_type}; drafted tokens lie in the same cells"
    source = "every token keeps one key and one value for each KV head of each layer (arXiv 2305.13245, section 2)"
    if runtime.name == "executorch":  # a column of ones beside the values, see docs/design/mobile-engine.md
        nbytes += 4 * shape.kv_heads * cells * use.sequences
    return Line(part, "keys and values", nbytes, DIRTY, formula, source)


def _llama_buffers(shape: ModelShape, use: Use, part: str) -> Iterator[Line]:
    """Fitted to what llama.cpp (llama-cpp-python 0.3.36, flash attention) reports for four models, contexts of 512 to
    32768 and chunks of 64 to 512: within 5 MiB of each, most within 1."""
    chunk, hidden, inner = min(use.chunk, use.context), shape.embedding_length, shape.feed_forward_length
    vocab, cells = shape.vocab_size, -(-use.context // 256) * 256
    masks = 0 if not any(shape.kv_heads_by_layer) else 2 if any(shape.windows) else 1
    layer = 4 * chunk * (3 * inner + 4 * hidden) + 2 * masks * chunk * cells
    head = 4 * (use.rows * vocab + (chunk + use.rows) * hidden)
    formula = (
        f"a layer's 4 bytes × {chunk} × (3 × {inner} + 4 × {hidden}) + {masks} masks of 2 bytes × {chunk} × {cells},"
        f" or the output's 4 bytes × {use.rows} × {vocab}, whichever is larger"
    )
    source = "measured: fitted to llama.cpp's reported compute buffers (docs/benchmarks.md, Memory)"
    yield Line(part, "compute buffer", max(layer, head), DIRTY, formula, source)
    rows = f"{use.rows} rows × {vocab} × 4 bytes"
    yield Line(part, "logits", 4 * use.rows * vocab, DIRTY, rows, "one row for each position of a verified tree")


def _executorch_buffers(shape: ModelShape, use: Use, part: str) -> Iterator[Line]:
    """The planned memory of a program is written into its manifest by the export; see ``ModelShape.arena_bytes``."""
    arena, formula = shape.arena_bytes, "planned memory, from the manifest"
    if arena is None:
        arena = 4 * (use.rows * shape.vocab_size + 6 * shape.heads * use.chunk * use.context)
        formula = (
            f"not known; about 4 bytes × ({use.rows} × {shape.vocab_size} + 6 × {shape.heads} heads × {use.chunk} "
            f"× {use.context}): logits and attention"
        )
    yield Line(part, "compute buffer", arena, DIRTY, formula, "memory plan of the program")
    rows = f"{use.rows} rows × {shape.vocab_size} × 4 bytes"
    yield Line(
        part, "logits", 4 * use.rows * shape.vocab_size, DIRTY, rows, "what a pass returns, kept for the sampler"
    )
    formula = f"{use.chunk} positions × (0.38 MiB + 4 bytes × {shape.heads} heads × {use.context} tokens)"
    scratch = use.chunk * (400_000 + 4 * shape.heads * use.context)
    source = "measured: XNNPACK, its attention and arrays of a pass (docs/benchmarks.md, Memory)"
    yield Line(part, "scratch", scratch, DIRTY, formula, source)


def _states(shape: ModelShape, use: Use, part: str) -> Line:
    """The running state, and the copy that a rejected draft is rolled back to."""
    assert shape.state_bytes is not None
    formula = f"{use.sequences} × 2 × {shape.state_bytes} bytes: the state, and a snapshot to go back to"
    return Line(
        part,
        "recurrent state",
        2 * use.sequences * shape.state_bytes,
        DIRTY,
        formula,
        "llama.cpp, n_embd_r and n_embd_s",
    )
