"""Writes small GGUF files for tests, valid ones by default; independent of the code that reads them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_DTYPES = {
    "u1": 0,
    "i1": 1,
    "u2": 2,
    "i2": 3,
    "u4": 4,
    "i4": 5,
    "f4": 6,
    "b1": 7,
    "u8": 10,
    "i8": 11,
    "f8": 12,
}


@dataclass(frozen=True)
class Typed:
    """A metadata value of the given GGUF type, or with ``array`` an array of that type."""

    kind: int
    value: object
    array: bool = False


@dataclass(frozen=True)
class RawTensor:
    """A tensor as it is to be written; ``offset`` None = behind the previous one, aligned."""

    name: str | bytes
    shape: tuple[int, ...]
    type_id: int
    data: bytes
    offset: int | None = None


def string(text: str | bytes) -> bytes:
    """A GGUF string: its length, then its bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: object) -> Typed:
    if isinstance(value, Typed):
        return value
    kinds: tuple[tuple[type, int], ...] = ((bool, 7), (int, 4), (float, 6), (str, 8), (bytes, 8))
    for kind, code in kinds:
        if isinstance(value, kind):
            return Typed(5 if code == 4 and isinstance(value, int) and value < 0 else code, value)
    if isinstance(value, np.ndarray):
        return Typed(_DTYPES[f"{value.dtype.kind}{value.dtype.itemsize}"], value.tolist(), True)
    assert isinstance(value, list | tuple)
    return Typed(_typed(value[0]).kind if value and not isinstance(value[0], int) else 5, value, True)


def _payload(kind: int, value: object) -> bytes:
    if kind == 8:
        assert isinstance(value, str | bytes)
        return string(value)
    return struct.pack(f"<{_FORMATS[kind]}", value)


def entry(key: str | bytes, value: object) -> bytes:
    """One key with its value: bool, int (uint32), float (float32), str, list, numpy array or Typed."""
    typed = _typed(value)
    if not typed.array:
        return string(key) + struct.pack("<I", typed.kind) + _payload(typed.kind, typed.value)
    assert isinstance(typed.value, list | tuple)
    head = struct.pack("<IIQ", 9, typed.kind, len(typed.value))
    return string(key) + head + b"".join(_payload(typed.kind, item) for item in typed.value)


def raw_tensors(tensors: Mapping[str, np.ndarray] | Sequence[RawTensor]) -> list[RawTensor]:
    """Float32 arrays [rows, columns] as tensors of ggml shape (columns, rows)."""
    if not isinstance(tensors, Mapping):
        return list(tensors)
    return [
        RawTensor(name, tuple(reversed(values.shape)), 0, values.astype("<f4").tobytes())
        for name, values in tensors.items()
    ]


def gguf_bytes(
    metadata: Mapping[str, object],
    tensors: Mapping[str, np.ndarray] | Sequence[RawTensor] = (),
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole file. ``alignment`` pads the data; to state it in the file add ``general.alignment``."""
    items, infos, data = raw_tensors(tensors), b"", b""
    for item in items:
        offset = len(data) if item.offset is None else item.offset
        infos += string(item.name) + struct.pack("<I", len(item.shape))
        infos += struct.pack(f"<{len(item.shape)}Q", *item.shape) + struct.pack("<IQ", item.type_id, offset)
        data += item.data + bytes(-len(item.data) % alignment)
    head = struct.pack("<4sIQQ", b"GGUF", version, len(items), len(metadata))
    head += b"".join(entry(key, value) for key, value in metadata.items()) + infos
    return head + bytes(-len(head) % alignment) + data


def write_gguf(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Mapping[str, np.ndarray] | Sequence[RawTensor] = (),
) -> Path:
    """Write a file and return ``path``."""
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def tiny_metadata(vocab: int = 16, layers: int = 1) -> dict[str, object]:
    """Metadata of a llama model with 2 heads, 1 key-value head, width 32 and a context of 64 tokens."""
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": layers,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 16,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(chr(97 + i) for i in range(vocab - 3))],
        "tokenizer.ggml.scores": np.zeros(vocab, np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [1] * (vocab - 3), np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def tiny_tensors(vocab: int = 16, layers: int = 1) -> dict[str, np.ndarray]:
    """The float32 weights, random but always the same, that go with ``tiny_metadata``."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, 32), "output_norm.weight": (32,)}
    for i in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            shapes[f"blk.{i}.{name}.weight"] = (32,)
        for name, rows, columns in (
            ("attn_q", 32, 32),
            ("attn_k", 16, 32),
            ("attn_v", 16, 32),
            ("attn_output", 32, 32),
            ("ffn_gate", 64, 32),
            ("ffn_up", 64, 32),
            ("ffn_down", 32, 64),
        ):
            shapes[f"blk.{i}.{name}.weight"] = (rows, columns)
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape, np.float32) * 0.1 for name, shape in shapes.items()}


def tiny_gguf() -> bytes:
    """A complete tiny model that llama.cpp loads too."""
    return gguf_bytes(tiny_metadata(), tiny_tensors())
