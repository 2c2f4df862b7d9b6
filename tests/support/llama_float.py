"""llama.cpp as a witness in float32: a file's weights as floats, for beside quantized weights it rounds activations to
8 bits; and no flash attention, which rounds to 16 bits."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.engines.llama_vocab import native_api
from foredraft.modelfile import read_gguf
from tests.support.gguf_writer import string

_ROWS = 4096


def write_float_copy(source: Path, target: Path) -> Path:
    """Same keys, every tensor dequantized by the ``gguf`` package; about 4 bytes per weight."""
    header = read_gguf(source)
    with source.open("rb") as file:
        head = file.read(header.data_offset)
    keys = head[: head.index(string(header.tensors[0].name))]
    infos, offset = b"", 0
    for tensor in header.tensors:
        rank = len(tensor.shape)
        infos += string(tensor.name) + struct.pack(f"<I{rank}Q", rank, *tensor.shape) + struct.pack("<IQ", 0, offset)
        offset += tensor.elements * 4 + -tensor.elements * 4 % 32
    data = np.memmap(source, np.uint8, "r")
    with target.open("wb") as file:
        file.write(keys + infos + bytes(-len(keys + infos) % 32))
        for tensor in header.tensors:
            kind = gguf.GGMLQuantizationType(tensor.type_id)
            rows = data[tensor.offset : tensor.offset + tensor.nbytes].reshape(tensor.elements // tensor.shape[0], -1)
            for start in range(0, len(rows), _ROWS):
                file.write(gguf.quants.dequantize(rows[start : start + _ROWS], kind).astype("<f4").tobytes())
            file.write(bytes(-tensor.elements * 4 % 32))
    return target


def float_engine(path: Path, context: int = 1024, lines: int = 1) -> LlamaEngine:
    """llama.cpp on one thread with a float32 cache and plain attention (its contexts are made in here, too: the first
    one at load, later ones by ``open``)."""
    return _Plain(path, LlamaConfig(context, threads=1, lines=lines, kv_type="f32", repack=False))


class _Plain(LlamaEngine):
    def __init__(self, path: Path, config: LlamaConfig) -> None:
        with _without_flash_attention():
            super().__init__(path, config)

    def open(self) -> Any:
        with _without_flash_attention():
            return super().open()


@contextmanager
def _without_flash_attention() -> Iterator[None]:
    api = native_api()
    defaults = api.llama_context_default_params

    def changed() -> Any:
        params = defaults()
        params.flash_attn_type = 0
        return params

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "llama_context_default_params", changed)
        yield
