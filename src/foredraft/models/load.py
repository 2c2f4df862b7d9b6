"""Builds a ``Decoder`` from a GGUF file or from a Hugging Face directory (config.json and safetensors).

Memory: one copy of the weights in the wished type, and a few megabytes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from foredraft.modelfile import read_gguf
from foredraft.models.config import DecoderConfig
from foredraft.models.decoder import Decoder
from foredraft.models.gguf_config import ROPE_DIVISORS, gguf_config
from foredraft.models.gguf_weights import GgufSource, gguf_style
from foredraft.models.hf_config import hf_config
from foredraft.models.hf_weights import HfSource, hf_style
from foredraft.models.layout import Layout, TensorSource, check_tensors, layout, read_parameter


def read_config(path: Path) -> DecoderConfig:
    """The decoder's shape, from the header alone. ModelFileError if ``path`` is no model of this family."""
    return hf_config(path) if _is_folder(path) else gguf_config(read_gguf(path))


def load_decoder(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    """The model in ``path`` on the CPU, in evaluation mode, every parameter in ``dtype``.

    ModelFileError: no model of this family, a tensor is missing, unknown or of another shape, or its type of
    quantization is unknown. MissingExtra: the package that reads the format is not installed.
    """
    config, source, plan = _open_folder(path) if _is_folder(path) else _open_gguf(path)
    if dtype != torch.float32:  # as the models were trained: the factor is a number of the weights' own type
        config = replace(config, embed_scale=float(torch.tensor(config.embed_scale, dtype=dtype)))
    with torch.device("meta"):
        decoder = Decoder(config)
    weights = {name: read_parameter(source, parts, dtype) for name, parts in plan.items()}
    if config.tied:
        weights["head.weight"] = weights["embedding.weight"]
    decoder.load_state_dict(weights, assign=True)
    if config.tied:
        decoder.head.weight = decoder.embedding.weight
    decoder.eval()
    return decoder


def _is_folder(path: Path) -> bool:
    return (path / "config.json").exists() or (path.is_dir() and not any(path.glob("*.gguf")))


def _open_gguf(path: Path) -> tuple[DecoderConfig, TensorSource, Layout]:
    header = read_gguf(path)
    config = gguf_config(header)
    source = GgufSource(header)
    plan = layout(config, gguf_style(config.architecture))
    check_tensors(source, plan, [ROPE_DIVISORS] if config.architecture == "llama" else [])
    return config, source, plan


def _open_folder(path: Path) -> tuple[DecoderConfig, TensorSource, Layout]:
    config = hf_config(path)
    source = HfSource(path)
    plan = layout(config, hf_style(config.architecture, source.prefix))
    check_tensors(source, plan, source.unused(config))
    return config, source, plan
