"""Reads and checks the header of a safetensors file: 8 bytes of length, then JSON. The tensors' data stays unread.

Format: https://github.com/huggingface/safetensors, section "Format".
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeGuard

from foredraft.gguf_types import foreign_format, printable
from foredraft.shapes.web import refuse

MAX_JSON = 2 << 20
"""Bytes of JSON that are parsed: as Python objects they can take 30 times as much."""
_LENGTH = struct.Struct("<Q")
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_MAX_RANK = 16


class Readable(Protocol):
    """A file that is read from its beginning."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its type's name, its shape, and its ``nbytes`` bytes from ``start`` on behind the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def read_header(place: str, file: Readable, size: int) -> Mapping[str, StoredTensor]:
    """The tensors by name of the file of ``size`` bytes, called ``place`` in errors, all of them ModelFileError."""
    head = _exactly(file, _LENGTH.size)
    length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
    if not 2 <= length <= size - _LENGTH.size:
        what = f"it would begin with a header of {length} bytes, but the file has {size}"
        refuse(place, f"is no whole safetensors file: {what} (it looks like {foreign_format(head)}); download it again")
    if length > MAX_JSON:
        refuse(place, f"has a header of {length} bytes; at most {MAX_JSON} are read; get another copy")
    data = _exactly(file, length)
    if len(data) != length:
        refuse(place, f"is truncated: its header ends after {len(data)} of {length} bytes; download it again")
    found = {
        name: _tensor(place, name, item) for name, item in json_object(place, data).items() if name != "__metadata__"
    }
    _check_layout(place, found, size - _LENGTH.size - length)
    return found


def _exactly(file: Readable, size: int) -> bytes:
    parts = []
    while size > 0 and (data := file.read(size)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def json_object(place: str, data: bytes) -> dict[str, Any]:
    """``data`` as a JSON object in which no key appears twice; ModelFileError otherwise."""
    try:
        value = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        refuse(place, f"is not JSON ({printable(str(error), 80)}); get another copy")
    if not isinstance(value, dict):
        refuse(place, "is not a JSON object; get another copy")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name appears twice")
    return values


def _tensor(place: str, name: str, item: object) -> StoredTensor:
    """One entry of the header, checked in itself."""
    shown = f"tensor '{printable(name, 64)}'"
    if not isinstance(item, dict):
        refuse(place, f"header is damaged: {shown} is no object; get another copy")
    dtype, shape, offsets = item.get("dtype"), item.get("shape"), item.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        refuse(place, f"{shown} has type {printable(repr(dtype), 40)}; allowed: {', '.join(_BITS)}; get another copy")
    if not _are_counts(shape) or len(shape) > _MAX_RANK or not _are_counts(offsets) or len(offsets) != 2:
        refuse(place, f"header is damaged: {shown} has no valid shape or data_offsets; get another copy")
    start, stop = offsets
    bits = _BITS[dtype] * math.prod(shape)
    if bits != 8 * (stop - start):
        held = f"{dtype} of shape {printable(str(shape), 60)} in {stop - start} bytes"
        refuse(place, f"header is damaged: {shown} holds {held}; get another copy")
    return StoredTensor(dtype, tuple(shape), start, stop - start)


def _are_counts(value: object) -> TypeGuard[list[int]]:
    """True for a list of whole numbers from 0 that a file can have."""
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 53 for number in value)


def _check_layout(place: str, tensors: Mapping[str, StoredTensor], size: int) -> None:
    """Refuse tensors that leave the ``size`` bytes of data, and those that overlap."""
    ordered = sorted(tensors.items(), key=lambda item: (item[1].start, item[1].nbytes))
    for name, tensor in ordered:
        if tensor.start + tensor.nbytes > size:
            needed = f"'{printable(name, 64)}' ends at byte {tensor.start + tensor.nbytes} of {size} bytes of data"
            refuse(place, f"file is truncated: tensor {needed}; download it again")
    for (one, first), (two, second) in pairwise(ordered):
        if first.start + first.nbytes > second.start and second.nbytes:
            names = f"'{printable(one, 64)}' and '{printable(two, 64)}'"
            refuse(place, f"header is damaged: tensors {names} overlap; get another copy")
