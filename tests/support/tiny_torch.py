"""Tiny random models as Hugging Face directories, and the plain forward pass of a ``Decoder`` without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foredraft.models.decoder import Angles, Decoder, angle_tables
from foredraft.types import Logits

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
GEMMA = {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3, "num_key_value_heads": 4}),
    "linear": ("Llama", {"rope_parameters": LINEAR, "head_dim": 12}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3", GEMMA),
    "gemma3-linear": (
        "Gemma3",
        GEMMA | {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default"}}},
    ),
}
"""Name -> family of transformers, settings that differ from ``SIZES``."""


def reference(name: str, layers: int = 7) -> Any:
    """The model of transformers, random but always the same, large enough weights that every token shows."""
    import transformers

    family, changes = VARIANTS[name]
    text = "Text" if family == "Gemma3" else ""
    config = getattr(transformers, f"{family}{text}Config")(**{**SIZES, "num_hidden_layers": layers, **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 0.1)
            if parameter.dim() == 1 and family[:5] != "Gemma":
                parameter.add_(1.0)
    return model


def save(name: str, folder: Path, **options: Any) -> Any:
    """``reference``, written into ``folder`` as transformers does it."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = reference(name)
    model.save_pretrained(folder, **options)
    return model


def forward(decoder: Decoder, tokens: Sequence[int], rows: int | None = None) -> Logits:
    """The last ``rows`` rows of logits (None = all), float32[R, V], by attention over the whole text written out."""
    config, count = decoder.config, len(tokens)
    full, local = angle_tables(config, count)
    angles = Angles((full[0][:, None], full[1][:, None]), (local[0][:, None], local[1][:, None]))
    distance = torch.arange(count)[:, None] - torch.arange(count)[None]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = config.heads // config.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q.float(), k.float())
        if config.attention_softcap is not None:
            scores = config.attention_softcap * torch.tanh(scores / config.attention_softcap)
        seen = distance >= 0
        if config.is_local(layer):
            seen = seen & (distance < (config.window or 0))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v.float()).to(v.dtype)

    with torch.inference_mode():
        hidden = decoder.hidden(torch.tensor(list(tokens)), angles, attend)[-1]
        logits: Logits = decoder.logits(hidden[-(rows or count) :]).float().numpy()
    return np.asarray(logits, np.float32)
