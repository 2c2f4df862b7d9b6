"""Writes a ``Decoder`` as a Hugging Face directory: the inverse of ``hf_config`` and ``hf_weights``.

One safetensors file, config.json in words that transformers 4 and 5 and llama.cpp's converter know, and the tokenizer
of the model that the decoder comes from. Nothing is left under the final name unless everything was written.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from foredraft.errors import InvalidValue, MissingExtra
from foredraft.models.config import DecoderConfig
from foredraft.models.decoder import Decoder
from foredraft.models.hf_config import hf_config
from foredraft.models.hf_tokenizer_files import write_tokenizer
from foredraft.models.hf_weights import hf_style
from foredraft.models.layout import layout

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}
_CLASSES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
}
"""Our architecture -> transformers' class and ``model_type``."""
_LOW, _HIGH = 1.0, 4.0
"""Llama 3's low_freq_factor and high_freq_factor; no released model has others."""


def write_hugging_face(decoder: Decoder, source: Path, target: Path, dtype: str = "bfloat16") -> None:
    """Write the directory ``target``; ``source``: GGUF file or Hugging Face directory that the tokenizer is taken from.

    ``dtype``: float32, bfloat16 or float16, of all weights. Memory: one more copy of the weights in that type.
    InvalidValue: ``target`` exists, an unknown type, weights that are too large for float16, or a decoder of a shape
    that transformers' class of its architecture does not have. ModelFileError: see ``write_tokenizer``.
    """
    with _new_folder(target) as folder:
        _write_settings(decoder.config, source, folder, _checked(dtype))
        tensors = dict(_tensors(decoder, dtype))
        _package().save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def check_writable(config: DecoderConfig, source: Path, target: Path) -> None:
    """Raise what ``write_hugging_face`` would, without weights: before hours of training rather than after them."""
    _check_free(target)
    _package()
    with tempfile.TemporaryDirectory(prefix="foredraft-") as folder:
        _write_settings(config, source, Path(folder), "bfloat16")


def _write_settings(config: DecoderConfig, source: Path, folder: Path, dtype: str) -> None:
    """The tokenizer, and config.json; that one is read back, and everything it could not say is refused."""
    special = write_tokenizer(source, folder, config.vocab_size)
    values = {**_settings(config), **special, "torch_dtype": dtype}
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", "utf-8")
    found = hf_config(folder)
    wanted = config if any(config.local) else replace(config, window=None, local=())
    for field in fields(DecoderConfig):
        value, read = getattr(wanted, field.name), getattr(found, field.name)
        if not _same(value, read, 1e-2 if field.name == "embed_scale" else 1e-6):
            name = field.name.replace("_", " ")
            allowed = (
                f"{_shown(getattr(found, field.name))}: a config.json of this architecture cannot say anything else"
            )
            raise InvalidValue(f"{name} of the {config.architecture} decoder", _shown(value), allowed)


