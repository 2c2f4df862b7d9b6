"""Weights from a GGUF file, dequantized a few rows at a time with the ``gguf`` package.

The header is checked by ``modelfile.read_gguf`` before a byte of the weights is read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from foredraft.errors import MissingExtra
from foredraft.gguf_header import GGUFHeader, TensorInfo
from foredraft.gguf_types import TENSOR_TYPES, fail
from foredraft.models.layout import Style

_NAMES = {
    "embedding": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "attention_norm": "blk.{}.attn_norm",
    "q": "blk.{}.attn_q",
    "k": "blk.{}.attn_k",
    "v": "blk.{}.attn_v",
    "q_norm": "blk.{}.attn_q_norm",
    "k_norm": "blk.{}.attn_k_norm",
    "out": "blk.{}.attn_output",
    "post_attention_norm": "blk.{}.post_attention_norm",
    "ffn_norm": "blk.{}.ffn_norm",
    "gate": "blk.{}.ffn_gate",
    "up": "blk.{}.ffn_up",
    "down": "blk.{}.ffn_down",
    "post_ffn_norm": "blk.{}.post_ffw_norm",
}


def gguf_style(architecture: str) -> Style:
    """``llama`` files hold q and k for a rotation of neighbours; Gemma's norms are stored as they multiply."""
    return Style(_NAMES, interleaved=architecture == "llama")


class GgufSource:
    """The tensors behind a checked header."""

    def __init__(self, header: GGUFHeader) -> None:
        self.path: Path = header.path
        self._tensors = {tensor.name: tensor for tensor in header.tensors}
        self.shapes = {tensor.name: tensor.shape[::-1] for tensor in header.tensors}

    def check(self, name: str) -> None:
        """ModelFileError if the tensor's type cannot be dequantized."""
        tensor = self._tensors[name]
        if not _readable(tensor.type_id):
            allowed = ", ".join(kind.name for number, kind in TENSOR_TYPES.items() if _readable(number))
            fail(
                self.path,
                f"tensor '{name}' has type {tensor.type_name}, which cannot be dequantized; "
                f"allowed: {allowed}; quantize the model again",
            )

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) in float32."""
        tensor = self._tensors[name]
        if len(tensor.shape) == 1:
            return torch.from_numpy(self._read(tensor, 0, 1).reshape(-1))[start:stop]
        return torch.from_numpy(self._read(tensor, start, stop))

    def _read(self, tensor: TensorInfo, start: int, stop: int) -> np.ndarray:
        """Rows of ``shape[0]`` elements, float32[stop - start, shape[0]]."""
        width = tensor.nbytes * tensor.shape[0] // tensor.elements
        size = (stop - start) * width
        try:
            raw = np.fromfile(self.path, np.uint8, size, offset=tensor.offset + start * width)
        except OSError as error:
            fail(self.path, f"cannot be read ({error.strerror}); check the disk or download it again")
        if len(raw) != size:
            fail(self.path, "became shorter while it was read; download it again")
        return _dequantize(raw.reshape(stop - start, width), tensor.type_id)


def _package() -> ModuleType:
    try:
        import gguf.quants
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "weights in a GGUF file are read with the package gguf; install it with: pip install 'foredraft[export]'"
        ) from error
    package: ModuleType = gguf
    return package


def _dequantize(raw: np.ndarray, type_id: int) -> np.ndarray:
    gguf = _package()
    values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(type_id))
    return np.require(values, np.float32, ["C", "A", "W"])


@cache
def _readable(type_id: int) -> bool:
    """Ask the package for one block of zeros: it has no list of what it can do."""
    try:
        _dequantize(np.zeros((1, TENSOR_TYPES[type_id].nbytes), np.uint8), type_id)
    except (NotImplementedError, ValueError):
        return False
    return True
