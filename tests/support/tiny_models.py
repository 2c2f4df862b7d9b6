"""Complete random models of a few kilobytes that llama.cpp loads: attention, recurrent, both mixed, an encoder.

Their vocabulary has ``VOCAB`` ids. The weights are large enough that every token of the text shows in the logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.support.gguf_writer import tiny_metadata, write_gguf

VOCAB = 24
CONTEXT = 4096
_EMBED, _INNER, _STATE, _RANK, _CONV, _FEED, _KV = 32, 64, 8, 4, 4, 64, 16

Shapes = dict[str, tuple[int, ...]]
_OUTPUT: Shapes = {"output_norm.weight": (_EMBED,)}


def _metadata(architecture: str, layers: int) -> dict[str, object]:
    """The tokenizer of ``tiny_metadata`` with the keys that all architectures share."""
    plain = tiny_metadata(VOCAB, layers)
    tokenizer = {key: value for key, value in plain.items() if key.startswith("tokenizer.")}
    return {
        "general.architecture": architecture,
        "general.name": f"tiny-{architecture}",
        f"{architecture}.block_count": layers,
        f"{architecture}.context_length": CONTEXT,
        f"{architecture}.embedding_length": _EMBED,
        f"{architecture}.feed_forward_length": _FEED,
        f"{architecture}.vocab_size": VOCAB,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        **tokenizer,
    }


def _state_keys(architecture: str) -> dict[str, object]:
    """Keys of Mamba's state-space layers (arXiv 2312.00752)."""
    return {
        f"{architecture}.ssm.conv_kernel": _CONV,
        f"{architecture}.ssm.inner_size": _INNER,
        f"{architecture}.ssm.state_size": _STATE,
        f"{architecture}.ssm.time_step_rank": _RANK,
    }


def _attention_keys(architecture: str) -> dict[str, object]:
    return {
        f"{architecture}.attention.head_count": 2,
        f"{architecture}.attention.head_count_kv": 1,
        f"{architecture}.rope.dimension_count": 16,
    }


def _state_shapes(block: str) -> Shapes:
    return {
        f"{block}.ssm_in.weight": (2 * _INNER, _EMBED),
        f"{block}.ssm_conv1d.weight": (_INNER, _CONV),
        f"{block}.ssm_conv1d.bias": (_INNER,),
        f"{block}.ssm_x.weight": (_RANK + 2 * _STATE, _INNER),
        f"{block}.ssm_dt.weight": (_INNER, _RANK),
        f"{block}.ssm_dt.bias": (_INNER,),
        f"{block}.ssm_a": (_INNER, _STATE),
        f"{block}.ssm_d": (_INNER,),
        f"{block}.ssm_out.weight": (_EMBED, _INNER),
    }


def _attention_shapes(block: str) -> Shapes:
    return {
        f"{block}.attn_q.weight": (_EMBED, _EMBED),
        f"{block}.attn_k.weight": (_KV, _EMBED),
        f"{block}.attn_v.weight": (_KV, _EMBED),
        f"{block}.attn_output.weight": (_EMBED, _EMBED),
    }


def _feed_forward_shapes(block: str) -> Shapes:
    return {
        f"{block}.ffn_norm.weight": (_EMBED,),
        f"{block}.ffn_gate.weight": (_FEED, _EMBED),
        f"{block}.ffn_up.weight": (_FEED, _EMBED),
        f"{block}.ffn_down.weight": (_EMBED, _FEED),
    }


def _weights(shapes: Shapes) -> dict[str, np.ndarray]:
    """Random, always the same: norms near 1, a state that decays (``ssm_a`` < 0), the rest about 1/sqrt(columns)."""
    random = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    for name, shape in {"token_embd.weight": (VOCAB, _EMBED), **shapes}.items():
        values = random.standard_normal(shape, np.float32)
        if "norm" in name:
            weights[name] = 1 + 0.1 * values
        elif name.endswith("ssm_a"):
            weights[name] = -np.exp(0.5 * values)
        else:
            weights[name] = values * np.float32(1.5 / shape[-1] ** 0.5 if len(shape) > 1 else 0.3)
    return weights


def write_llama(path: Path, layers: int = 2) -> Path:
    """Attention in every layer: can be trimmed, takes trees."""
    shapes: Shapes = dict(_OUTPUT)
    for i in range(layers):
        block = f"blk.{i}"
        shapes |= {f"{block}.attn_norm.weight": (_EMBED,), **_attention_shapes(block), **_feed_forward_shapes(block)}
    return write_gguf(path, _metadata("llama", layers) | _attention_keys("llama"), _weights(shapes))


