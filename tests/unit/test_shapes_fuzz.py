"""Whatever a file, an index, a server or a user says: it is read or refused in one line, and costs little memory."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.errors import InvalidValue, ModelFileError, UnknownName
from foredraft.modelfile import ModelShape
from foredraft.shapes import Answer, read_shape
from foredraft.shapes.description import KEYS
from foredraft.shapes.hugging_face import RemotePlace, hugging_face_shape
from foredraft.shapes.safetensors import MAX_JSON
from tests.support.stored import CONFIG, SHAPES, entries, model_files, sharded_files, with_header
from tests.unit.test_modelfile_fuzz import COUNTED, GARBAGE, mutated

ROUNDS = settings(derandomize=True, deadline=None, database=None)
BASE = "http://host/model"

NUMBERS = st.sampled_from([0, 1, 2, 10, 16, 320, 321, -1, 2**31, 2**53, 2**64, 10**30, 10**400, 0.5, 1e308, True])
JSON = st.recursive(
    st.none() | NUMBERS | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


def web_of(files: Mapping[str, bytes], piece: int = 1 << 20) -> Callable[[str, int, int], Answer]:
    """A server of these files that sends at most ``piece`` bytes at a time."""

    def fetch(url: str, first: int, last: int) -> Answer:
        data = files.get(url.removeprefix(f"{BASE}/"))
        if data is None:
            raise ModelFileError(f"{url}: no such file")
        stop = min(last + 1, len(data), first + piece)
        return Answer(io.BytesIO(data[first:stop]), first, stop, len(data))

    return fetch


def read_or_refuse(read: Callable[[], ModelShape]) -> None:
    message = ""
    tracemalloc.start()
    try:
        shape = read()
        assert shape.weight_bytes >= 0 and len(shape.kv_heads_by_layer) == shape.layers <= 512
        assert not shape.windows or len(shape.windows) == shape.layers
    except (ModelFileError, InvalidValue, UnknownName) as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 100e6
    assert (message or "-").isprintable() and len(message) < 3000


def stored_model(files: Mapping[str, bytes]) -> Callable[[], ModelShape]:
    return lambda: hugging_face_shape(RemotePlace("model", BASE, list(files), web_of(files)))


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with one or two places changed, removed or added to."""
    copy = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 2))):
        at = copy
        while isinstance(at, dict | list) and at:
            key = draw(st.sampled_from(sorted(at))) if isinstance(at, dict) else draw(st.integers(0, len(at) - 1))
            inner = at[key]
            if isinstance(inner, dict | list) and inner and draw(st.integers(0, 3)):
                at = inner
                continue
            action = draw(st.integers(0, 3))
            if action == 0:
                del at[key]
            elif action == 1 and isinstance(at, dict):
                at[draw(st.text(max_size=4))] = inner
            else:
                at[key] = draw(JSON)
            break
    return copy


@st.composite
def broken(draw: st.DrawFn, data: bytes) -> bytes:
    """Some bytes of ``data`` changed, and perhaps an end missing."""
    copy = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        copy[draw(st.integers(0, len(copy) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        struct.pack_into("<Q", copy, 0, draw(st.integers(0, 2**64 - 1) | st.integers(0, 1000)))
    return bytes(copy[: draw(st.just(len(copy)) | st.integers(0, len(copy)))])


HEADERS = st.one_of(
    changed(entries(SHAPES)).map(with_header),
    JSON.map(with_header),
    broken(with_header(entries(SHAPES), 1200)),
    st.binary(max_size=60),
)


@settings(ROUNDS, max_examples=1500)
@given(data=HEADERS)
def test_headers_of_safetensors(data: bytes) -> None:
    read_or_refuse(stored_model(model_files() | {"model.safetensors": data}))


HEAVY = {
    "objects": b'{"a":[' + b"{}," * 690_000 + b"0]}",
    "lists": b'{"a":[' + b"[]," * 690_000 + b"0]}",
    "names": b"{" + b",".join(b'"%05x":0' % i for i in range(200_000)) + b"}",
}


@pytest.mark.parametrize("text", HEAVY.values(), ids=HEAVY)
def test_json_that_takes_the_most_memory(text: bytes) -> None:
    assert len(text) < MAX_JSON
    read_or_refuse(stored_model(model_files() | {"model.safetensors": with_header(text)}))


INDEX = json.loads(sharded_files()["model.safetensors.index.json"])


@settings(ROUNDS, max_examples=700)
@given(data=st.one_of(changed(INDEX).map(json.dumps).map(str.encode), broken(json.dumps(INDEX).encode())))
def test_indexes(data: bytes) -> None:
    read_or_refuse(stored_model(sharded_files() | {"model.safetensors.index.json": data}))


@settings(ROUNDS, max_examples=700)
@given(data=st.one_of(changed(CONFIG).map(json.dumps).map(str.encode), broken(json.dumps(CONFIG).encode())))
def test_configurations(data: bytes) -> None:
    read_or_refuse(stored_model(model_files() | {"config.json": data}))


VALUES = st.one_of(
    st.sampled_from(
        ["1", "2", "32", "512", "4096", "7B", "1e3", "0", "-1", "yes", "no", "none", "512/6", "q4_k_m", "int4"]
    ),
    st.integers(0, 10**16).map(str),
    st.text(max_size=8),
)
ITEMS = st.lists(st.tuples(st.sampled_from(KEYS) | st.text(max_size=5), VALUES), min_size=1, max_size=12)
SENSIBLE = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 512).map(str),
        "hidden": st.integers(1, 64).map(lambda n: str(128 * n)),
        "kv-heads": st.sampled_from(["1", "2", "8"]),
    },
    optional=dict.fromkeys(("params", "heads", "head-size", "ffn", "vocab", "tied", "window", "weights"), VALUES),
)


@settings(ROUNDS, max_examples=1500)
@given(items=ITEMS | SENSIBLE.map(lambda values: list(values.items())))
def test_descriptions(items: list[tuple[str, str]]) -> None:
    spec = ",".join(f"{key}={value}" for key, value in items)
    if "/" not in spec.replace("512/6", ""):  # else it may be an address or a path
        read_or_refuse(lambda: read_shape(spec, fetch=web_of({})))


@settings(ROUNDS, max_examples=500)
@given(spec=st.text(max_size=30) | st.text("ab/:@=.,-_0", max_size=12))
def test_any_words(spec: str) -> None:
    read_or_refuse(lambda: read_shape(spec, fetch=web_of({})))


@settings(ROUNDS, max_examples=1500)
@given(data=mutated() | GARBAGE | COUNTED, piece=st.sampled_from([1, 100, 1 << 20]))
def test_gguf_over_the_network(data: bytes, piece: int) -> None:
    read_or_refuse(
        lambda: read_shape(f"{BASE}/a.gguf", fetch=web_of({"a.gguf": data}, max(piece, len(data) // 100 + 1)))
    )
