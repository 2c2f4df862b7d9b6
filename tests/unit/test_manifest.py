"""Manifests: what is written is read again, and whatever is damaged is refused in one line."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foredraft.errors import ModelFileError
from foredraft.manifest import (
    FORMAT,
    MANIFEST,
    OUTPUT_ROWS,
    PROGRAM,
    SCHEMA,
    TOKENIZER,
    Bounds,
    FileFacts,
    Manifest,
    Shape,
    is_export,
    read_manifest,
    read_output_rows,
)

PROGRAM_BYTES = b"\x10\0\0\0ET12" + bytes(24)
TOKENIZER_BYTES = b'{"model": {}}'
ROWS = [0, 2, 3, 9]


def facts(name: str, data: bytes) -> FileFacts:
    return FileFacts(name, len(data), hashlib.sha256(data).hexdigest())


EXAMPLE = Manifest(
    name="Tiny-π",
    source=facts("tiny model.gguf", b"GGUF"),
    program=facts(PROGRAM, PROGRAM_BYTES),
    tokenizer=facts(TOKENIZER, TOKENIZER_BYTES),
    tokenizer_facts={"kind": "bpe", "types": [["normal", 16]]},
    shape=Shape("llama", vocab_size=16, hidden_size=64, layers=4, heads=4, kv_heads=2, head_dim=16, window=8),
    bounds=Bounds(context=512, width=64, rows=32),
    quantization={"weights": "int4", "group": 32},
    exact=True,
    taps=(0, 3),
    output_rows=len(ROWS),
    operators=("aten::add.out", "quantized_decomposed::embedding_4bit.dtype_out"),
    backends=("XnnpackBackend",),
    quality={"mean_kl": 0.01},
    versions={"executorch": "1.5.1"},
)


def write(folder: Path, manifest: Manifest = EXAMPLE) -> Path:
    (folder / MANIFEST).write_text(manifest.to_json(), "utf-8")
    (folder / PROGRAM).write_bytes(PROGRAM_BYTES)
    (folder / TOKENIZER).write_bytes(TOKENIZER_BYTES)
    (folder / OUTPUT_ROWS).write_text(json.dumps(ROWS))
    return folder


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return write(tmp_path)


def refused(path: Path) -> str:
    """What is said about the export ``path``: one line that begins with a path in it."""
    folder = path.parent if path.suffix == ".pte" else path
    with pytest.raises(ModelFileError) as caught:
        read_output_rows(folder, read_manifest(path))
    message = str(caught.value)
    assert message.startswith(f"{folder}/") and message.isprintable() and len(message) < len(str(folder)) * 2 + 400
    return message.removeprefix(f"{folder}/")


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    data = json.loads(EXAMPLE.to_json())
    change(data)
    (folder / MANIFEST).write_text(json.dumps(data))
    return folder


def place(data: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """The object and the key of the dotted ``path``."""
    *above, last = path.split(".")
    for key in above:
        data = data[key] if isinstance(data.get(key), dict) else {}
    return data, last


def with_value(folder: Path, path: str, value: object) -> Path:
    """The export with another value in its manifest."""

    def change(data: dict[str, Any]) -> None:
        inner, key = place(data, path)
        inner[key] = value

    return rewritten(folder, change)


def test_what_is_written_is_read(export: Path) -> None:
    assert read_manifest(export) == EXAMPLE
    assert read_manifest(export / PROGRAM) == EXAMPLE
    assert read_output_rows(export, EXAMPLE) == ROWS


def test_only_what_has_no_default_is_needed(export: Path) -> None:
    needed = ("format", "schema", "name", "source", "program", "tokenizer", "tokenizer_facts", "shape", "bounds")

    def bare(data: dict[str, Any]) -> None:
        for key in set(data) - {*needed, "quantization", "exact"}:
            del data[key]
        del data["shape"]["window"]
        data["added later"] = 1

    manifest = read_manifest(rewritten(export, bare))
    plain = replace(EXAMPLE, taps=(), output_rows=None, operators=(), backends=(), quality={}, versions={})
    assert manifest == replace(plain, shape=replace(EXAMPLE.shape, window=None))
    assert read_output_rows(export, manifest) is None


def test_the_text_names_its_format(export: Path) -> None:
    text = (export / MANIFEST).read_text("utf-8")
    assert text.endswith("}\n") and "Tiny-π" in text
    data = json.loads(text)
    assert (data["format"], data["schema"]) == (FORMAT, SCHEMA) == ("foredraft-executorch", 1)


def test_a_directory_may_look_like_a_program(tmp_path: Path) -> None:
    folder = tmp_path / "model.pte"
    folder.mkdir()
    assert read_manifest(write(folder)) == EXAMPLE


def test_what_is_an_export(export: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    assert [is_export(path) for path in (export, export / PROGRAM, other / "any.pte")] == [True] * 3
    assert [is_export(path) for path in (other, other / "none", export / MANIFEST)] == [False] * 3
    (other / PROGRAM).write_bytes(PROGRAM_BYTES)
    assert is_export(other)


# Files


def test_a_program_without_a_manifest(export: Path) -> None:
    (export / MANIFEST).unlink()
    for path in (export, export / PROGRAM):
        hint = "a .pte file alone is not enough: make the directory with `foredraft export executorch`"
        assert refused(path) == f"manifest.json: no such file; {hint}"


def test_another_program_beside_the_manifest(export: Path) -> None:
    (export / "other.pte").write_bytes(PROGRAM_BYTES)
    message = refused(export / "other.pte")
    assert message.startswith("other.pte: is not the program of ") and message.endswith("which is model.pte")


@pytest.mark.parametrize("name", [PROGRAM, TOKENIZER])
def test_a_missing_file(export: Path, name: str) -> None:
    (export / name).unlink()
    assert refused(export) == f"{name}: cannot be read (No such file or directory); export the model again"


@pytest.mark.parametrize("name", [PROGRAM, TOKENIZER, MANIFEST, OUTPUT_ROWS])
def test_a_directory_in_place_of_a_file(export: Path, name: str) -> None:
    (export / name).unlink()
    (export / name).mkdir()
    assert refused(export).startswith(f"{name}: cannot be read (Is a directory); ")


@pytest.mark.parametrize(("name", "data"), [(PROGRAM, PROGRAM_BYTES), (TOKENIZER, TOKENIZER_BYTES)])
@pytest.mark.parametrize("excess", [-1, 1])
def test_another_size(export: Path, name: str, data: bytes, excess: int) -> None:
    (export / name).write_bytes((data + b"x")[: len(data) + excess])
    counts = f"has {len(data) + excess} bytes, its manifest says {len(data)}"
    assert refused(export) == f"{name}: {counts}; copy or export it again"


@pytest.mark.parametrize("head", [b"\x10\0\0\0TFL3", b"GGUF\3\0\0\0", bytes(8)])
def test_no_program(export: Path, head: bytes) -> None:
    (export / PROGRAM).write_bytes(head + PROGRAM_BYTES[8:])
    assert refused(export) == "model.pte: is not an ExecuTorch program; export it again"


def test_a_program_of_a_few_bytes(export: Path) -> None:
    (export / PROGRAM).write_bytes(b"ET")
    assert refused(with_value(export, "program.bytes", 2)) == "model.pte: is not an ExecuTorch program; export it again"


# The manifest


@pytest.mark.parametrize("data", [b"", b"{", b"no", b"\xef\xbb\xbf{}", b"[" * 100_000, b"9" * 5000, b"\xff\xfe{}"])
def test_no_json(export: Path, data: bytes) -> None:
    (export / MANIFEST).write_bytes(data)
    assert refused(export) == "manifest.json: is not JSON; export the model again"


def test_a_huge_manifest(export: Path) -> None:
    with (export / MANIFEST).open("wb") as file:
        file.truncate((64 << 20) + 1)
    assert refused(export) == "manifest.json: is larger than 64 MiB; export the model again"


@pytest.mark.parametrize("text", ["[]", "null", '"text"', "3"])
def test_no_object(export: Path, text: str) -> None:
    (export / MANIFEST).write_text(text)
    assert refused(export).startswith("manifest.json: format is not there; allowed: 'foredraft-executorch'; ")


@pytest.mark.parametrize("value", [None, "", "foredraft-coreml", FORMAT.upper(), 1, [], ["x"] * 10_000, "x\n" * 10_000])
def test_another_format(export: Path, value: object) -> None:
    message = refused(with_value(export, "format", value))
    assert message.startswith("manifest.json: format is ") and "allowed: 'foredraft-executorch'" in message


@pytest.mark.parametrize("value", [None, 0, 2, -1, "1", 1.0, True, [1], "x" * 10_000])
def test_another_schema_version(export: Path, value: object) -> None:
    message = refused(with_value(export, "schema", value))
    assert message.startswith("manifest.json: schema version is ")
    assert message.endswith("; this foredraft reads 1; export the model again")


NEEDED = (
    *("name", "source", "program", "tokenizer", "tokenizer_facts", "shape", "bounds", "quantization", "exact"),
    *("source.file", "program.bytes", "tokenizer.sha256", "bounds.context", "bounds.width", "bounds.rows"),
    *(f"shape.{key}" for key in ("architecture", "vocab_size", "hidden_size", "layers", "heads", "kv_heads")),
    "shape.head_dim",
)


@pytest.mark.parametrize("path", NEEDED)
def test_a_missing_key(export: Path, path: str) -> None:
    def remove(data: dict[str, Any]) -> None:
        inner, key = place(data, path)
        del inner[key]

    expected = f"manifest.json: is damaged ({path} is missing); export the model again"
    assert refused(rewritten(export, remove)) == expected


TEXTS = ("name", "source.file", "source.sha256", "program.file", "tokenizer.sha256", "shape.architecture")
SIZES = (
    *("source.bytes", "program.bytes", "tokenizer.bytes", "shape.vocab_size", "shape.hidden_size", "shape.layers"),
    *("shape.heads", "shape.kv_heads", "shape.head_dim", "bounds.context", "bounds.width", "bounds.rows"),
)
OPTIONAL_SIZES = ("shape.window", "output_rows")
OBJECTS = (
    *("source", "program", "tokenizer", "shape", "bounds"),
    *("tokenizer_facts", "quantization", "quality", "versions"),
)
LISTS = ("taps", "operators", "backends")


NO_TEXT: tuple[object, ...] = (None, 3, [], {}, True)
NO_SIZE: tuple[object, ...] = ("4", 0, -4, 4.0, True, [], 1 << 50)
NO_OBJECT: tuple[object, ...] = (None, 3, "text", [], [1], True)
NO_LIST: tuple[object, ...] = (None, 3, "text", {}, {"a": 1}, [[]], [None], [True], [1.5])
WRONG = (
    *itertools.product(TEXTS, NO_TEXT),
    *itertools.product((*SIZES, *OPTIONAL_SIZES), NO_SIZE),
    *itertools.product(SIZES, (None,)),
    *itertools.product(OBJECTS, NO_OBJECT),
    *itertools.product(LISTS, NO_LIST),
    *itertools.product(("taps",), ([-1], [4], ["0"])),
    *itertools.product(("operators", "backends"), ([1], [["aten::add"]])),
    *itertools.product(("versions",), ({"torch": None}, {"torch": 2}, {"torch": ["2"]})),
    *itertools.product(("exact",), (None, 1, "true", [])),
    *itertools.product(("source.sha256", "program.sha256", "tokenizer.sha256"), ("", "0" * 63, "g" * 64, "A" * 64)),
)


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_a_wrong_value(export: Path, path: str, value: object) -> None:
    message = refused(with_value(export, path, value))
    assert message.startswith("manifest.json: is damaged (") and message.endswith("); export the model again")
    assert path.partition(".")[0] in message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("shape.kv_heads", 3),
        ("shape.kv_heads", 8),
        ("shape.layers", 2000),
        ("shape.heads", 2048),
        ("shape.vocab_size", 1 << 25),
        ("shape.head_dim", 5000),
        ("bounds.rows", 65),
        ("bounds.width", 513),
        ("bounds.context", 1 << 25),
        ("output_rows", 17),
    ],
)
def test_sizes_that_cannot_be(export: Path, path: str, value: int) -> None:
    message = refused(with_value(export, path, value))
    assert message.startswith("manifest.json: is damaged (") and "has a value that cannot be" in message


@pytest.mark.parametrize("key", ["program", "tokenizer"])
@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../model.pte", "/etc/passwd", "a/b", "a/", "./model.pte", "..\\model.pte", "C:model.pte"),
        *("model.pte\0", "a\nb", "\ud800", "~", ".hidden", "modèle.pte", "x" * 300, "-rf", "model.pte "),
    ],
)
def test_only_plain_file_names(export: Path, key: str, name: str) -> None:
    message = refused(with_value(export, f"{key}.file", name))
    assert message.startswith(f"manifest.json: is damaged ({key}.file is ")
    assert message.endswith(", not a plain file name); export the model again")


# Output rows


@pytest.mark.parametrize(
    "rows",
    [
        *([0, 2, 3], [0, 2, 3, 9, 10], [0, 2, 3, 16], [-1, 2, 3, 9], [0, 3, 2, 9], [0, 2, 2, 9], [0, 2, 3, "9"]),
        *([0, 2, 3, 9.0], [False, True, 2, 3], [0, 2, 3, None], [[0], 2, 3, 9], {}, None, 4, "0239", []),
    ],
)
def test_wrong_output_rows(export: Path, rows: object) -> None:
    (export / OUTPUT_ROWS).write_text(json.dumps(rows))
    expected = "must hold 4 different ids below 16 in ascending order; export it again"
    assert refused(export) == f"output_rows.json: {expected}"


def test_output_rows_that_cannot_be_read(export: Path) -> None:
    (export / OUTPUT_ROWS).write_text("0\n2\n")
    assert refused(export) == "output_rows.json: is not JSON; export the model again"
    (export / OUTPUT_ROWS).unlink()
    assert refused(export).startswith("output_rows.json: no such file; ")


# Whatever is in it

ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PATHS = (*NEEDED, *LISTS, *OPTIONAL_SIZES, *OBJECTS, "program.file", "format", "schema", "tokenizer.file")
ROUNDS = settings(
    derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read_or_refuse(folder: Path) -> None:
    """Nothing but ModelFileError comes out, as one line."""
    try:
        read_output_rows(folder, read_manifest(folder))
    except ModelFileError as error:
        message = str(error)
        assert message.startswith(f"{folder}/") and message.isprintable()


@settings(ROUNDS, max_examples=1000)
@given(data=st.data(), count=st.integers(1, 3))
def test_odd_values(export: Path, data: st.DataObject, count: int) -> None:
    def change(manifest: dict[str, Any]) -> None:
        for _ in range(count):
            inner, key = place(manifest, data.draw(st.sampled_from(PATHS)))
            inner.pop(key, None)
            if data.draw(st.booleans()):
                inner[key] = data.draw(ODD)

    read_or_refuse(rewritten(export, change))


@settings(ROUNDS, max_examples=600)
@given(data=st.data())
def test_changed_bytes(export: Path, data: st.DataObject) -> None:
    text = bytearray(EXAMPLE.to_json(), "utf-8")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    (export / MANIFEST).write_bytes(text)
    read_or_refuse(export)


@settings(ROUNDS, max_examples=300)
@given(value=ODD)
def test_any_json(export: Path, value: object) -> None:
    (export / MANIFEST).write_text(json.dumps(value))
    read_or_refuse(export)
    write(export)
    (export / OUTPUT_ROWS).write_text(json.dumps(value))
    read_or_refuse(export)