def write_mamba(path: Path, layers: int = 2) -> Path:
    """A running state in every layer: cannot be trimmed."""
    metadata = _metadata("mamba", layers) | _state_keys("mamba")
    metadata |= {"mamba.attention.head_count": 0, "mamba.feed_forward_length": 0}
    shapes: Shapes = dict(_OUTPUT)
    for i in range(layers):
        shapes |= {f"blk.{i}.attn_norm.weight": (_EMBED,), **_state_shapes(f"blk.{i}")}
    return write_gguf(path, metadata, _weights(shapes))


def write_jamba(path: Path) -> Path:
    """A hybrid (arXiv 2403.19887): a state-space layer, then an attention layer."""
    metadata = _metadata("jamba", 2) | _state_keys("jamba") | _attention_keys("jamba")
    metadata["jamba.attention.head_count_kv"] = [0, 1]
    shapes: Shapes = {**_OUTPUT, **_state_shapes("blk.0"), **_attention_shapes("blk.1")}
    for name, size in (("dt", _RANK), ("b", _STATE), ("c", _STATE)):
        shapes[f"blk.0.ssm_{name}_norm.weight"] = (size,)
    for i in range(2):
        shapes |= {f"blk.{i}.attn_norm.weight": (_EMBED,), **_feed_forward_shapes(f"blk.{i}")}
    return write_gguf(path, metadata, _weights(shapes))


def write_gemma3(path: Path, window: int = 8, keys: Mapping[str, object] | None = None) -> Path:
    """Five layers that see the last ``window`` tokens, then one that sees all."""
    metadata = _metadata("gemma3", 6) | _attention_keys("gemma3") | {"gemma3.attention.sliding_window": window}
    shapes: Shapes = dict(_OUTPUT)
    for i in range(6):
        block = f"blk.{i}"
        shapes |= {**_attention_shapes(block), **_feed_forward_shapes(block)}
        shapes |= {f"{block}.{name}_norm.weight": (_EMBED,) for name in ("attn", "post_attention", "post_ffw")}
        shapes |= {f"{block}.attn_{name}_norm.weight": (16,) for name in "qk"}
    return write_gguf(path, metadata | dict(keys or {}), _weights(shapes))


def _block_shapes(layers: int, norms: tuple[str, ...]) -> Shapes:
    """Blocks of attention and feed-forward, with ``norms`` beside ``ffn_norm``; the output norm."""
    shapes: Shapes = dict(_OUTPUT)
    for i in range(layers):
        shapes |= {**_attention_shapes(f"blk.{i}"), **_feed_forward_shapes(f"blk.{i}")}
        shapes |= {f"blk.{i}.{name}_norm.weight": (_EMBED,) for name in norms}
    return shapes


def llama3_parts() -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Metadata and weights of a llama with a table of rotary divisors (Llama 3) and an output matrix of its own."""
    metadata = _metadata("llama", 2) | _attention_keys("llama") | {"llama.rope.freq_base": 5000.0}
    weights = _weights(_block_shapes(2, ("attn",)) | {"output.weight": (VOCAB, _EMBED)})
    return metadata, weights | {"rope_freqs.weight": np.array([1, 1, 1, 1.5, 3, 6, 8, 8], np.float32)}


def write_llama3(path: Path) -> Path:
    """A llama with rotary divisors, untied."""
    return write_gguf(path, *llama3_parts())


def write_linear(path: Path) -> Path:
    """A llama whose positions are divided by 4."""
    metadata, weights = llama3_parts()
    del weights["rope_freqs.weight"]
    return write_gguf(path, metadata | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, weights)


def write_qwen2(path: Path, more: Mapping[str, np.ndarray] | None = None) -> Path:
    """Biases on q, k and v; another rotary base."""
    metadata = _metadata("qwen2", 2) | _attention_keys("qwen2") | {"qwen2.rope.freq_base": 100000.0}
    shapes = _block_shapes(2, ("attn",))
    for i in range(2):
        shapes |= {f"blk.{i}.attn_{name}.bias": (rows,) for name, rows in (("q", _EMBED), ("k", _KV), ("v", _KV))}
    return write_gguf(path, metadata, _weights(shapes) | dict(more or {}))


def write_qwen3(path: Path, head: int = 24) -> Path:
    """Norms on q and k; four heads, two for keys and values, wider than the model's width divided by their number."""
    metadata = _metadata("qwen3", 2) | _attention_keys("qwen3")
    metadata |= {
        "qwen3.attention.head_count": 4,
        "qwen3.attention.head_count_kv": 2,
        "qwen3.rope.dimension_count": head,
    }
    metadata |= {"qwen3.attention.key_length": head, "qwen3.attention.value_length": head}
    shapes = _block_shapes(2, ("attn",))
    for i in range(2):
        block = f"blk.{i}"
        shapes |= {f"{block}.attn_q.weight": (4 * head, _EMBED), f"{block}.attn_output.weight": (_EMBED, 4 * head)}
        shapes |= {f"{block}.attn_{name}.weight": (2 * head, _EMBED) for name in "kv"}
        shapes |= {f"{block}.attn_{name}_norm.weight": (head,) for name in "qk"}
    return write_gguf(path, metadata, _weights(shapes))


