"""Shapes of what lies on this machine: GGUF, exports, directories of transformers; and which of them are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foredraft.errors import ModelFileError
from foredraft.manifest import MANIFEST, PROGRAM, TOKENIZER
from foredraft.modelfile import SOURCES, model_shape, read_gguf
from foredraft.shapes import read_shape
from tests.support import tiny_models
from tests.support.gguf_writer import tiny_gguf
from tests.support.stored import CONFIG, SHAPES, entries, model_files, sharded_files, stored, with_header
from tests.unit.test_manifest import EXAMPLE, PROGRAM_BYTES, TOKENIZER_BYTES

ELEMENTS = 10 * 16 * 2 + 16 * 16 + 16


def written(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def refused(path: Path) -> str:
    """What is said about ``path``, in one line that begins with it or with a path in it."""
    with pytest.raises(ModelFileError) as caught:
        read_shape(str(path))
    message = str(caught.value)
    assert message.startswith(str(path)) and message.isprintable() and len(message) < 600
    return message.removeprefix(str(path)).lstrip("/")


# --- GGUF and exports --------------------------------------------------------------------------------------


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_gguf())
    shape = read_shape(str(path))
    assert shape == model_shape(read_gguf(path))
    assert (shape.source, shape.file_bytes) == ("gguf", path.stat().st_size) and shape.source in SOURCES


@pytest.mark.parametrize("name", ["", PROGRAM])
def test_an_export(tmp_path: Path, name: str) -> None:
    (tmp_path / MANIFEST).write_text(EXAMPLE.to_json(), "utf-8")
    (tmp_path / PROGRAM).write_bytes(PROGRAM_BYTES)
    (tmp_path / TOKENIZER).write_bytes(TOKENIZER_BYTES)
    shape = read_shape(str(tmp_path / name))
    assert (shape.source, shape.name, shape.architecture) == ("export", "Tiny-π", "llama")
    assert (shape.weight_bytes, shape.file_bytes) == (len(PROGRAM_BYTES), len(PROGRAM_BYTES))
    assert (shape.context_length, shape.layers, shape.kv_heads, shape.head_size_v) == (512, 4, 2, 16)
    assert (shape.windows, shape.sliding_window, shape.parameters) == ((), 8, 0)
    assert (shape.pass_width, shape.pass_rows) == (64, 32)


def test_an_export_without_its_program(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(EXAMPLE.to_json(), "utf-8")
    assert "tokenizer.json: cannot be read" in refused(tmp_path)


# --- directories of transformers ---------------------------------------------------------------------------


def test_a_model_in_one_piece(tmp_path: Path) -> None:
    folder = written(tmp_path / "Tiny", model_files())
    shape = read_shape(str(folder))
    assert (shape.source, shape.name, shape.architecture, shape.vocab_size) == ("safetensors", "Tiny", "llama", 10)
    assert (shape.layers, shape.heads, shape.kv_heads_by_layer, shape.head_size_k) == (2, 4, (2, 2), 4)
    assert (shape.embedding_length, shape.feed_forward_length, shape.context_length) == (16, 24, 128)
    assert (shape.parameters, shape.weight_bytes, dict(shape.quantization)) == (
        ELEMENTS,
        2 * ELEMENTS,
        {"BF16": 2 * ELEMENTS},
    )
    assert (shape.embedding_bytes, shape.output_bytes, shape.windows, shape.state_bytes) == (320, 320, (), 0)
    assert shape.file_bytes == (folder / "model.safetensors").stat().st_size
    assert read_shape(str(folder / "model.safetensors")) == shape


def test_a_model_in_pieces(tmp_path: Path) -> None:
    whole = read_shape(str(written(tmp_path / "a", model_files())))
    pieces = read_shape(str(written(tmp_path / "b", sharded_files())))
    assert (pieces.weight_bytes, pieces.parameters, pieces.output_bytes) == (2 * ELEMENTS, ELEMENTS, 320)
    assert pieces.file_bytes > whole.weight_bytes
    assert (pieces.quantization, pieces.kv_heads_by_layer) == (whole.quantization, whole.kv_heads_by_layer)


def test_a_shared_matrix_counts_once(tmp_path: Path) -> None:
    shape = read_shape(str(written(tmp_path, model_files(CONFIG | {"tie_word_embeddings": True}))))
    assert (shape.weight_bytes, shape.output_bytes) == (2 * ELEMENTS - 320, 0)
    assert shape.file_bytes > 2 * ELEMENTS


def test_parts_that_are_no_part_of_the_decoder(tmp_path: Path) -> None:
    more = SHAPES | {"vision_tower.embed_tokens.weight": (7, 7), "model.layers.0.rotary_emb.inv_freq": (8,)}
    files = model_files() | {"model.safetensors": stored(more)}
    assert read_shape(str(written(tmp_path, files))).weight_bytes == 2 * ELEMENTS


def test_windows_of_a_directory(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    config = CONFIG | {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 64, "layer_types": kinds}
    config |= {"tie_word_embeddings": True, "head_dim": 4, "hidden_activation": "gelu_pytorch_tanh"}
    shape = read_shape(str(written(tmp_path, model_files(config))))
    assert (shape.windows, shape.sliding_window) == ((64, None), 64)


def test_several_types(tmp_path: Path) -> None:
    header = entries(SHAPES)
    header["extra.scale"] = {"dtype": "F32", "shape": [], "data_offsets": [2 * ELEMENTS, 2 * ELEMENTS + 4]}
    header["extra.empty"] = {"dtype": "I64", "shape": [0, 3], "data_offsets": [8, 8]}
    files = model_files() | {"model.safetensors": with_header(header, 2 * ELEMENTS + 4)}
    shape = read_shape(str(written(tmp_path, files)))
    assert dict(shape.quantization) == {"BF16": 2 * ELEMENTS, "F32": 4, "I64": 0}
    assert shape.parameters == ELEMENTS + 1


# --- refusals ----------------------------------------------------------------------------------------------


def test_directories_that_hold_no_model(tmp_path: Path) -> None:
    assert "holds no config.json; give a model's directory" in refused(tmp_path)
    written(tmp_path, {"config.json": json.dumps(CONFIG).encode()})
    assert "holds no model.safetensors" in refused(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * (2 << 20))
    assert "config.json: has more than 1048576 bytes" in refused(tmp_path)


def test_paths_that_do_not_exist(tmp_path: Path) -> None:
    for name in ("gone.gguf", "gone.safetensors", "gone.pte", "deep/gone"):
        assert "no such file" in refused(tmp_path / name)


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architectures": ["MistralForCausalLM"]}, "architectures is ['MistralForCausalLM']"),
    "layers": ({"num_hidden_layers": 1 << 30}, "num_hidden_layers is 1073741824; allowed: at most 512"),
    "digits": ({"hidden_size": 10**400}, "hidden_size is 1000"),
    "vocabulary": ({"vocab_size": 11}, "the embedding (embed_tokens.weight) is of shape (10, 16); allowed: (11, 16)"),
    "epsilon": ({"rms_norm_eps": 10**400}, "has a number that is too large"),
}


@pytest.mark.parametrize(("more", "words"), CONFIGS.values(), ids=CONFIGS)
def test_configurations_that_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    assert words in refused(written(tmp_path, model_files(CONFIG | more)))


def test_a_configuration_that_is_no_object(tmp_path: Path) -> None:
    for text, words in ((b"[1]", "is not a JSON object"), (b"{", "is not JSON"), (b'{"a":1,"a":2}', "appears twice")):
        assert words in refused(written(tmp_path, model_files() | {"config.json": text}))


def header(**changes: object) -> bytes:
    """A file whose first tensor was changed."""
    items = entries(SHAPES)
    items["model.embed_tokens.weight"] |= changes
    return with_header(items)


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty (0 bytes)"),
    "short": (b"\x10\0", "is no whole safetensors file"),
    "foreign": (tiny_gguf(), "is no whole safetensors file"),
    "longer than the file": (b"\xff\0\0\0\0\0\0\0{}", "it would begin with a header of 255 bytes, but the file has 10"),
    "enormous": (b"\xff" * 8 + b"{}", "is no whole safetensors file"),
    "no JSON": (with_header(b"{]"), "is not JSON"),
    "deep": (with_header(b"[" * 100_000), "is not JSON"),
    "a list": (with_header([1]), "is not a JSON object"),
    "twice": (with_header(b'{"a":{},"a":{}}'), "is not JSON (a name appears twice)"),
    "no object": (with_header({"a": 3}), "tensor 'a' is no object"),
    "type": (header(dtype="Q9"), "has type 'Q9'; allowed: BOOL"),
    "types": (header(dtype=["F32"]), "has type ['F32']"),
    "shape": (header(shape=[10, -16]), "has no valid shape or data_offsets"),
    "fraction": (header(shape=[10, 1.6]), "has no valid shape or data_offsets"),
    "truth": (header(shape=[True]), "has no valid shape or data_offsets"),
    "rank": (header(shape=[1] * 17), "has no valid shape or data_offsets"),
    "three": (header(data_offsets=[0, 1, 2]), "has no valid shape or data_offsets"),
    "size": (header(data_offsets=[0, 321]), "holds BF16 of shape [10, 16] in 321 bytes"),
    "backwards": (header(data_offsets=[320, 0]), "holds BF16 of shape [10, 16] in -320 bytes"),
    "outside": (header(data_offsets=[10_000, 10_320]), "ends at byte 10320 of 4096 bytes of data"),
    "overlap": (header(data_offsets=[100, 420]), "tensors 'model.embed_tokens.weight' and 'model.layers.0"),
    "no embedding": (with_header({}), "the embedding (embed_tokens.weight) is missing"),
}


@pytest.mark.parametrize(("data", "words"), FILES.values(), ids=FILES)
def test_files_that_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    folder = written(tmp_path, model_files() | {"model.safetensors": data})
    assert words in refused(folder)


def test_a_header_that_is_too_long(tmp_path: Path) -> None:
    long = with_header(b"{}" + b" " * (2 << 20))
    assert "has a header of 2097154 bytes; at most 2097152 are read" in refused(
        written(tmp_path, model_files() | {"model.safetensors": long})
    )


INDEXES: dict[str, tuple[object, str]] = {
    "empty": ({}, "has no object weight_map"),
    "list": ({"weight_map": [1]}, "has no object weight_map"),
    "outside": ({"weight_map": {"a": "../x.safetensors"}}, "names the file '../x.safetensors'"),
    "another kind": ({"weight_map": {"a": "x.bin"}}, "names the file 'x.bin'"),
    "number": ({"weight_map": {"a": 3}}, "names the file 3"),
    "gone": ({"weight_map": {"a": "x.safetensors"}}, "x.safetensors: no such file"),
    "lost": ({"weight_map": {"a": "model-00001-of-00002.safetensors"}}, "lacks the tensor 'a' that the index names"),
    "many": (
        {"weight_map": {f"a{i}": f"{i}.safetensors" for i in range(257)}},
        "names 257 files; allowed: at most 256",
    ),
}


@pytest.mark.parametrize(("index", "words"), INDEXES.values(), ids=INDEXES)
def test_indexes_that_are_refused(tmp_path: Path, index: object, words: str) -> None:
    files = sharded_files() | {"model.safetensors.index.json": json.dumps(index).encode()}
    assert words in refused(written(tmp_path, files))


def test_a_pulled_hub_file(empty_cache: Path) -> None:
    folder = empty_cache / "hub" / "owner--repo" / "sub"
    folder.mkdir(parents=True)
    tiny_models.write_llama(folder / "m-q4_0.gguf")
    assert read_shape("owner/repo").architecture == read_shape("owner/repo:q4_0").architecture == "llama"
    tiny_models.write_llama(folder / "m-q8_0.gguf")
    with pytest.raises(ModelFileError, match="means 2 files"):
        read_shape("owner/repo")
