"""Decoders from GGUF files: what is read, what is refused, the order of rows, memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from foredraft.errors import MissingExtra, ModelFileError
from foredraft.gguf_types import TENSOR_TYPES
from foredraft.modelfile import read_gguf
from foredraft.models import gguf_weights, layout
from foredraft.models.config import ARCHITECTURES, DecoderConfig, Rope
from foredraft.models.layout import Part, read_parameter
from foredraft.models.load import load_decoder, read_config
from tests.support import tiny_models
from tests.support.gguf_writer import RawTensor, raw_tensors, write_gguf

Keys = dict[str, object]
Weights = dict[str, np.ndarray]


def refusal(path: Path, load: Callable[[Path], object] = load_decoder) -> str:
    """The one line that says why the file is no model of this family."""
    with pytest.raises(ModelFileError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and message.isprintable()
    return message.removeprefix(f"{path}: ")


def changed(path: Path, keys: Keys, weights: Weights | None = None, without: tuple[str, ...] = ()) -> Path:
    """The tiny Llama 3 with other keys and weights."""
    metadata, tensors = tiny_models.llama3_parts()
    metadata |= keys
    tensors |= weights or {}
    keep = {name: values for name, values in tensors.items() if name not in without}
    return write_gguf(path, {key: value for key, value in metadata.items() if key not in without}, keep)


# --- the configuration -------------------------------------------------------------------------------------


def test_config_of_gemma3(gemma3: Path) -> None:
    config = read_config(gemma3)
    assert config == DecoderConfig(
        architecture="gemma3",
        vocab_size=262144,
        hidden_size=640,
        layers=18,
        heads=4,
        kv_heads=1,
        head_dim=256,
        ffn_size=2048,
        context_length=32768,
        norm_eps=config.norm_eps,
        rope=Rope(1e6, None, 1e4),
        tied=True,
        query_scale=1 / 16,
        activation="gelu_tanh",
        qk_norm=True,
        post_norms=True,
        embed_scale=640**0.5,
        window=512,
        local=((True,) * 5 + (False,)) * 3,
    )
    assert config.norm_eps == pytest.approx(1e-6)


def test_config_of_smollm2(smollm2: Path) -> None:
    config = read_config(smollm2)
    assert (config.architecture, config.rope, config.tied) == ("llama", Rope(100000.0), True)
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.window, config.local, config.activation, config.query_scale) == (None, (), "silu", 1 / 8)


def test_config_of_tiny_models(tmp_path: Path) -> None:
    llama3 = read_config(tiny_models.write_llama3(tmp_path / "llama3"))
    assert llama3.rope == Rope(5000.0, (1.0, 1.0, 1.0, 1.5, 3.0, 6.0, 8.0, 8.0)) and not llama3.tied
    assert read_config(tiny_models.write_linear(tmp_path / "linear")).rope == Rope(5000.0, (4.0,) * 8)
    assert read_config(tiny_models.write_qwen2(tmp_path / "qwen2")).qkv_bias
    qwen3 = read_config(tiny_models.write_qwen3(tmp_path / "qwen3"))
    assert qwen3.qk_norm and qwen3.head_dim == 24 and not qwen3.qkv_bias
    gemma2 = read_config(tiny_models.write_gemma2(tmp_path / "gemma2"))
    assert (gemma2.window, gemma2.local) == (8, (True, False, True, False))
    assert (gemma2.attention_softcap, gemma2.final_softcap, gemma2.rope) == (2.0, 5.0, Rope(10000.0))


def test_both_kinds_of_scaling_together(tmp_path: Path) -> None:
    path = changed(tmp_path / "model", {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0})
    assert read_config(path).rope.divisors == (2.0, 2.0, 2.0, 3.0, 6.0, 12.0, 16.0, 16.0)
    path = changed(tmp_path / "model", {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 2.0})
    assert read_config(path).rope.divisors == (1.0, 1.0, 1.0, 1.5, 3.0, 6.0, 8.0, 8.0)


def test_pattern_of_windows_in_the_file(tmp_path: Path) -> None:
    data = tiny_models.write_gemma3(tmp_path / "gemma3").read_bytes()
    assert read_config(tmp_path / "gemma3").local == (True,) * 5 + (False,)
    for pattern, local in (
        (3, (True, True, False) * 2),
        (np.array([1, 0, 0, 0, 1, 0], np.bool_), (True, False, False, False, True, False)),
    ):
        path = tiny_models.write_gemma3(tmp_path / "gemma3", keys={"gemma3.attention.sliding_window_pattern": pattern})
        assert path.read_bytes() != data
        assert read_config(path).local == local
    path = tiny_models.write_gemma3(tmp_path / "gemma3", window=0)
    assert (read_config(path).window, read_config(path).local) == (None, ())


def test_the_scale_of_products(tmp_path: Path) -> None:
    """1 / sqrt(head size), but the 27B of Gemma 3 takes 1 / sqrt(width / heads); a key in the file goes first."""
    wide: Keys = {"gemma3.attention.key_length": 64, "gemma3.attention.value_length": 64}
    wide["gemma3.rope.dimension_count"] = 64
    for more, scale in (({}, 1 / 8), ({"gemma3.block_count": 62}, 1 / 4), ({"gemma3.attention.scale": 0.5}, 0.5)):
        path = tiny_models.write_gemma3(tmp_path / "gemma3", keys=wide | more)
        assert read_config(path).query_scale == scale


# --- refusals ----------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Keys, str]] = {
    "yarn": (
        {"llama.rope.scaling.type": "yarn"},
        "key llama.rope.scaling.type is yarn; allowed: none, linear, or a table of divisors (Llama 3)",
    ),
    "experts": ({"llama.expert_count": 8}, "key llama.expert_count is 8; allowed: 0 (no mixture of experts)"),
    "part of a head": (
        {"llama.rope.dimension_count": 8},
        "key llama.rope.dimension_count is 8; allowed: the size of a head, 16, and even",
    ),
    "values": (
        {"llama.attention.key_length": 16, "llama.attention.value_length": 32},
        "key llama.attention.value_length is 32; allowed: the keys' 16",
    ),
    "by layer": (
        {"llama.attention.head_count_kv": [1, 2]},
        "key llama.attention.head_count_kv is (1, 2); allowed: the same number in every layer",
    ),
    "epsilon": (
        {"llama.attention.layer_norm_rms_epsilon": 0.0},
        "key llama.attention.layer_norm_rms_epsilon is missing; allowed: a positive number",
    ),
    "theta": ({"llama.rope.freq_base": float("nan")}, "key llama.rope.freq_base is nan; allowed: a number, 0 or more"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_keys_that_are_refused(what: str, tmp_path: Path) -> None:
    keys, message = REFUSED[what]
    path = changed(tmp_path / "model", keys)
    assert refusal(path, read_config).startswith(message)
    assert refusal(path).startswith(message)


@pytest.mark.parametrize("write", [tiny_models.write_mamba, tiny_models.write_gpt2, tiny_models.write_bert])
def test_other_architectures_are_named(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "model")
    name = write.__name__.removeprefix("write_")
    assert refusal(path) == (f"has the architecture '{name}'; allowed: {', '.join(ARCHITECTURES)}; use another engine")


def test_missing_and_unknown_tensors(tmp_path: Path) -> None:
    one = changed(tmp_path / "one", {}, without=("blk.1.attn_q.weight",))
    assert refusal(one) == "lacks tensor 'blk.1.attn_q.weight' of its architecture; get a complete copy"
    two = changed(tmp_path / "two", {}, without=("blk.1.attn_q.weight", "blk.1.ffn_up.weight"))
    assert refusal(two).startswith("lacks 2 tensors ('blk.1.attn_q.weight' and others)")
    more = changed(tmp_path / "more", {}, {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)})
    assert refusal(more).startswith("holds tensor 'blk.0.attn_q_norm.weight', which its architecture does not use")
    divisors = tiny_models.write_qwen2(tmp_path / "qwen2", {"rope_freqs.weight": np.ones(8, np.float32)})
    assert refusal(divisors).startswith("holds tensor 'rope_freqs.weight'")


def test_wrong_shapes(tmp_path: Path) -> None:
    path = changed(tmp_path / "one", {}, {"blk.0.ffn_up.weight": np.ones((32, 32), np.float32)})
    assert refusal(path) == "tensor 'blk.0.ffn_up.weight' has shape (32, 32), not (64, 32); get another copy"
    for values in (np.ones(4, np.float32), np.zeros(8, np.float32), np.full(8, np.nan, np.float32)):
        assert "rope_freqs.weight" in refusal(changed(tmp_path / "two", {}, {"rope_freqs.weight": values}), read_config)


def quantized(path: Path, type_id: int) -> Path:
    """The tiny Llama 3 whose first feed-forward matrix has the given type, all bits 0."""
    metadata, weights = tiny_models.llama3_parts()
    kind = TENSOR_TYPES[type_id]
    tensors = [
        RawTensor(one.name, one.shape, type_id, bytes(64 * 32 // kind.block * kind.nbytes))
        if one.name == "blk.0.ffn_up.weight"
        else one
        for one in raw_tensors(weights)
    ]
    return write_gguf(path, metadata, tensors)


def test_types_that_cannot_be_dequantized(tmp_path: Path) -> None:
    for type_id in (9, 24):
        name = TENSOR_TYPES[type_id].name
        message = refusal(quantized(tmp_path / "model", type_id))
        start = f"tensor 'blk.0.ffn_up.weight' has type {name}, which cannot be dequantized; allowed: F32, F16, Q4_0, "
        assert message.startswith(start)
        assert f" {name}," not in message.removeprefix(start)
    up = load_decoder(quantized(tmp_path / "model", 2)).blocks[0].ffn.gate_up.weight[64:]
    assert not up.any()


def test_damage(smollm2: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with smollm2.open("rb") as file:
        path.write_bytes(file.read(3 << 20))
    for load in (load_decoder, read_config):
        assert refusal(path, load).startswith("file is truncated")
    assert refusal(tmp_path / "none").startswith("no such file")
    path.write_bytes(b"hello")
    assert refusal(path).startswith("not a GGUF file")


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tiny_models.write_llama3(tmp_path / "model")
    source = gguf_weights.GgufSource(read_gguf(path))
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelFileError, match="became shorter"):
        source.rows("output.weight", 0, 24)
    path.unlink()
    with pytest.raises(ModelFileError, match="cannot be read"):
        source.rows("output.weight", 0, 24)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_models.write_llama(tmp_path / "model")
    gguf_weights._readable.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf.quants", None)
    with pytest.raises(MissingExtra, match=r"pip install 'foredraft\[export\]'"):
        load_decoder(path)
    monkeypatch.undo()
    assert load_decoder(path).config.layers == 2


# --- the weights -------------------------------------------------------------------------------------------


def test_every_weight_is_where_it_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the pieces; q and k of a llama with halves apart."""
    path = tiny_models.write_llama3(tmp_path / "model")
    _, weights = tiny_models.llama3_parts()
    for piece in (1, 100, 1 << 22):
        monkeypatch.setattr(layout, "PIECE", piece)
        state = load_decoder(path).state_dict()
        assert len(state) == 3 + 2 * 6
        np.testing.assert_array_equal(state["embedding.weight"], weights["token_embd.weight"])
        np.testing.assert_array_equal(state["head.weight"], weights["output.weight"])
        for layer in range(2):
            q, k, v, gate, up = (
                weights[f"blk.{layer}.{name}.weight"] for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
            )
            halves = [*range(0, 16, 2), *range(1, 16, 2)]
            qkv = np.concatenate([q[halves], q[16:][halves], k[halves], v])
            np.testing.assert_array_equal(state[f"blocks.{layer}.attention.qkv.weight"], qkv)
            np.testing.assert_array_equal(state[f"blocks.{layer}.ffn.gate_up.weight"], np.concatenate([gate, up]))


