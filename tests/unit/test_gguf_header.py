"""Foreign, cut and damaged files: each is refused with one clear line before native code may see it."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from foredraft.gguf_types import REMOVED_TENSOR_TYPES
from foredraft.modelfile import model_shape, read_gguf
from tests.support.gguf_writer import (
    RawTensor,
    Typed,
    entry,
    gguf_bytes,
    string,
    tiny_gguf,
    tiny_metadata,
    tiny_tensors,
    write_gguf,
)
from tests.support.models import ensure_model
from tests.support.refusals import refused, refused_bytes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def one_tensor(tensor: RawTensor) -> bytes:
    return gguf_bytes({}, [tensor])


def head(tensors: int, keys: int, version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, tensors, keys)


# --- foreign files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PK\x03\x04" + bytes(60), "PyTorch"),
        (b"\x80\x02}q\x00" + bytes(60), "pickle"),
        (struct.pack("<Q", 40) + b'{"__metadata__":{}}' + bytes(40), "safetensors"),
        (b"\n<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
        (b"\x1f\x8b\x08" + bytes(60), "gzip"),
        (b"lmgg" + bytes(60), "GGML"),
        (b"tjgg\x03" + bytes(60), "GGJT"),
        (b'{"error":"Not Found"}', "JSON"),
        (b"\x1c\0\0\0ET12" + bytes(60), "ExecuTorch"),
        (bytes(100), "zeros"),
        (b"G", "begins with b'G'"),
        (b"GGU", "begins with b'GGU'"),
    ],
)
def test_foreign_formats_are_named(file: Path, data: bytes, words: str) -> None:
    message = refused_bytes(file, data)
    assert message.startswith("not a GGUF file")
    assert words in message


def test_versions(file: Path) -> None:
    assert "GGUF version 1; allowed: 2 and 3" in refused_bytes(file, head(0, 0, 1) + bytes(64))
    assert "GGUF version 4" in refused_bytes(file, head(0, 0, 4) + bytes(64))
    assert "GGUF version 0" in refused_bytes(file, head(0, 0, 0) + bytes(64))
    big = b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64)
    assert "big-endian" in refused_bytes(file, big)


def test_split_models(file: Path) -> None:
    more = {"split.no": Typed(2, 1), "split.count": Typed(2, 5)}
    write_gguf(file, {**tiny_metadata(), **more}, tiny_tensors())
    assert refused(file).startswith("is part 2 of 5 of a split model")
    write_gguf(file, {**tiny_metadata(), "split.count": Typed(2, 1)}, tiny_tensors())
    assert model_shape(read_gguf(file)).layers == 1


# --- cut and damaged files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1_000, 1024, 50_000, 50_000_000])
def test_a_real_model_that_was_cut(file: Path, size: int) -> None:
    with ensure_model("smollm2-135m").open("rb") as whole:
        message = refused_bytes(file, whole.read(size))
    assert message.startswith("file is truncated")
    assert message.endswith("download it again")
    assert str(size) in message


def test_the_cut_tensor_is_named(file: Path) -> None:
    data = tiny_gguf()
    file.write_bytes(data)
    last = read_gguf(file).tensors[-1]
    message = refused_bytes(file, data[: last.offset + 10])
    where = f"needs bytes {last.offset}..{last.offset + last.nbytes} but the file ends at {last.offset + 10}"
    assert message == f"file is truncated: tensor '{last.name}' {where}; download it again"


def test_every_cut_of_the_tiny_model_is_refused(file: Path) -> None:
    data = tiny_gguf()
    file.write_bytes(data)
    last = max(tensor.offset + tensor.nbytes for tensor in read_gguf(file).tensors)
    for size in [*range(1, 1500), *range(1500, last, 997), last - 1]:
        refused_bytes(file, data[:size])


def test_37_bytes_with_an_empty_key(file: Path) -> None:
    data = head(0, 1) + string("") + struct.pack("<IB", 0, 7)
    assert len(data) == 37
    assert "a key of 0 bytes; allowed: 1 to 65535" in refused_bytes(file, data)


def test_88_bytes_with_a_zero_dimension(file: Path) -> None:
    data = head(1, 0) + string("w") + struct.pack("<IQQIQ", 2, 0, 4, 0, 0)
    data += bytes(88 - len(data))
    assert "tensor 'w' has shape (0, 4)" in refused_bytes(file, data)


def test_64_random_bytes(file: Path) -> None:
    for seed in range(50):
        refused_bytes(file, np.random.default_rng(seed).bytes(64))
        refused_bytes(file, b"GGUF\3\0\0\0" + np.random.default_rng(seed).bytes(64))


HUGE = 2**63 + 5


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (head(HUGE, 0), "cannot fit"),
        (head(0, HUGE), "cannot fit"),
        (head(0, 1) + struct.pack("<Q", 65536) + bytes(70000), "a key of 65536 bytes"),
        (head(0, 1) + struct.pack("<Q", 60) + bytes(40), "truncated"),
        (head(0, 1) + string(b"\xff\xfe") + struct.pack("<IB", 0, 0), "not UTF-8"),
        (head(0, 1) + string("k") + struct.pack("<IQ", 13, 0), "unknown value type 13"),
        (head(0, 1) + string("k") + struct.pack("<IB", 7, 2), "boolean 'k' is 2"),
        (head(0, 1) + string("k") + struct.pack("<IQ", 8, HUGE), "truncated"),
        (head(0, 1) + string("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(50), "array of arrays"),
        (head(0, 1) + string("k") + struct.pack("<IIQ", 9, 99, 1) + bytes(50), "unknown value type 99"),
        (head(0, 1) + string("k") + struct.pack("<IIQ", 9, 4, HUGE), "truncated"),
        (head(0, 1) + string("k") + struct.pack("<IIQ", 9, 8, HUGE), "truncated"),
        (head(0, 1) + string("k") + struct.pack("<IIQQQ", 9, 8, 2, HUGE, 0), "truncated"),
        (head(0, 1) + string("k") + struct.pack("<IIQBB", 9, 7, 2, 1, 2), "boolean array 'k'"),
        (head(0, 2) + entry("k", 1) + entry("k", 2), "key 'k' appears twice"),
        (gguf_bytes({"general.alignment": 48}), "general.alignment is 48"),
        (gguf_bytes({"general.alignment": 0}), "general.alignment is 0"),
        (gguf_bytes({"general.alignment": "32"}), "general.alignment is '32'"),
        (gguf_bytes({"general.alignment": Typed(10, 32)}), "general.alignment is 32"),
        (gguf_bytes({"general.alignment": [32]}), "general.alignment is"),
    ],
)
def test_damaged_headers(file: Path, data: bytes, words: str) -> None:
    assert words in refused_bytes(file, data)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (RawTensor("", (4,), 0, bytes(16)), "a tensor name of 0 bytes"),
        (RawTensor("n" * 64, (4,), 0, bytes(16)), "a tensor name of 64 bytes; allowed: 1 to 63"),
        (RawTensor(b"\xff", (4,), 0, bytes(16)), "not UTF-8"),
        (RawTensor("w", (), 0, bytes(16)), "0 dimensions; allowed: 1 to 4"),
        (RawTensor("w", (1, 1, 1, 1, 1), 0, bytes(16)), "5 dimensions"),
        (RawTensor("w", (4, 0), 0, bytes(16)), "shape (4, 0)"),
        (RawTensor("w", (2**32, 2**31), 0, bytes(16)), "product below 2**63"),
        (RawTensor("w", (2**62, 1), 0, bytes(16)), "truncated"),
        (RawTensor("w", (33,), 2, bytes(64)), "rows of 33, not whole Q4_0 blocks of 32"),
        (RawTensor("w", (4,), 1000, bytes(16)), "unknown type 1000"),
        (RawTensor("w", (4,), 0, bytes(16), offset=8), "starts at 8, not a multiple of 32"),
        (RawTensor("w", (4,), 0, bytes(16), offset=2**63), "truncated"),
        (RawTensor("w", (4,), 0, bytes(16), offset=64), "truncated"),
        (RawTensor("w\x1b[2J", (0,), 0, bytes(16)), r"'w\x1b[2J'"),
    ],
)
def test_damaged_tensors(file: Path, tensor: RawTensor, words: str) -> None:
    assert words in refused_bytes(file, one_tensor(tensor))


@pytest.mark.parametrize(("type_id", "name"), sorted(REMOVED_TENSOR_TYPES.items()))
def test_removed_types_are_named(file: Path, type_id: int, name: str) -> None:
    message = refused_bytes(file, one_tensor(RawTensor("w", (256,), type_id, bytes(256))))
    assert f"has type {name}, which ggml removed" in message


def test_two_tensors_of_one_name_and_overlap(file: Path) -> None:
    first = RawTensor("a", (16,), 0, bytes(64))
    twice = gguf_bytes({}, [first, first])
    assert "tensor 'a' appears twice" in refused_bytes(file, twice)
    overlap = gguf_bytes({}, [first, RawTensor("b", (16,), 0, bytes(64), offset=32)])
    assert "tensors 'a' and 'b' overlap" in refused_bytes(file, overlap)


def test_damage_costs_little_memory(file: Path) -> None:
    """A sparse file of 8 GB whose counts fit its size: strings, numbers, texts, tensors."""
    claims = [
        head(0, 1) + string("k") + struct.pack("<IIQ", 9, 8, 2**29),
        head(0, 1) + string("k") + struct.pack("<IIQ", 9, 4, 2**29),
        head(0, 1) + string("k") + struct.pack("<IQ", 8, 2**32),
        head(2**27, 2**27),
        head(30_000, 16_000) + entry("k" * 60_000, "x" * 900_000),
    ]
    for claim in claims:
        with file.open("wb") as out:
            out.write(claim)
            out.truncate(8 << 30)
        tracemalloc.start()
        refused(file)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100e6
