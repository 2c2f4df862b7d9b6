"""Whatever is in the file, reading it either works or is refused in one line, and costs little memory."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foredraft.errors import ModelFileError
from foredraft.modelfile import model_shape, read_gguf
from tests.support.gguf_writer import tiny_gguf

TINY = tiny_gguf()
HEADER = 1700
"""The tiny model's header ends before this byte; behind it are weights, which nobody looks at."""

NUMBERS = st.sampled_from(
    [0, 1, 2, 4, 7, 8, 9, 13, 31, 32, 255, 256, 2**16, 2**31, 2**32 - 1, 2**32, 2**62, 2**63, 2**64 - 1]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """The tiny model with some numbers or bytes of its header changed, and perhaps an end missing."""
    data = bytearray(TINY)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, HEADER))
        form = draw(st.sampled_from(["<B", "<I", "<Q"]))
        size = struct.calcsize(form)
        struct.pack_into(form, data, at, draw(NUMBERS) % 256**size)
    if draw(st.booleans()):
        at, length = draw(st.integers(0, HEADER)), draw(st.integers(0, 40))
        data[at : at + length] = draw(st.binary(max_size=40))
    return bytes(data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))])


GARBAGE = st.builds(lambda head, tail: head + tail, st.sampled_from([b"", b"GGUF", b"GGUF\3\0\0\0"]), st.binary())
COUNTED = st.builds(
    lambda tensors, keys, tail: struct.pack("<4sIQQ", b"GGUF", 3, tensors, keys) + tail,
    st.integers(0, 3),
    st.integers(0, 3),
    st.lists(
        st.one_of(
            NUMBERS.map(lambda n: struct.pack("<Q", n)),
            st.integers(0, 42).map(lambda n: struct.pack("<I", n)),
            st.sampled_from([struct.pack("<Q", 1) + b"k", struct.pack("<Q", 1) + b"w"]),
            st.binary(max_size=9),
        ),
        max_size=40,
    ).map(b"".join),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "model.gguf"


def read_or_refuse(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    tracemalloc.start()
    try:
        header = read_gguf(file)
        assert all(tensor.offset + tensor.nbytes <= len(data) for tensor in header.tensors)
        model_shape(header)
    except ModelFileError as error:
        message = str(error)
        assert message.startswith(f"{file}: ")
        assert message.isprintable()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 100e6


ROUNDS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@settings(ROUNDS, max_examples=3000)
@given(data=mutated())
def test_mutated_models(file: Path, data: bytes) -> None:
    read_or_refuse(file, data)


@settings(ROUNDS, max_examples=1500)
@given(data=GARBAGE)
def test_garbage(file: Path, data: bytes) -> None:
    read_or_refuse(file, data)


@settings(ROUNDS, max_examples=1500)
@given(data=COUNTED)
def test_plausible_garbage(file: Path, data: bytes) -> None:
    read_or_refuse(file, data)


def test_the_unchanged_model_is_read(file: Path) -> None:
    file.write_bytes(TINY)
    header = read_gguf(file)
    assert header.data_offset < HEADER
    assert model_shape(header).vocab_size == 16