def test_biases_of_a_llama_are_put_apart_too() -> None:
    class Source:
        def __init__(self) -> None:
            self.path, self.shapes = Path("source"), {"bias": (8,)}

        def check(self, name: str) -> None: ...

        def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
            return torch.arange(8.0)[start:stop]

    got = read_parameter(Source(), (Part("bias", (8,), heads=2),), torch.float32)
    assert got.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    decoder = load_decoder(tiny_models.write_llama(tmp_path / "model"))
    assert decoder.head.weight is decoder.embedding.weight
    assert not decoder.training
    assert all(parameter.requires_grad and not parameter.is_meta for parameter in decoder.parameters())


def test_the_type_of_the_weights(tmp_path: Path) -> None:
    path = tiny_models.write_gemma3(tmp_path / "model")
    full, half = load_decoder(path), load_decoder(path, torch.bfloat16)
    for one, other in zip(full.parameters(), half.parameters(), strict=True):
        assert torch.equal(one.to(torch.bfloat16), other)
    assert full.config.embed_scale == 32**0.5
    assert half.config.embed_scale == 5.65625  # the nearest bfloat16


SCRIPT_MEMORY = """
import json, resource, sys
from pathlib import Path
import torch
from foredraft.models.load import load_decoder

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

before = peak()
decoder = load_decoder(Path(sys.argv[1]), getattr(torch, sys.argv[2]))
used = peak() - before
weights = sum(parameter.numel() * parameter.element_size() for parameter in decoder.parameters())
finite = all(bool(parameter.isfinite().all()) for parameter in decoder.parameters())
json.dump({"peak": used, "weights": weights, "finite": finite}, sys.stdout)
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory(dtype: str, smollm2: Path) -> None:
    """One copy of the weights and 150 MB, of which the packages that read them take a part."""
    command = [sys.executable, "-c", SCRIPT_MEMORY, str(smollm2), dtype]
    used = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert used["weights"] == 134_515_008 * (4 if dtype == "float32" else 2)
    assert used["finite"]
    assert used["peak"] < used["weights"] + 150e6
