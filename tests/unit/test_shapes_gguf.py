"""What planning needs of a GGUF header: windows by layer, states of recurrent layers, bytes of single tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from foredraft.modelfile import model_shape, read_gguf
from tests.support import tiny_models
from tests.support.gguf_writer import tiny_metadata, tiny_tensors, write_gguf


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_bytes_of_embedding_output_and_file(file: Path) -> None:
    tied = model_shape(read_gguf(tiny_models.write_llama(file)))
    assert (tied.embedding_bytes, tied.output_bytes, tied.file_bytes) == (24 * 32 * 4, 0, file.stat().st_size)
    untied = model_shape(read_gguf(tiny_models.write_llama3(file)))
    assert (untied.embedding_bytes, untied.output_bytes) == (24 * 32 * 4, 24 * 32 * 4)
    assert (untied.source, untied.state_bytes, untied.windows) == ("gguf", 0, ())


PATTERN = "llama.attention.sliding_window_pattern"
WINDOWS: dict[str, tuple[dict[str, object], tuple[int | None, ...]]] = {
    "period": ({PATTERN: 3}, (8, 8, None, 8)),
    "each layer": ({PATTERN: np.array([False, True, True, False])}, (None, 8, 8, None)),
    "numbers": ({PATTERN: np.array([1, 0, 0, 0], np.uint32)}, (8, None, None, None)),
    "all see all": ({PATTERN: np.zeros(4, np.bool_)}, ()),
    "period 0": ({PATTERN: 0}, ()),
    "period 1": ({PATTERN: 1}, ()),
    "no rule": ({}, ()),
    "no rule known": ({PATTERN: "alternating"}, ()),
    "another number of layers": ({PATTERN: np.ones(5, np.bool_)}, ()),
    "no window": ({PATTERN: 3, "llama.attention.sliding_window": 0}, ()),
}


@pytest.mark.parametrize(("more", "windows"), WINDOWS.values(), ids=WINDOWS)
def test_windows(file: Path, more: Mapping[str, object], windows: tuple[int | None, ...]) -> None:
    """Where no rule is known, all layers see all."""
    metadata = tiny_metadata(layers=4) | {"llama.attention.sliding_window": 8, **more}
    shape = model_shape(read_gguf(write_gguf(file, metadata, tiny_tensors(layers=4))))
    assert (shape.windows, shape.sliding_window) == (windows, metadata["llama.attention.sliding_window"] or None)


def test_windows_of_gemma(file: Path) -> None:
    assert model_shape(read_gguf(tiny_models.write_gemma2(file))).windows == (8, None, 8, None)
    assert model_shape(read_gguf(tiny_models.write_gemma3(file))).windows == (8,) * 5 + (None,)
    assert model_shape(read_gguf(tiny_models.write_gemma3(file, window=0))).windows == ()
    metadata = {key.replace("llama.", "gemma2."): value for key, value in tiny_metadata(layers=2).items()}
    metadata["general.architecture"] = "gemma2"
    shape = model_shape(read_gguf(write_gguf(file, metadata, tiny_tensors(layers=2))))
    assert (shape.windows, shape.sliding_window) == ((4096, None), 4096)


def test_states_of_mamba(file: Path) -> None:
    """3 inputs of 64 channels, and 8 numbers for each channel, in float32."""
    mamba = model_shape(read_gguf(tiny_models.write_mamba(file, layers=3)))
    assert (mamba.state_bytes, mamba.kv_heads_by_layer) == (3 * 4 * (3 * 64 + 8 * 64), (0, 0, 0))
    jamba = model_shape(read_gguf(tiny_models.write_jamba(file)))
    assert (jamba.state_bytes, jamba.kv_heads_by_layer) == (4 * (3 * 64 + 8 * 64), (0, 1))


def test_states_of_mamba_with_groups(file: Path) -> None:
    """Mamba 2 convolves the 2 · groups · state inputs of its matrices too."""
    keys = {"conv_kernel": 4, "inner_size": 64, "state_size": 8, "group_count": 2}
    metadata = tiny_metadata() | {f"llama.ssm.{key}": value for key, value in keys.items()}
    write_gguf(file, metadata, tiny_tensors() | {"blk.0.ssm_in.weight": np.zeros((2, 2), np.float32)})
    assert model_shape(read_gguf(file)).state_bytes == 4 * (3 * (64 + 2 * 2 * 8) + 8 * 64)


STATES: dict[str, tuple[dict[str, object], str, int | None]] = {
    "rwkv": ({"llama.wkv.head_size": 8, "llama.token_shift_count": 2}, "blk.0.time_mix_w1.weight", 4 * 32 * (2 + 8)),
    "short convolution": ({"llama.shortconv.l_cache": 3}, "blk.0.shortconv.conv.weight", 4 * 32 * 2),
    "rwkv, shifts unknown": ({"llama.wkv.head_size": 8}, "blk.0.time_mix_w1.weight", None),
    "linear attention": ({}, "blk.0.linear_attn.weight", None),
    "keys of the wrong kind": ({"llama.ssm.state_size": "8"}, "blk.0.ssm_in.weight", None),
    "no tensors": ({"llama.shortconv.l_cache": 3}, "other", None),
}


@pytest.mark.parametrize(("keys", "tensor", "size"), STATES.values(), ids=STATES)
def test_states(file: Path, keys: dict[str, object], tensor: str, size: int | None) -> None:
    tensors = tiny_tensors() | {tensor: np.zeros((2, 2), np.float32)}
    shape = model_shape(read_gguf(write_gguf(file, tiny_metadata() | keys, tensors)))
    assert shape.recurrent and shape.state_bytes == size


def test_a_layer_with_a_state_and_no_keys_needs_no_cache(file: Path) -> None:
    tensors = tiny_tensors(layers=2) | {f"blk.{i}.ssm_in.weight": np.zeros((2, 2), np.float32) for i in range(2)}
    del tensors["blk.0.attn_k.weight"]
    shape = model_shape(read_gguf(write_gguf(file, tiny_metadata(layers=2), tensors)))
    assert (shape.kv_heads_by_layer, shape.kv_heads) == ((0, 1), 1)