def _same(one: object, other: object, tolerance: float) -> bool:
    """Equal, numbers to within ``tolerance``: tables of a GGUF are float32, a factor of embeddings may be bfloat16."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=tolerance)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(_same(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if hasattr(one, "__dataclass_fields__") and type(one) is type(other):
        return all(_same(getattr(one, name), getattr(other, name), tolerance) for name in one.__dataclass_fields__)
    return one == other


def _shown(value: object) -> object:
    text = repr(value)
    return value if len(text) <= 60 else f"{text[:59]}…"


# --- config.json ------------------------------------------------------------------------------------------------------


def _settings(config: DecoderConfig) -> dict[str, Any]:
    """The keys that ``hf_config`` reads, but for those of the rotary positions in the words of transformers 4, which
    version 5 reads too."""
    name, kind = _CLASSES[config.architecture]
    gemma = config.architecture.startswith("gemma")
    activation = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}[config.activation]
    return {
        "architectures": [name],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "hidden_activation" if gemma else "hidden_act": activation,
        "rope_theta": config.rope.theta,
        "rope_scaling": _scaling(config),
        **(_gemma(config) if gemma else {}),
        **(_windows(config) if config.architecture != "llama" else {}),
    }


def _gemma(config: DecoderConfig) -> dict[str, Any]:
    """Keys that only Gemma has."""
    size = config.query_scale**-2
    keys = {
        "query_pre_attn_scalar": round(size) if math.isclose(size, round(size), rel_tol=1e-9) else size,
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.final_softcap,
    }
    return keys | ({"rope_local_base_freq": config.rope.local_theta} if config.architecture == "gemma3" else {})


def _windows(config: DecoderConfig) -> dict[str, Any]:
    """Which layers see a sliding window, one by one: after layers were taken out no rule says it."""
    local = [config.is_local(layer) for layer in range(config.layers)]
    kinds = {"layer_types": ["sliding_attention" if one else "full_attention" for one in local]}
    if config.architecture.startswith("gemma"):
        return kinds | ({"sliding_window": config.window} if config.window else {})
    if not any(local):
        return {"use_sliding_window": False}
    return kinds | {
        "use_sliding_window": True,
        "sliding_window": config.window,
        "max_window_layers": local.index(True),
    }


def _scaling(config: DecoderConfig) -> dict[str, Any] | None:
    """``rope_scaling``: one factor for all frequencies, or Llama 3's four numbers."""
    divisors = config.rope.divisors
    if divisors is None:
        return None
    if len(set(divisors)) == 1:
        return {"rope_type": "linear", "factor": divisors[0]}
    return {
        "rope_type": "llama3",
        "factor": max(divisors),
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _original_context(divisors, config.rope.theta, config.head_dim),
    }


def _original_context(divisors: tuple[float, ...], theta: float, head_dim: int) -> int:
    """The context L that Llama 3's divisors were made for.

    A frequency that takes w tokens for a turn has 1/divisor = s + (1 - s)/factor with s = (L/w - low)/(high - low),
    cut to [0, 1] (transformers' ``_compute_llama3_parameters``). One with 0 < s < 1 says what L is, the others between
    which numbers it lies.
    """
    factor, least, most = max(divisors), 1.0, float(1 << 30)
    exact: list[float] = []
    for index, divisor in enumerate(divisors):
        wave = 2 * math.pi * theta ** (2 * index / head_dim)
        share = (1 / divisor - 1 / factor) / (1 - 1 / factor)
        if 1e-5 < share < 1 - 1e-5:
            exact.append(wave * (_LOW + share * (_HIGH - _LOW)))
        elif share >= 0.5:
            least = max(least, wave * _HIGH)
        else:
            most = min(most, wave * _LOW)
    if exact:
        return round(sum(exact) / len(exact))
    power = 1 << math.ceil(math.log2(least))
    return power if power <= most else math.ceil(least)


# --- weights and files ------------------------------------------------------------------------------------------------


def _tensors(decoder: Decoder, dtype: str) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of the file by its name, on the CPU, with memory of its own."""
    state = decoder.state_dict()
    for name, parts in layout(decoder.config, hf_style(decoder.config.architecture)).items():
        base = 0
        for part in parts:
            rows = state[name].detach()[base : base + part.shape[0]]
            base += part.shape[0]
            exact = rows.float() - part.shift if part.shift else rows
            tensor = exact.to("cpu", DTYPES[dtype], copy=True).contiguous()
            if dtype == "float16" and not bool(tensor.isfinite().all()):
                raise InvalidValue("type", dtype, f"bfloat16 or float32: {part.name} has larger values")
            yield part.name, tensor


def _checked(dtype: str) -> str:
    if dtype not in DTYPES:
        raise InvalidValue("type", dtype, ", ".join(DTYPES))
    return dtype


def _package() -> ModuleType:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "a Hugging Face directory is written with the package safetensors; "
            "install it with: pip install 'foredraft[export]'"
        ) from error
    package: ModuleType = safetensors.torch
    return package


def _check_free(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise InvalidValue("output directory", str(target), "a new name; remove it or choose another")


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A directory to write into, which gets its name when the block ends and is removed if it fails."""
    _check_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{target.name[:100]}.", dir=target.parent, ignore_cleanup_errors=True
    ) as folder:
        inner = Path(folder) / target.name
        inner.mkdir()
        yield inner
        inner.rename(target)
