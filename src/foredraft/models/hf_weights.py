"""Weights from the safetensors files of a Hugging Face directory, read a few rows at a time."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from foredraft.errors import MissingExtra
from foredraft.gguf_types import fail, printable
from foredraft.models.config import DecoderConfig
from foredraft.models.hf_config import read_json
from foredraft.models.layout import Style

_NAMES = {
    "embedding": "embed_tokens",
    "norm": "norm",
    "attention_norm": "layers.{}.input_layernorm",
    "q": "layers.{}.self_attn.q_proj",
    "k": "layers.{}.self_attn.k_proj",
    "v": "layers.{}.self_attn.v_proj",
    "q_norm": "layers.{}.self_attn.q_norm",
    "k_norm": "layers.{}.self_attn.k_norm",
    "out": "layers.{}.self_attn.o_proj",
    "ffn_norm": "layers.{}.post_attention_layernorm",
    "gate": "layers.{}.mlp.gate_proj",
    "up": "layers.{}.mlp.up_proj",
    "down": "layers.{}.mlp.down_proj",
}
_GEMMA_NAMES = {
    "post_attention_norm": "layers.{}.post_attention_layernorm",
    "ffn_norm": "layers.{}.pre_feedforward_layernorm",
    "post_ffn_norm": "layers.{}.post_feedforward_layernorm",
}
_PREFIXES = ("model.", "model.language_model.", "language_model.model.")
"""Where the text model may stand: alone, and inside a model of text and pictures (transformers 5 and 4)."""
_OTHER_PARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
_FLOATS = ("F64", "F32", "F16", "BF16")


def hf_style(architecture: str, prefix: str = "model.") -> Style:
    """Names of transformers, the text model's behind ``prefix``; Gemma stores norm weights as w of 1 + w."""
    gemma = architecture.startswith("gemma")
    names = {role: prefix + name for role, name in (_NAMES | (_GEMMA_NAMES if gemma else {})).items()}
    return Style(names | {"head": _head(prefix)}, norm_shift=1.0 if gemma else 0.0)


def _head(prefix: str) -> str:
    return "language_model.lm_head" if prefix == _PREFIXES[2] else "lm_head"


class HfSource:
    """The tensors of all files. Raises ModelFileError if one is missing or damaged."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Any] = {}
        package = _package()
        for path in _weight_files(folder):
            try:
                file = package.safe_open(path, "pt")
                for name in file.keys():  # noqa: SIM118
                    self.shapes[name] = tuple(file.get_slice(name).get_shape())
                    self._files[name] = file
            except FileNotFoundError:
                fail(path, "no such file, though model.safetensors.index.json names it; download it again")
            except (OSError, package.SafetensorError) as error:
                fail(path, f"is no safetensors file ({printable(str(error), 80)}); download it again")

    @property
    def prefix(self) -> str:
        """What stands before the names of the text model."""
        return next((prefix for prefix in _PREFIXES if f"{prefix}embed_tokens.weight" in self.shapes), _PREFIXES[0])

    def unused(self, config: DecoderConfig) -> list[str]:
        """Tensors that may be there without being part of the decoder."""
        return [
            name
            for name in self.shapes
            if name.endswith("rotary_emb.inv_freq")
            or name.startswith(_OTHER_PARTS)
            or (config.tied and name == f"{_head(self.prefix)}.weight")
        ]

    def check(self, name: str) -> None:
        """ModelFileError if the tensor's elements are no plain floats."""
        kind = self._files[name].get_slice(name).get_dtype()
        if kind not in _FLOATS:
            fail(self.path, f"tensor '{printable(name, 80)}' has type {kind}; allowed: {', '.join(_FLOATS)}")

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) in the file's own type."""
        rows = self._files[name].get_slice(name)[start:stop]
        assert isinstance(rows, torch.Tensor)
        return rows


def _package() -> ModuleType:
    try:
        import safetensors
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "weights of a Hugging Face directory are read with the package safetensors; "
            "install it with: pip install 'foredraft[export]'"
        ) from error
    return safetensors


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.exists() or not index.exists():
        if not single.exists():
            fail(folder, "holds no model.safetensors; convert the weights with transformers' save_pretrained")
        return [single]
    mapping = read_json(index).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        fail(index, "has no object weight_map; download it again")
    names = {str(name) for name in mapping.values()}
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            fail(index, f"names the file {printable(repr(name), 80)}; allowed: .safetensors files beside it")
    return [folder / name for name in sorted(names)]
