"""Writes models as transformers stores them: config.json and safetensors files; independent of the code that reads."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (10, 16),
    "model.layers.0.self_attn.q_proj.weight": (16, 16),
    "model.norm.weight": (16,),
    "lm_head.weight": (10, 16),
}
"""Some of the tensors, enough to be counted."""


def entries(shapes: Mapping[str, tuple[int, ...]], dtype: str = "BF16", size: int = 2) -> dict[str, Any]:
    """A safetensors header in which tensors lie one behind the other, ``size`` bytes an element."""
    result: dict[str, Any] = {}
    at = 0
    for name, shape in shapes.items():
        end = at + size * int(np.prod(shape))
        result[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    return result


def with_header(header: object, data: int = 4096) -> bytes:
    """A safetensors file with this header and ``data`` bytes of zeros behind it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


def stored(shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> bytes:
    """A whole safetensors file."""
    return with_header(
        {"__metadata__": {"format": "pt"}, **entries(shapes)}, sum(2 * int(np.prod(s)) for s in shapes.values())
    )


def model_files(config: Mapping[str, Any] = CONFIG) -> dict[str, bytes]:
    """The files of a model in one piece."""
    return {"config.json": json.dumps(config).encode(), "model.safetensors": stored()}


def sharded_files(config: Mapping[str, Any] = CONFIG) -> dict[str, bytes]:
    """The same model in two pieces with an index."""
    names = list(SHAPES)
    pieces = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    files = {file: stored({name: SHAPES[name] for name in inside}) for file, inside in pieces.items()}
    mapping = {name: file for file, inside in pieces.items() for name in inside}
    index = {"metadata": {"total_size": 1}, "weight_map": mapping}
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        **files,
    }
