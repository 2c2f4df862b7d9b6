"""Parses and checks a GGUF header: the only code that touches a model file's bytes before native code does.

It reads the header alone, never maps the file, and bounds every count by the file's size, so that no damage
costs more than a moment and 100 MB. It knows nothing about what a model needs in its header.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NoReturn

import numpy as np

from foredraft.gguf_types import (
    ARRAY,
    BOOL,
    REMOVED_TENSOR_TYPES,
    SCALARS,
    STRING,
    TENSOR_TYPES,
    UINT32,
    TensorType,
    fail,
    foreign_format,
    printable,
    quote,
)

MAX_HEADER = 48 << 20
"""Bytes a header may have; real ones, with a vocabulary of 262 144 tokens, have 6 to 17 MB."""
MAX_RANK = 4
MAX_KEYS = 16_384
MAX_TENSORS = 32_768
MAX_TEXT = 4 << 20
"""Bytes of text decoded in total; a single text longer than LONG_TEXT stays undecoded."""
LONG_TEXT = 1 << 20

_CHUNK = 1 << 20
_STRIDE = 64
AGAIN = "download it again"
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class StringArray:
    """A read-only array of strings that stay undecoded inside the header: len(), [i], iteration, raw(i).

    Every 64th position is remembered, so that item i costs at most 64 steps.
    """

    __slots__ = ("_count", "_data", "_marks")

    def __init__(self, data: bytearray, marks: array[int], count: int) -> None:
        self._data, self._marks, self._count = data, marks, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> str:
        return self.raw(index).decode("utf-8", "replace")

    def raw(self, index: int) -> bytes:
        """Item ``index`` as the bytes that are in the file; IndexError if there is none."""
        at = index + self._count if index < 0 else index
        if not 0 <= at < self._count:
            raise IndexError(f"item {index} of {self._count} strings")
        position = self._marks[at // _STRIDE]
        for _ in range(at % _STRIDE):
            position += 8 + int(_U64.unpack_from(self._data, position)[0])
        length = int(_U64.unpack_from(self._data, position)[0])
        return bytes(self._data[position + 8 : position + 8 + length])

    def __iter__(self) -> Iterator[str]:
        position = self._marks[0] if self._count else 0
        for _ in range(self._count):
            start = position + 8
            position = start + int(_U64.unpack_from(self._data, position)[0])
            yield self._data[start:position].decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"StringArray({self._count} strings)"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: ``shape`` in ggml order (contiguous dimension first), ``offset`` from the file's start."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    type_id: int
    offset: int
    nbytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """A checked header: every tensor lies inside the file and no two of them overlap.

    ``metadata`` values are int, float, bool, str, read-only numpy arrays, or StringArray; a text above 1 MiB
    (an embedded tokenizer file) stays a read-only memoryview.
    """

    path: Path
    version: int
    metadata: Mapping[str, object]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    file_size: int


@dataclass(frozen=True, slots=True)
class _Slice:
    """A numeric array that becomes a numpy view once the buffer has stopped growing."""

    dtype: np.dtype[np.generic]
    count: int
    offset: int


class HeaderReader:
    """Walks the header once; ``buffer`` holds the file's first bytes and grows on demand."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.file, self.size = path, file, size
        self.buffer = bytearray()
        self.position = 0
        self.decoded = 0
        self.alignment = 32

    def fail(self, what: str) -> NoReturn:
        """Raise the one-line error about this file."""
        fail(self.path, what)

    def damaged(self, what: str) -> NoReturn:
        """Raise the error for a header that contradicts the format."""
        fail(self.path, f"header is damaged: {what}; {AGAIN}")

    def need(self, end: int) -> None:
        """Make bytes [0, end) of the file available in ``buffer``."""
        if end > self.size:
            self.fail(
                f"file is truncated: the header needs bytes up to {end} but the file ends at {self.size}; {AGAIN}"
            )
        if end > MAX_HEADER:
            self.damaged(f"it claims more than {MAX_HEADER} bytes")
        while len(self.buffer) < end:
            more = self.file.read(_CHUNK)
            if not more:
                self.fail(f"file became shorter while it was read; {AGAIN}")
            self.buffer += more

    def take(self, form: struct.Struct) -> int | float:
        """The next number."""
        start = self.position
        self.position += form.size
        self.need(self.position)
        value: int | float = form.unpack_from(self.buffer, start)[0]
        return value

    def count(self) -> int:
        """The next 64-bit count."""
        return int(self.take(_U64))

    def code(self) -> int:
        """The next 32-bit code."""
        return int(self.take(_U32))

    def raw(self, length: int) -> bytes:
        """The next ``length`` bytes."""
        start = self.position
        self.position += length
        self.need(self.position)
        return bytes(self.buffer[start : self.position])

    def read(self) -> GGUFHeader:
        """Walk the whole header."""
        version = self.version()
        tensors, keys = self.counts()
        metadata: dict[str, object] = {}
        for _ in range(keys):
            key, value = self.entry()
            if key in metadata:
                self.damaged(f"key {quote(key.encode())} appears twice")
            metadata[key] = value
        self.check_split(metadata)
        infos = [self.tensor() for _ in range(tensors)]
        offset = -(-self.position // self.alignment) * self.alignment
        placed = tuple(self.place(info, offset) for info in infos)
        self.check_layout(placed)
        views = {key: self.view(key, value) for key, value in metadata.items()}
        return GGUFHeader(self.path, version, MappingProxyType(views), placed, offset, self.size)

    def version(self) -> int:
        """The format's version, after checking that it is the format."""
        self.need(min(32, self.size))
        if self.buffer[:4] != b"GGUF":
            self.fail(f"not a GGUF file: it is {foreign_format(bytes(self.buffer[:32]))}; give a .gguf file")
        self.position = 4
        version = self.code()
        if version and not version & 0xFFFF:
            self.fail("is a big-endian GGUF, made for another kind of machine; get the little-endian file")
        if version not in (2, 3):
            self.fail(f"has GGUF version {version}; allowed: 2 and 3; convert the model again with a new tool")
        return version

    def counts(self) -> tuple[int, int]:
        """Number of tensors and of keys."""
        tensors, keys = self.count(), self.count()
        if tensors * 33 + keys * 13 > self.size - self.position:
            self.fail(
                f"file is truncated or damaged: {tensors} tensors and {keys} keys "
                f"cannot fit in {self.size} bytes; {AGAIN}"
            )
        if tensors > MAX_TENSORS or keys > MAX_KEYS:
            self.damaged(f"{tensors} tensors and {keys} keys; at most {MAX_TENSORS} and {MAX_KEYS}")
        return tensors, keys

    def name(self, what: str, most: int) -> str:
        """A key or a tensor's name of 1 to ``most`` bytes."""
        length = self.count()
        if not 1 <= length <= most:
            self.damaged(f"a {what} of {length} bytes; allowed: 1 to {most}")
        raw = self.raw(length)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.damaged(f"{what} {quote(raw)} is not UTF-8")

    def entry(self) -> tuple[str, object]:
        """One key and its value."""
        key = self.name("key", 65535)
        kind = self.code()
        value: object
        if kind == ARRAY:
            value = self.array(key)
        elif kind == STRING:
            value = self.text()
        else:
            value = self.scalar(key, kind)
        if key == "general.alignment":
            self.alignment = self.checked_alignment(kind, value)
        return key, value

    def scalar(self, key: str, kind: int) -> int | float | bool:
        """A number or a boolean."""
        if kind not in SCALARS:
            self.damaged(f"key {quote(key.encode())} has unknown value type {kind}")
        value = self.take(SCALARS[kind])
        if kind != BOOL:
            return value
        if value not in (0, 1):
            self.damaged(f"boolean {quote(key.encode())} is {value}; allowed: 0 and 1")
        return bool(value)

    def text(self) -> str | _Slice:
        """A string, left undecoded if it is long."""
        length = self.count()
        start = self.position
        self.position += length
        self.need(self.position)
        if length > LONG_TEXT:
            return _Slice(np.dtype("S1"), length, start)
        self.decoded += length
        if self.decoded > MAX_TEXT:
            self.damaged(f"its texts have more than {MAX_TEXT} bytes")
        return self.buffer[start : self.position].decode("utf-8", "replace")

    def array(self, key: str) -> StringArray | _Slice:
        """An array, left in the buffer."""
        kind, length = self.code(), self.count()
        if kind == ARRAY:
            self.fail(f"key {quote(key.encode())} is an array of arrays, which is not allowed; convert it again")
        if kind == STRING:
            return self.strings(length)
        if kind not in SCALARS:
            self.damaged(f"array {quote(key.encode())} has unknown value type {kind}")
        start = self.position
        dtype = np.dtype("?") if kind == BOOL else np.dtype(SCALARS[kind].format)
        self.position += length * dtype.itemsize
        self.need(self.position)
        return _Slice(dtype, length, start)

    def strings(self, count: int) -> StringArray:
        """Walk over ``count`` strings: they are measured and skipped, not decoded."""
        self.need(self.position + 8 * count)
        marks, position, ready = array("Q"), self.position, len(self.buffer) - 8
        for index in range(count):
            if position > ready:
                self.need(position + 8)
                ready = len(self.buffer) - 8
            if not index % _STRIDE:
                marks.append(position)
            position += 8 + int(_U64.unpack_from(self.buffer, position)[0])
        self.need(position)
        self.position = position
        return StringArray(self.buffer, marks, count)

    def checked_alignment(self, kind: int, value: object) -> int:
        """The alignment of tensor data, in bytes."""
        if kind != UINT32 or not isinstance(value, int) or value < 1 or value & (value - 1):
            shown = printable(repr(value), 40)
            self.damaged(f"general.alignment is {shown}; allowed: a power of two (uint32)")
        return value

    def check_split(self, metadata: Mapping[str, object]) -> None:
        """Refuse one part of a model that lies in several files."""
        parts, part = metadata.get("split.count", 1), metadata.get("split.no", 0)
        if isinstance(parts, int) and isinstance(part, int) and parts > 1:
            self.fail(
                f"is part {part + 1} of {parts} of a split model; join the parts with `llama-gguf-split --merge` first"
            )

    def tensor(self) -> TensorInfo:
        """One tensor's entry, its offset still relative to the data section."""
        name = self.name("tensor name", 63)
        shown = f"tensor {quote(name.encode())}"
        rank = self.code()
        if not 1 <= rank <= MAX_RANK:
            self.damaged(f"{shown} has {rank} dimensions; allowed: 1 to {MAX_RANK}")
        shape = tuple(self.count() for _ in range(rank))
        if min(shape) < 1 or math.prod(shape) >= 1 << 63:
            self.damaged(f"{shown} has shape {shape}; allowed: 1 or more each, product below 2**63")
        type_id = self.code()
        kind = self.tensor_type(shown, type_id)
        if shape[0] % kind.block:
            self.damaged(f"{shown} has rows of {shape[0]}, not whole {kind.name} blocks of {kind.block}")
        offset = self.count()
        if offset % self.alignment:
            self.damaged(f"{shown} starts at {offset}, not a multiple of {self.alignment}")
        return TensorInfo(name, shape, kind.name, type_id, offset, math.prod(shape) // kind.block * kind.nbytes)

    def tensor_type(self, shown: str, type_id: int) -> TensorType:
        """The element type ``type_id``."""
        if type_id in REMOVED_TENSOR_TYPES:
            self.fail(f"{shown} has type {REMOVED_TENSOR_TYPES[type_id]}, which ggml removed; quantize it again")
        if type_id not in TENSOR_TYPES:
            self.fail(f"{shown} has unknown type {type_id}; the file is damaged or newer than this reader")
        return TENSOR_TYPES[type_id]

    def place(self, info: TensorInfo, data_offset: int) -> TensorInfo:
        """``info`` with its offset from the file's start, which must leave it inside the file."""
        start = data_offset + info.offset
        end = start + info.nbytes
        if end > self.size:
            shown = quote(info.name.encode())
            self.fail(
                f"file is truncated: tensor {shown} needs bytes {start}..{end} "
                f"but the file ends at {self.size}; {AGAIN}"
            )
        return replace(info, offset=start)

    def check_layout(self, tensors: tuple[TensorInfo, ...]) -> None:
        """Refuse names that appear twice and tensors that overlap."""
        names: set[str] = set()
        for info in tensors:
            if info.name in names:
                self.damaged(f"tensor {quote(info.name.encode())} appears twice")
            names.add(info.name)
        ordered = sorted(tensors, key=lambda info: info.offset)
        for one, two in pairwise(ordered):
            if one.offset + one.nbytes > two.offset:
                pair = f"{quote(one.name.encode())} and {quote(two.name.encode())}"
                self.damaged(f"tensors {pair} overlap")

    def view(self, key: str, value: object) -> object:
        """Turn what was left for later into a read-only view of the finished buffer."""
        if not isinstance(value, _Slice):
            return value
        if value.dtype.kind == "S":
            return memoryview(self.buffer)[value.offset : value.offset + value.count].toreadonly()
        if value.dtype.kind == "b" and np.any(np.frombuffer(self.buffer, np.uint8, value.count, value.offset) > 1):
            self.damaged(f"boolean array {quote(key.encode())} holds a value above 1")
        result = np.frombuffer(self.buffer, value.dtype, value.count, value.offset)
        result.flags.writeable = False
        return result
