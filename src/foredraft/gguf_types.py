"""The tables of the GGUF format (value types, tensor types, foreign magics) and how a file's fault is worded.

Reading a file is the business of ``gguf_header``. Sources: the GGUF specification and ``ggml.h``
(``enum ggml_type``), block sizes from ``ggml_blck_size`` and ``ggml_type_size``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from foredraft.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class TensorType:
    """An element type: ``block`` elements are stored together in ``nbytes`` bytes."""

    name: str
    block: int
    nbytes: int


TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 36),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
    42: TensorType("Q2_0", 64, 18),
}

REMOVED_TENSOR_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

BOOL, STRING, ARRAY, UINT32 = 7, 8, 9, 4

SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    BOOL: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
"""How a scalar metadata value of each type is stored; a boolean is one byte, 0 or 1."""

MAGICS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint or a wheel"),
    (0, b"\x80\x02", "a Python pickle, perhaps a PyTorch checkpoint"),
    (0, b"\x80\x04", "a Python pickle, perhaps a PyTorch checkpoint"),
    (0, b"\x80\x05", "a Python pickle, perhaps a PyTorch checkpoint"),
    (0, b"\x1f\x8b", "gzip data; unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "zstd data; unpack it first"),
    (0, b"\xfd7zXZ", "xz data; unpack it first"),
    (0, b"version https://git-lfs", "a git-lfs pointer, not the model; run `git lfs pull`"),
    (0, b"lmgg", "a GGML file of 2023"),
    (0, b"fmgg", "a GGMF file of 2023"),
    (0, b"tjgg", "a GGJT file of 2023"),
    (0, b"algg", "a GGLA adapter of 2023"),
    (4, b"ET1", "an ExecuTorch program"),
    (4, b"TFL3", "a LiteRT (TFLite) model"),
    (8, b'{"', "a safetensors file"),
)
"""(offset, bytes, description) of other formats that are met in place of a GGUF."""


def foreign_format(head: bytes) -> str:
    """What a file that begins with ``head`` (32 bytes are enough) seems to be, in words."""
    for offset, magic, description in MAGICS:
        if head[offset:].startswith(magic):
            return description
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "a web page, so the download link was not the file itself"
    if text.startswith((b"{", b"[")):
        return "JSON text"
    if not any(head):
        return "zeros, so the download was not finished"
    return f"data that begins with {head[:4]!r}"


def printable(text: str, most: int = 4096) -> str:
    """``text`` on one line, safe for a terminal: at most ``most`` characters, unprintable ones escaped."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def quote(raw: bytes) -> str:
    """A name from a file, in quotes, fit for a message."""
    return f"'{printable(raw.decode('utf-8', 'replace'), 64)}'"


def fail(path: Path, what: str) -> NoReturn:
    """Raise the one-line error about the file ``path``."""
    raise ModelFileError(f"{printable(str(path))}: {what}")
