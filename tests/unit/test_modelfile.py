"""What a readable model file says, which paths are refused, and which keys a model needs."""

from __future__ import annotations

import os
import socket
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from foredraft.errors import ModelFileError
from foredraft.gguf_types import TENSOR_TYPES
from foredraft.modelfile import GGUFHeader, StringArray, check_path, model_shape, read_gguf
from tests.support.gguf_writer import (
    RawTensor,
    Typed,
    gguf_bytes,
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


# --- valid files -------------------------------------------------------------------------------------------


def test_the_tiny_model(file: Path) -> None:
    file.write_bytes(tiny_gguf())
    header = read_gguf(file)
    assert (header.version, header.file_size, header.path) == (3, file.stat().st_size, file)
    assert header.data_offset % 32 == 0
    embedding = header.tensors[0]
    assert (embedding.name, embedding.shape, embedding.type_name) == ("token_embd.weight", (32, 16), "F32")
    assert (embedding.offset, embedding.nbytes) == (header.data_offset, 32 * 16 * 4)
    stored = np.frombuffer(file.read_bytes(), "<f4", 512, embedding.offset).reshape(16, 32)
    assert np.array_equal(stored, tiny_tensors()["token_embd.weight"])


def test_the_tiny_model_has_its_shape(file: Path) -> None:
    file.write_bytes(tiny_gguf())
    shape = model_shape(read_gguf(file))
    assert (shape.architecture, shape.name, shape.vocab_size) == ("llama", "tiny", 16)
    assert (shape.layers, shape.heads, shape.kv_heads, shape.kv_heads_by_layer) == (1, 2, 1, (1,))
    assert (shape.head_size_k, shape.head_size_v) == (16, 16)
    assert (shape.embedding_length, shape.feed_forward_length, shape.context_length) == (32, 64, 64)
    assert (shape.sliding_window, shape.chat_template, shape.recurrent) == (None, None, False)
    parameters = sum(values.size for values in tiny_tensors().values())
    assert (shape.parameters, shape.weight_bytes) == (parameters, 4 * parameters)
    assert dict(shape.quantization) == {"F32": 4 * parameters}


def test_every_kind_of_value(file: Path) -> None:
    values: dict[str, object] = {
        **{f"s{kind}": Typed(kind, 5) for kind in (0, 1, 2, 3, 4, 5, 10, 11)},
        "f4": Typed(6, 0.5),
        "f8": Typed(12, 0.1),
        "yes": True,
        "text": "ß\nx",
        "empty": "",
        "i4s": [1, -2, 3],
        "f4s": np.array([0.5, 1.5], np.float32),
        "bools": np.array([True, False]),
        "none": Typed(5, [], True),
        "words": ["a", "", "日本"],
        "nowords": Typed(8, [], True),
    }
    metadata = read_gguf(write_gguf(file, values)).metadata
    assert list(metadata) == list(values)
    assert [metadata[f"s{kind}"] for kind in (0, 1, 2, 3, 4, 5, 10, 11)] == [5] * 8
    assert (metadata["f4"], metadata["f8"], metadata["yes"]) == (0.5, 0.1, True)
    assert (metadata["text"], metadata["empty"]) == ("ß\nx", "")
    for key, expected in (("i4s", [1, -2, 3]), ("f4s", [0.5, 1.5]), ("bools", [True, False]), ("none", [])):
        array = metadata[key]
        assert isinstance(array, np.ndarray)
        assert array.tolist() == expected
        assert not array.flags.writeable
    words, nowords = metadata["words"], metadata["nowords"]
    assert isinstance(words, StringArray)
    assert isinstance(nowords, StringArray)
    assert list(words) == ["a", "", "日本"]
    assert list(nowords) == []


def test_string_array_gives_any_item(file: Path) -> None:
    texts = [f"token {i}" * (i % 3) for i in range(1000)]
    words = read_gguf(write_gguf(file, {"words": texts})).metadata["words"]
    assert isinstance(words, StringArray)
    assert len(words) == 1000
    assert [words[i] for i in range(1000)] == texts
    assert list(words) == texts
    assert (words[-1], words.raw(1)) == (texts[-1], b"token 1")
    for index in (1000, -1001):
        with pytest.raises(IndexError, match="1000 strings"):
            words[index]


def test_strings_may_hold_bytes_that_are_not_utf8(file: Path) -> None:
    metadata = read_gguf(write_gguf(file, {"words": [b"\xff"], "text": b"a\xffb"})).metadata
    words = metadata["words"]
    assert isinstance(words, StringArray)
    assert (words.raw(0), words[0], metadata["text"]) == (b"\xff", "\ufffd", "a\ufffdb")


def test_a_very_long_text_stays_undecoded(file: Path) -> None:
    text = read_gguf(write_gguf(file, {"tokenizer.huggingface.json": "x" * (2 << 20)})).metadata
    value = text["tokenizer.huggingface.json"]
    assert isinstance(value, memoryview)
    assert (len(value), value.readonly, bytes(value[:2])) == (2 << 20, True, b"xx")


@pytest.mark.parametrize("type_id", sorted(TENSOR_TYPES))
def test_every_tensor_type(file: Path, type_id: int) -> None:
    kind = TENSOR_TYPES[type_id]
    tensor = RawTensor("w", (2 * kind.block, 3, 5), type_id, bytes(30 * kind.nbytes))
    (info,) = read_gguf(write_gguf(file, {}, [tensor])).tensors
    assert (info.type_name, info.type_id, info.nbytes) == (kind.name, type_id, 30 * kind.nbytes)
    assert info.elements == 30 * kind.block


def test_alignment_and_version_two(file: Path) -> None:
    metadata = {**tiny_metadata(), "general.alignment": 256}
    file.write_bytes(gguf_bytes(metadata, tiny_tensors(), version=2, alignment=256))
    header = read_gguf(file)
    assert header.version == 2
    assert all(tensor.offset % 256 == 0 for tensor in header.tensors)


def shape_with(file: Path, more: Mapping[str, object], tensors: Mapping[str, np.ndarray] | None = None) -> GGUFHeader:
    return read_gguf(write_gguf(file, {**tiny_metadata(), **more}, {**tiny_tensors(), **(tensors or {})}))


def test_optional_keys_of_the_shape(file: Path) -> None:
    more = {
        "llama.attention.sliding_window": 512,
        "llama.attention.key_length": 24,
        "llama.attention.value_length": 20,
        "tokenizer.chat_template": "{{ messages }}",
    }
    shape = model_shape(shape_with(file, more))
    assert (shape.sliding_window, shape.head_size_k, shape.head_size_v) == (512, 24, 20)
    assert shape.chat_template == "{{ messages }}"


def test_heads_given_per_layer(file: Path) -> None:
    more: dict[str, object] = {
        "llama.block_count": 3,
        "llama.attention.head_count": [4, 2, 4],
        "llama.attention.head_count_kv": [2, 0, 1],
        "llama.feed_forward_length": [64, 128, 64],
    }
    shape = model_shape(shape_with(file, more))
    assert (shape.heads, shape.kv_heads, shape.kv_heads_by_layer) == (4, 2, (2, 0, 1))
    assert (shape.feed_forward_length, shape.head_size_k) == (128, 8)


@pytest.mark.parametrize(
    ("key", "tensor"),
    [("llama.ssm.state_size", ""), ("llama.wkv.head_size", ""), ("", "blk.0.ssm_in.weight"), ("", "")],
)
def test_recurrent_models_are_recognised(file: Path, key: str, tensor: str) -> None:
    keys = {key: 16} if key else {}
    tensors = {tensor: np.zeros((2, 2), np.float32)} if tensor else {}
    assert model_shape(shape_with(file, keys, tensors)).recurrent == bool(key or tensor)


def test_a_recurrent_model_needs_no_heads(file: Path) -> None:
    metadata = {key: value for key, value in tiny_metadata().items() if ".attention.head" not in key}
    write_gguf(file, {**metadata, "llama.ssm.state_size": 16}, tiny_tensors())
    shape = model_shape(read_gguf(file))
    assert (shape.heads, shape.kv_heads_by_layer, shape.head_size_k) == (0, (0,), 0)


def test_a_real_model() -> None:
    path = ensure_model("smollm2-135m")
    tracemalloc.start()
    header = read_gguf(path)
    shape = model_shape(header)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6
    assert (shape.architecture, shape.vocab_size, shape.layers) == ("llama", 49152, 30)
    assert (shape.heads, shape.kv_heads, shape.head_size_k, shape.parameters) == (9, 3, 64, 134_515_008)
    assert set(shape.quantization) == {"Q4_1", "Q8_0", "F32"}
    assert shape.chat_template is not None
    assert max(tensor.offset + tensor.nbytes for tensor in header.tensors) <= header.file_size
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, StringArray)
    assert (tokens[1], tokens[2]) == ("<|im_start|>", "<|im_end|>")


