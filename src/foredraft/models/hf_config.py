"""The shape of the decoder in a Hugging Face directory, from its config.json, as transformers 4 and 5 write it.

Needs no torch and reads no weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from foredraft.gguf_types import fail, printable
from foredraft.models.config import Activation, DecoderConfig, Rope

MAX_JSON = 64 << 20
_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_MUST_BE_OFF = ("attention_bias", "mlp_bias", "use_bidirectional_attention", "quantization_config")

_SHARED: Mapping[str, object] = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False}
_GEMMA: Mapping[str, object] = {
    **_SHARED,
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA2: Mapping[str, object] = {
    **_GEMMA,
    "sliding_window_pattern": 2,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 8192,
    "vocab_size": 256000,
}
_GEMMA3: Mapping[str, object] = {
    **_GEMMA,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "max_position_embeddings": 131072,
    "vocab_size": 262208,
}
_CLASSES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "LlamaForCausalLM": ("llama", _SHARED),
    "Qwen2ForCausalLM": ("qwen2", _SHARED),
    "Qwen3ForCausalLM": ("qwen3", _SHARED),
    "Gemma2ForCausalLM": ("gemma2", _GEMMA2),
    "Gemma3ForCausalLM": ("gemma3", _GEMMA3),
    "Gemma3ForConditionalGeneration": ("gemma3", _GEMMA3),
}
"""transformers' class -> our architecture and the values of keys that a config.json may leave out."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; every fault is a ModelFileError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON + 1)
    except FileNotFoundError:
        fail(path, "no such file; give a directory as transformers' save_pretrained writes it")
    except OSError as error:
        fail(path, f"cannot be read ({error.strerror})")
    if len(data) > MAX_JSON:
        fail(path, f"has more than {MAX_JSON} bytes; get another copy")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        fail(path, f"is not JSON ({printable(str(error), 80)}); get another copy")
    if not isinstance(value, dict):
        fail(path, "is not a JSON object; get another copy")
    return value


def hf_config(folder: Path) -> DecoderConfig:
    """ModelFileError for another architecture, a kind of rotary scaling that is unknown here, quantized weights."""
    path = folder / "config.json"
    raw = read_json(path)
    classes = raw.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else None
    if not isinstance(name, str) or name not in _CLASSES:
        fail(path, f"architectures is {printable(repr(classes), 60)}; allowed: {', '.join(_CLASSES)}")
    architecture, defaults = _CLASSES[name]
    text = raw.get("text_config") if name == "Gemma3ForConditionalGeneration" else raw
    if not isinstance(text, dict):
        fail(path, "has no object text_config; get another copy")
    return _Settings(path, architecture, {**defaults, **text}).config()


