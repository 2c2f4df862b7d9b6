"""The shape of the decoder in a GGUF file, from its checked header. Keys as in the GGUF specification.

Needs no torch and reads no weights but the small table of rotary divisors.
"""

from __future__ import annotations

import math
from typing import NoReturn

import numpy as np

from foredraft.gguf_header import GGUFHeader, TensorInfo
from foredraft.gguf_types import fail, printable
from foredraft.modelfile import ModelShape, model_shape
from foredraft.models.config import ARCHITECTURES, DecoderConfig, Rope

ROPE_DIVISORS = "rope_freqs.weight"
_LOCAL_THETA = 10000.0
_DEFAULT_THETA = 10000.0
_GEMMA2_CAPS = (50.0, 30.0)
_SCALED_BY_WIDTH = {("gemma2", 46), ("gemma3", 62)}
"""The 27B models, known by their number of layers, divide q·k by sqrt(hidden / heads), not by sqrt(head size)."""


def gguf_config(header: GGUFHeader) -> DecoderConfig:
    """ModelFileError for another architecture, an unknown kind of rotary scaling, or a mixture of experts."""
    keys = _Keys(header)
    keys.check_architecture()
    shape = model_shape(header)
    keys.check_plain(shape)
    gemma = shape.architecture.startswith("gemma")
    names = {tensor.name for tensor in header.tensors}
    window, local = keys.windows(shape)
    caps = _GEMMA2_CAPS if shape.architecture == "gemma2" else (0.0, 0.0)
    return DecoderConfig(
        architecture=shape.architecture,
        vocab_size=shape.vocab_size,
        hidden_size=shape.embedding_length,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_size_k,
        ffn_size=shape.feed_forward_length,
        context_length=shape.context_length,
        norm_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        rope=keys.rope(shape),
        tied="output.weight" not in names,
        query_scale=keys.query_scale(shape),
        activation="gelu_tanh" if gemma else "silu",
        qkv_bias="blk.0.attn_q.bias" in names,
        qk_norm=shape.architecture in ("qwen3", "gemma3"),
        post_norms=gemma,
        embed_scale=math.sqrt(shape.embedding_length) if gemma else 1.0,
        window=window,
        local=local,
        attention_softcap=keys.number("attn_logit_softcapping", caps[0]) or None,
        final_softcap=keys.number("final_logit_softcapping", caps[1]) or None,
    )


class _Keys:
    """Typed access to the keys of the architecture."""

    def __init__(self, header: GGUFHeader) -> None:
        self.header = header
        self.architecture = str(header.metadata.get("general.architecture", "none"))

    def wrong(self, key: str, value: object, allowed: str) -> NoReturn:
        shown = printable(str(value), 60)
        fail(self.header.path, f"key {self.architecture}.{key} is {shown}; allowed: {allowed}; use another engine")

    def get(self, key: str) -> object:
        return self.header.metadata.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: float) -> float:
        """A finite number >= 0."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
            return float(value)
        self.wrong(key, value, "a number, 0 or more")

    def positive(self, key: str, default: float = 0.0) -> float:
        value = self.number(key, default)
        return value if value > 0 else self.wrong(key, value or "missing", "a positive number")

    def check_architecture(self) -> None:
        """Refuse what this family does not hold."""
        if self.architecture not in ARCHITECTURES:
            fail(
                self.header.path,
                f"has the architecture '{printable(self.architecture, 40)}'; "
                f"allowed: {', '.join(ARCHITECTURES)}; use another engine",
            )
        if self.number("expert_count", 0):
            self.wrong("expert_count", self.get("expert_count"), "0 (no mixture of experts)")

    def check_plain(self, shape: ModelShape) -> None:
        """Refuse what differs by layer, within a head, or between keys and values."""
        if len(set(shape.kv_heads_by_layer)) > 1:
            self.wrong("attention.head_count_kv", shape.kv_heads_by_layer, "the same number in every layer")
        if shape.head_size_v != shape.head_size_k:
            self.wrong("attention.value_length", shape.head_size_v, f"the keys' {shape.head_size_k}")
        rotated = self.number("rope.dimension_count", shape.head_size_k)
        if rotated != shape.head_size_k or shape.head_size_k % 2:
            self.wrong("rope.dimension_count", int(rotated), f"the size of a head, {shape.head_size_k}, and even")

    def query_scale(self, shape: ModelShape) -> float:
        """What q·k is multiplied with."""
        by_width = (shape.architecture, shape.layers) in _SCALED_BY_WIDTH
        size = shape.embedding_length / shape.heads if by_width else shape.head_size_k
        return self.number("attention.scale", 0.0) or 1 / math.sqrt(size)

    def windows(self, shape: ModelShape) -> tuple[int | None, tuple[bool, ...]]:
        """Size of the sliding window and which layers have one; only Gemma has such layers here."""
        key = "attention.sliding_window_pattern"
        pattern = self.get(key)
        if not self.architecture.startswith("gemma") or not shape.sliding_window:
            return None, ()
        if not isinstance(pattern, np.ndarray):
            self.number(key, 0.0)
        elif len(pattern) != shape.layers:
            self.wrong(key, f"{len(pattern)} values", f"one for each of {shape.layers}")
        local = tuple(window is not None for window in shape.windows)
        return (shape.sliding_window, local) if local else (None, ())

    def rope(self, shape: ModelShape) -> Rope:
        """Rotary base and divisors: a table in the file (Llama 3), or one factor for all (linear scaling)."""
        kind = self.get("rope.scaling.type")
        if kind not in (None, "none", "linear"):
            self.wrong("rope.scaling.type", kind, "none, linear, or a table of divisors (Llama 3)")
        factor = self.number("rope.scaling.factor", self.number("rope.scale_linear", 0.0)) or 1.0
        divisors = self.divisors(shape.head_size_k // 2)
        if kind != "none" and factor != 1.0:
            divisors = tuple(factor * one for one in divisors or (1.0,) * (shape.head_size_k // 2))
        local = self.positive("rope.freq_base_swa", _LOCAL_THETA) if shape.architecture == "gemma3" else None
        return Rope(self.positive("rope.freq_base", _DEFAULT_THETA), divisors, local)

    def divisors(self, size: int) -> tuple[float, ...] | None:
        """The table ``rope_freqs.weight``, which only llama files have."""
        for tensor in self.header.tensors:
            if tensor.name == ROPE_DIVISORS and self.architecture == "llama":
                return self.read_divisors(tensor, size)
        return None

    def read_divisors(self, tensor: TensorInfo, size: int) -> tuple[float, ...]:
        if tensor.type_name != "F32" or tensor.shape != (size,):
            shown = f"{tensor.type_name} and shape {tensor.shape}"
            fail(self.header.path, f"tensor '{ROPE_DIVISORS}' has type {shown}; allowed: F32 and ({size},)")
        try:
            values = np.fromfile(self.header.path, "<f4", size, offset=tensor.offset)
        except OSError as error:
            fail(self.header.path, f"cannot be read ({error.strerror})")
        if len(values) != size or not np.isfinite(values).all() or (values <= 0).any():
            fail(self.header.path, f"tensor '{ROPE_DIVISORS}' holds values that are not positive; get another copy")
        return tuple(float(value) for value in values)