# --- paths -------------------------------------------------------------------------------------------------


def test_missing_file(file: Path) -> None:
    assert "no such file" in refused(file)


def test_a_path_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        check_path(tmp_path / "a\nb\x1b[31m.gguf")
    assert str(caught.value).isprintable()
    assert r"a\nb\x1b[31m.gguf: no such file" in str(caught.value)


def test_dangling_link(file: Path, tmp_path: Path) -> None:
    file.symlink_to(tmp_path / "gone.gguf")
    assert "gone.gguf, which does not exist" in refused(file)


def test_directory_names_the_files_inside(tmp_path: Path) -> None:
    assert refused(tmp_path) == "is a directory; give a .gguf file"
    (tmp_path / "inside.gguf").touch()
    assert refused(tmp_path) == "is a directory; give a .gguf file, such as inside.gguf"


def test_empty_file(file: Path) -> None:
    assert refused_bytes(file, b"") == "is empty (0 bytes); download it again"


def test_pipe_and_socket(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "not a regular file" in refused(pipe)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        assert "not a regular file" in refused(tmp_path / "socket")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "file.gguf/inside"])
def test_paths_that_cannot_exist(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.gguf").write_bytes(b"x")
    with pytest.raises(ModelFileError, match="cannot be a file"):
        check_path(tmp_path / name)


def test_no_permission(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(tiny_gguf())
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "no permission to read it; run `chmod u+r`" in refused(file)


def test_a_failing_disk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(tiny_gguf())

    def broken(path: Path, mode: str) -> NoReturn:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "open", broken)
    assert "cannot be read (Input/output error)" in refused(file)


# --- what a model must have --------------------------------------------------------------------------------


def without(*keys: str) -> dict[str, object]:
    return {key: value for key, value in tiny_metadata().items() if key not in keys}


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (without("general.architecture"), "general.architecture is missing"),
        ({**tiny_metadata(), "general.architecture": 3}, "general.architecture is 3; allowed: a text"),
        ({**tiny_metadata(), "general.architecture": ""}, "general.architecture is missing"),
        (without("tokenizer.ggml.model"), "tokenizer.ggml.model is missing"),
        (without("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens is missing"),
        ({**tiny_metadata(), "tokenizer.ggml.tokens": [1, 2]}, "allowed: an array of strings"),
        ({**tiny_metadata(), "tokenizer.ggml.tokens": Typed(8, [], True)}, "allowed: an array of strings"),
        ({**tiny_metadata(), "tokenizer.ggml.scores": np.zeros(15, np.float32)}, "16 32-bit numbers"),
        ({**tiny_metadata(), "tokenizer.ggml.scores": np.zeros(16)}, "16 32-bit numbers"),
        ({**tiny_metadata(), "tokenizer.ggml.token_type": 5}, "16 32-bit numbers"),
        ({**tiny_metadata(), "tokenizer.ggml.merges": [1]}, "merges is"),
        ({**tiny_metadata(), "tokenizer.ggml.precompiled_charsmap": [1]}, "an array of bytes"),
        (without("llama.block_count"), "llama.block_count is missing"),
        (without("llama.embedding_length"), "llama.embedding_length is missing"),
        (without("llama.context_length"), "llama.context_length is missing"),
        (without("llama.attention.head_count"), "llama.attention.head_count is missing"),
        ({**tiny_metadata(), "llama.block_count": 0}, "block_count is 0; allowed: an integer from 1 to 512"),
        ({**tiny_metadata(), "llama.block_count": 513}, "block_count is 513"),
        ({**tiny_metadata(), "llama.embedding_length": 0}, "embedding_length is 0"),
        ({**tiny_metadata(), "llama.context_length": 0}, "context_length is 0"),
        ({**tiny_metadata(), "llama.context_length": -5}, "context_length is -5"),
        ({**tiny_metadata(), "llama.attention.head_count": 0}, "head_count is 0"),
        ({**tiny_metadata(), "llama.attention.head_count": 0.5}, "head_count is 0.5"),
        ({**tiny_metadata(), "llama.attention.head_count": True}, "head_count is True"),
        ({**tiny_metadata(), "llama.attention.head_count": [2, 2]}, "a list of 2 numbers"),
        ({**tiny_metadata(), "llama.attention.head_count": [0]}, "head_count is"),
        ({**tiny_metadata(), "llama.attention.head_count": 64}, "key_length"),
        ({**tiny_metadata(), "llama.attention.head_count_kv": 0}, "head_count_kv is 0"),
        (
            {**tiny_metadata(), "llama.attention.head_count": 4, "llama.attention.head_count_kv": 3},
            "divisor of 4",
        ),
        ({**tiny_metadata(), "llama.attention.key_length": 0}, "key_length is 0"),
        ({**tiny_metadata(), "llama.expert_count": 513}, "expert_count is 513"),
        (
            {**tiny_metadata(), "llama.expert_count": 4, "llama.expert_used_count": 5},
            "expert_used_count is 5",
        ),
        (
            {**tiny_metadata(), "llama.embedding_length": 64},
            "token_embd.weight has shape (32, 16), not (64, 16)",
        ),
        (tiny_metadata(vocab=20), "token_embd.weight has shape (32, 16), not (32, 20)"),
        ({**tiny_metadata(), "tokenizer.chat_template": 7}, "tokenizer.chat_template is 7; allowed: a text"),
    ],
)
def test_keys_that_a_model_needs(file: Path, metadata: dict[str, object], words: str) -> None:
    assert words in refused(write_gguf(file, metadata, tiny_tensors()))


def test_a_vocabulary_without_a_model(file: Path) -> None:
    assert "holds no tensors" in refused(write_gguf(file, tiny_metadata()))
