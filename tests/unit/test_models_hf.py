"""Decoders from Hugging Face directories: what is read, what is refused."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from foredraft.errors import MissingExtra, ModelFileError
from foredraft.models.config import DecoderConfig, Rope
from foredraft.models.decoder import Decoder
from foredraft.models.hf_weights import hf_style
from foredraft.models.layout import layout
from foredraft.models.load import load_decoder, read_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
GEMMA3 = {
    key: value
    for key, value in LLAMA.items()
    if key not in ("rms_norm_eps", "vocab_size", "num_attention_heads", "num_key_value_heads")
} | {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 7, "sliding_window": 5}
SCALED = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def write_config(folder: Path, values: Mapping[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def config_of(folder: Path, values: Mapping[str, Any]) -> DecoderConfig:
    return read_config(write_config(folder, values))


def write_model(folder: Path, values: Mapping[str, Any] = LLAMA) -> Path:
    """A complete directory with random weights."""
    random = torch.Generator().manual_seed(0)
    config = config_of(folder, values)
    parts = [part for parts in layout(config, hf_style(config.architecture)).values() for part in parts]
    save_file({part.name: torch.randn(part.shape, generator=random) for part in parts}, folder / "model.safetensors")
    return folder


def refusal(folder: Path, load: Callable[[Path], object] = load_decoder) -> str:
    with pytest.raises(ModelFileError) as caught:
        load(folder)
    message = str(caught.value)
    assert message.startswith(str(folder)) and message.isprintable()
    return message.removeprefix(str(folder)).lstrip(": ")


# --- the configuration -------------------------------------------------------------------------------------


def test_llama(tmp_path: Path) -> None:
    config = config_of(tmp_path, LLAMA | {"rope_theta": 5e5})
    assert config == DecoderConfig(
        architecture="llama",
        vocab_size=10,
        hidden_size=16,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=4,
        ffn_size=24,
        context_length=128,
        norm_eps=1e-5,
        rope=Rope(5e5),
        tied=False,
        query_scale=0.5,
    )


def test_the_words_of_transformers_4_and_5_for_rotary_scaling(tmp_path: Path) -> None:
    new = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **SCALED}}
    old = {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **SCALED}}
    older = {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **SCALED}}
    wide = LLAMA | {"head_dim": 64}
    rope = config_of(tmp_path, wide | new).rope
    assert rope == config_of(tmp_path, wide | old).rope == config_of(tmp_path, wide | older).rope
    assert rope.theta == 5e5 and rope.divisors is not None and len(rope.divisors) == 32
    assert rope.divisors[0] == 1.0 and rope.divisors[-1] == 8.0
    turns = 8192 * 5e5 ** (-2 * 15 / 64) / (2 * math.pi)
    share = (turns - 1) / 3
    assert 0 < share < 1 and rope.divisors[15] == pytest.approx(1 / (share + (1 - share) / 8))
    linear = config_of(tmp_path, LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert linear.rope == Rope(10000.0, (2.0, 2.0))


def test_gemma3_in_three_dialects(tmp_path: Path) -> None:
    """transformers 5, transformers 4, and the text part of a model that also sees."""
    linear = {"rope_type": "linear", "factor": 8.0}
    new = GEMMA3 | {
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, **linear},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
        "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
    }
    old = GEMMA3 | {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": linear}
    inner = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": GEMMA3 | {"rope_scaling": linear}}
    config = config_of(tmp_path, new)
    assert config == config_of(tmp_path, old) == config_of(tmp_path, inner)
    assert config.rope == Rope(1e6, (8.0,) * 128, 1e4)
    assert (config.window, config.local) == (5, (True,) * 5 + (False, True))
    assert (config.vocab_size, config.heads, config.kv_heads, config.head_dim) == (262208, 8, 4, 256)
    assert (config.tied, config.embed_scale, config.query_scale) == (True, 4.0, 1 / 16)
    assert (config.attention_softcap, config.final_softcap, config.norm_eps) == (None, None, 1e-6)


def test_gemma2(tmp_path: Path) -> None:
    config = config_of(tmp_path, GEMMA3 | {"architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": 144})
    assert (config.attention_softcap, config.final_softcap) == (50.0, 30.0)
    assert (config.local, config.rope) == ((True, False) * 3 + (True,), Rope(10000.0))
    assert config.query_scale == 1 / 12 and not config.qk_norm and config.post_norms
    off = {"architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": None, "final_logit_softcapping": None}
    config = config_of(tmp_path, GEMMA3 | off)
    assert (config.attention_softcap, config.final_softcap) == (None, None)


def test_windows_of_qwen2(tmp_path: Path) -> None:
    window = {"sliding_window": 64, "max_window_layers": 1}
    assert config_of(tmp_path, QWEN2 | window).window is None
    config = config_of(tmp_path, QWEN2 | window | {"use_sliding_window": True})
    assert (config.window, config.local) == (64, (False, True))
    config = config_of(tmp_path, QWEN2 | window | {"layer_types": ["full_attention"] * 2})
    assert (config.window, config.local, config.qkv_bias) == (None, (), True)


# --- refusals ----------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architectures": ["MixtralForCausalLM"]}, "architectures is ['MixtralForCausalLM']; allowed: Ll"),
    "no architecture": ({"architectures": None}, "architectures is None; allowed: LlamaForCausalLM, Qwen2ForCausalLM"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn"}}, "rope type is 'yarn'; allowed: default, linear, llama3"),
    "factor": ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing; allowed: a positive number"),
    "low and high": (
        {"rope_scaling": SCALED | {"type": "llama3", "high_freq_factor": 1.0}},
        "high_freq_factor is 1.0; allowed: more than low_freq_factor",
    ),
    "part of a head": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5; allowed: 1"),
    "rope": ({"rope_parameters": 3}, "rope_parameters is 3; allowed: an object"),
    "bias": ({"attention_bias": True}, "attention_bias is True; allowed: absent, null or false"),
    "quantized": ({"quantization_config": {"quant_method": "awq"}}, "quantization_config is {'quant_method': 'awq'}"),
    "activation": ({"hidden_act": "relu"}, "hidden_act is 'relu'; allowed: silu, swish, gelu_pytorch_tanh"),
    "size": ({"hidden_size": -1}, "hidden_size is -1; allowed: a positive integer"),
    "no size": ({"vocab_size": None}, "vocab_size is None; allowed: a positive integer"),
    "text": ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'; allowed: a positive integer"),
    "heads": ({"num_key_value_heads": 3}, "num_key_value_heads is 3; allowed: a divisor of 4 query heads"),
    "epsilon": ({"rms_norm_eps": 0}, "rms_norm_eps is 0; allowed: a positive number"),
    "layers": ({"layer_types": ["full_attention"]}, "layer_types is ['full_attention']; allowed: a list of 2 names"),
    "kinds": ({"layer_types": ["chunked_attention"] * 2}, "layer_types is ['chunked_attention', 'chunked_attention']"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_settings_that_are_refused(what: str, tmp_path: Path) -> None:
    changes, message = REFUSED[what]
    write_config(tmp_path, LLAMA | changes)
    for load in (read_config, load_decoder):
        assert refusal(tmp_path, load).removeprefix("/config.json: ").startswith(message)


def test_scaled_local_layers_are_refused(tmp_path: Path) -> None:
    both = {"full_attention": {}, "sliding_attention": {"rope_type": "linear", "factor": 2.0}}
    write_config(tmp_path, GEMMA3 | {"rope_parameters": both})
    assert "allowed: no scaling for sliding_attention" in refusal(tmp_path)


def test_a_config_that_is_no_config(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none").startswith("no such file")
    assert refusal(tmp_path).startswith("/config.json: no such file; give a directory as transformers'")
    for text, message in (("{", "is not JSON ("), ("[1]", "is not a JSON object"), ("[" * 100_000, "is not JSON (")):
        (tmp_path / "config.json").write_text(text)
        assert refusal(tmp_path, read_config).startswith(f"/config.json: {message}")
    write_config(tmp_path, {"architectures": ["Gemma3ForConditionalGeneration"]})
    assert refusal(tmp_path) == "/config.json: has no object text_config; get another copy"


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    write_config(tmp_path, LLAMA)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    assert refusal(tmp_path).startswith("holds no model.safetensors; convert the weights")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert refusal(tmp_path).startswith("/model-1.safetensors: no such file")
    for name in ("../other.safetensors", "/etc/passwd", "a.bin"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        message = f"/{index.name}: names the file {name!r}; allowed: .safetensors files beside it"
        assert refusal(tmp_path) == message
    index.write_text("{}")
    assert "has no object weight_map" in refusal(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    assert refusal(tmp_path).startswith("/model.safetensors: is no safetensors file (")


def test_wrong_tensors(tmp_path: Path) -> None:
    file = write_model(tmp_path) / "model.safetensors"
    good = load_file(file)
    name = "model.layers.1.self_attn.q_proj.weight"

    def refused(tensors: dict[str, torch.Tensor]) -> str:
        save_file(tensors, file)
        return refusal(tmp_path)

    assert refused({key: value for key, value in good.items() if key != name}).startswith(f"lacks tensor '{name}'")
    assert refused({**good, "bias": torch.zeros(3)}).startswith("holds tensor 'bias', which its architecture does not")
    assert refused({**good, name: torch.zeros(3, 4)}).startswith(f"tensor '{name}' has shape (3, 4), not (16, 16)")
    message = refused({**good, name: good[name].to(torch.int8)})
    assert message == f"tensor '{name}' has type I8; allowed: F64, F32, F16, BF16"
    save_file({**good, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}, file)
    assert load_decoder(tmp_path).config == read_config(tmp_path)


def test_a_tied_head_that_is_stored_too(tmp_path: Path) -> None:
    write_model(tmp_path)
    write_config(tmp_path, LLAMA | {"tie_word_embeddings": True})
    decoder = load_decoder(tmp_path)
    assert decoder.head.weight is decoder.embedding.weight


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_a_model_that_also_sees(prefix: str, tmp_path: Path) -> None:
    small = GEMMA3 | {"vocab_size": 20, "head_dim": 8}
    one = load_decoder(write_model(tmp_path / "text", small))
    weights = load_file(tmp_path / "text" / "model.safetensors")
    renamed = {prefix + name.removeprefix("model."): value for name, value in weights.items()}
    folder = write_config(
        tmp_path / "both", {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": small}
    )
    save_file(
        renamed | {"vision_tower.x": torch.ones(1), "multi_modal_projector.y": torch.ones(1)},
        folder / "model.safetensors",
    )
    assert_same(one, load_decoder(folder))


def assert_same(one: Decoder, other: Decoder) -> None:
    assert one.config == other.config
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])


def test_every_weight_is_where_it_belongs(tmp_path: Path) -> None:
    """Rows as they are; Gemma's norms are stored as w of 1 + w."""
    small = GEMMA3 | {"vocab_size": 20, "head_dim": 8}
    state = load_decoder(write_model(tmp_path, small)).state_dict()
    file = load_file(tmp_path / "model.safetensors")
    layer, ours = "model.layers.6", "blocks.6"
    fused = torch.cat([file[f"{layer}.self_attn.{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(state[f"{ours}.attention.qkv.weight"], fused)
    pairs = {
        "attention_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffn_norm": "post_feedforward_layernorm",
        "attention.q_norm": "self_attn.q_norm",
    }
    for own, theirs in pairs.items():
        want = file[f"{layer}.{theirs}.weight"] + 1
        np.testing.assert_array_equal(state[f"{ours}.{own}.weight"], want)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtra, match=r"pip install 'foredraft\[export\]'"):
        load_decoder(tmp_path)