@dataclass(frozen=True)
class _Settings:
    """Typed access to the keys of a config.json."""

    path: Path
    architecture: str
    values: Mapping[str, Any]

    def wrong(self, key: str, allowed: str) -> NoReturn:
        shown = printable(repr(self.values[key]), 60) if key in self.values else "missing"
        fail(self.path, f"{key} is {shown}; allowed: {allowed}")

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; absent or null = ``default``."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
            self.wrong(key, "a positive integer")
        return value

    def number(self, key: str) -> float:
        """A positive number."""
        return self.optional(key) or self.wrong(key, "a positive number")

    def optional(self, key: str) -> float | None:
        """A positive number, or None if absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            self.wrong(key, "a positive number")
        return float(value)

    def config(self) -> DecoderConfig:
        """All of it."""
        for key in _MUST_BE_OFF:
            if self.values.get(key):
                self.wrong(key, "absent, null or false (this engine has no such layers)")
        gemma = self.architecture.startswith("gemma")
        hidden, heads, layers = (
            self.integer(key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")
        )
        head_dim, kv_heads = self.integer("head_dim", hidden // heads), self.integer("num_key_value_heads", heads)
        if head_dim % 2 or heads % kv_heads:
            self.wrong("num_key_value_heads", f"a divisor of {heads} query heads; and head_dim even")
        local = self.local(layers)
        return DecoderConfig(
            architecture=self.architecture,
            vocab_size=self.integer("vocab_size"),
            hidden_size=hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ffn_size=self.integer("intermediate_size"),
            context_length=self.integer("max_position_embeddings", 2048),
            norm_eps=self.number("rms_norm_eps"),
            rope=self.rope(head_dim),
            tied=bool(self.values.get("tie_word_embeddings")),
            query_scale=1 / math.sqrt(self.number("query_pre_attn_scalar") if gemma else head_dim),
            activation=self.activation(),
            qkv_bias=self.architecture == "qwen2",
            qk_norm=self.architecture in ("qwen3", "gemma3"),
            post_norms=gemma,
            embed_scale=math.sqrt(hidden) if gemma else 1.0,
            window=self.integer("sliding_window") if any(local) else None,
            local=local if any(local) else (),
            attention_softcap=self.optional("attn_logit_softcapping"),
            final_softcap=self.optional("final_logit_softcapping"),
        )

    def activation(self) -> Activation:
        """The feed-forward's; Gemma's own key goes before the general one."""
        key = "hidden_activation" if self.values.get("hidden_activation") else "hidden_act"
        name = self.values.get(key)
        if not isinstance(name, str) or name not in _ACTIVATIONS:
            self.wrong(key, ", ".join(_ACTIVATIONS))
        return _ACTIVATIONS[name]

    def local(self, layers: int) -> tuple[bool, ...]:
        """Which layers see a sliding window."""
        kinds = self.values.get("layer_types")
        if kinds is None:
            return tuple(self.local_by_rule(layer) for layer in range(layers))
        if not isinstance(kinds, list) or len(kinds) != layers:
            self.wrong("layer_types", f"a list of {layers} names")
        if any(kind not in ("full_attention", "sliding_attention") for kind in kinds):
            self.wrong("layer_types", "full_attention and sliding_attention")
        return tuple(kind == "sliding_attention" for kind in kinds)

    def local_by_rule(self, layer: int) -> bool:
        """How transformers fills in ``layer_types``."""
        if self.architecture.startswith("gemma"):
            return bool((layer + 1) % self.integer("sliding_window_pattern"))
        windowed = self.architecture.startswith("qwen") and bool(self.values.get("use_sliding_window"))
        return windowed and self.values.get("sliding_window") is not None and layer >= self.integer("max_window_layers")

    def rope(self, head_dim: int) -> Rope:
        """From ``rope_parameters`` (transformers 5), or ``rope_theta``, ``rope_scaling``, ``rope_local_base_freq``."""
        full = self.mapping("rope_parameters") or self.mapping("rope_scaling")
        sliding: Mapping[str, Any] = {}
        if "full_attention" in full:
            sliding = self.inner(full, "sliding_attention")
            full = self.inner(full, "full_attention")
        theta = self.part("rope", full).optional("rope_theta") or self.optional("rope_theta") or 10000.0
        divisors = self.part("rope", full).divisors(theta, head_dim)
        if self.architecture != "gemma3":
            return Rope(theta, divisors)
        local = self.part("rope", sliding)
        if local.divisors(theta, head_dim) is not None:
            self.wrong("rope_parameters", "no scaling for sliding_attention")
        return Rope(theta, divisors, local.optional("rope_theta") or self.number("rope_local_base_freq"))

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An object; absent or null = empty."""
        return self.inner(self.values, key)

    def inner(self, values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = values.get(key)
        if value is not None and not isinstance(value, dict):
            self.wrong(key, "an object")
        return value or {}

    def part(self, key: str, values: Mapping[str, Any]) -> _Settings:
        """Access to an inner object."""
        return _Settings(self.path, self.architecture, values)

    def divisors(self, theta: float, head_dim: int) -> tuple[float, ...] | None:
        """What each rotary frequency is divided by; these are the settings of one kind of layers."""
        kind = self.values.get("rope_type") or self.values.get("type") or "default"
        if self.values.get("partial_rotary_factor") not in (None, 1, 1.0):
            self.wrong("partial_rotary_factor", "1 (the whole head is rotated)")
        if kind == "default":
            return None
        if kind == "linear":
            return (self.number("factor"),) * (head_dim // 2)
        if kind == "llama3":
            return tuple(self.llama3(theta ** (-2 * i / head_dim)) for i in range(head_dim // 2))
        fail(self.path, f"rope type is {printable(repr(kind), 40)}; allowed: default, linear, llama3")

    def llama3(self, frequency: float) -> float:
        """Llama 3.1: long waves are stretched by ``factor``, short ones kept, those between blended linearly."""
        factor, low, high = (self.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
        if high <= low:
            self.wrong("high_freq_factor", f"more than low_freq_factor, {low}")
        turns = self.number("original_max_position_embeddings") * frequency / (2 * math.pi)
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        return 1.0 / (kept + (1.0 - kept) / factor)