def write_gemma2(path: Path, window: int = 8) -> Path:
    """Every other layer sees the last ``window`` tokens; caps low enough to bend the logits of so small a model."""
    metadata = _metadata("gemma2", 4) | _attention_keys("gemma2") | {"gemma2.attention.sliding_window": window}
    metadata |= {"gemma2.attn_logit_softcapping": 2.0, "gemma2.final_logit_softcapping": 5.0}
    return write_gguf(path, metadata, _weights(_block_shapes(4, ("attn", "post_attention", "post_ffw"))))


def write_t5_encoder(path: Path) -> Path:
    """An encoder by name: it has no next token."""
    metadata = _metadata("t5encoder", 1) | _attention_keys("t5encoder")
    metadata |= {"t5encoder.attention.head_count_kv": 2, "t5encoder.attention.relative_buckets_count": 8}
    shapes: Shapes = {"enc.output_norm.weight": (_EMBED,), "enc.blk.0.attn_rel_b.weight": (8, 2)}
    shapes |= {"enc.blk.0.attn_norm.weight": (_EMBED,), **_feed_forward_shapes("enc.blk.0")}
    shapes |= {f"enc.blk.0.attn_{name}.weight": (_EMBED, _EMBED) for name in ("q", "k", "v", "o")}
    return write_gguf(path, metadata, _weights(shapes))


def write_bert(path: Path) -> Path:
    """An encoder that llama.cpp treats like a decoder without a cache: only its causal key tells."""
    metadata = _metadata("bert", 1) | _attention_keys("bert")
    metadata |= {"bert.attention.head_count_kv": 2, "bert.context_length": 64, "bert.attention.causal": False}
    metadata |= {"bert.attention.layer_norm_epsilon": 1e-5, "tokenizer.ggml.token_type_count": 2}
    shapes: Shapes = {"position_embd.weight": (64, _EMBED), "token_types.weight": (2, _EMBED)}
    square, column = (_EMBED, _EMBED), (_EMBED,)
    linear: Shapes = {"attn_q": square, "attn_k": square, "attn_v": square, "attn_output": square}
    linear |= {"ffn_up": (_FEED, _EMBED), "ffn_down": (_EMBED, _FEED), "attn_output_norm": column}
    linear |= {"layer_output_norm": column}
    for name, shape in linear.items():
        shapes |= {f"blk.0.{name}.weight": shape, f"blk.0.{name}.bias": shape[:1]}
    shapes |= {"token_embd_norm.weight": column, "token_embd_norm.bias": column}
    return write_gguf(path, metadata, _weights(shapes))


def write_gpt2(path: Path, context: int = 300) -> Path:
    """Learned positions: llama.cpp ends the process for a position beyond ``context``."""
    metadata = _metadata("gpt2", 1) | {"gpt2.attention.head_count": 2, "gpt2.context_length": context}
    metadata |= {"gpt2.attention.layer_norm_epsilon": 1e-5}
    linear: Shapes = {"attn_qkv": (3 * _EMBED, _EMBED), "attn_output": (_EMBED, _EMBED), "attn_norm": (_EMBED,)}
    linear |= {"ffn_up": (_FEED, _EMBED), "ffn_down": (_EMBED, _FEED), "ffn_norm": (_EMBED,)}
    shapes: Shapes = {**_OUTPUT, "output_norm.bias": (_EMBED,), "position_embd.weight": (context, _EMBED)}
    for name, shape in linear.items():
        shapes |= {f"blk.0.{name}.weight": shape, f"blk.0.{name}.bias": shape[:1]}
    return write_gguf(path, metadata, _weights(shapes))
