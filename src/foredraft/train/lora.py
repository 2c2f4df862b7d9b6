"""Low-rank adapters (LoRA, arXiv 2106.09685) in a decoder, by the package peft; merged they are plain weights again."""

from __future__ import annotations

from types import ModuleType

import torch

from foredraft.errors import MissingExtra
from foredraft.models.decoder import Decoder

_ADAPTED = ("attention.qkv", "attention.out", "ffn.gate_up", "ffn.down")
"""The matrices of a block. Fused ones get one adapter: q, k and v share its first factor."""


def add_adapters(decoder: Decoder, rank: int, scale: float, seed: int) -> None:
    """Put W + scale·B·A in place of each matrix W of the blocks, B zeros and A random by ``seed``; only A and B are
    trained from then on. MissingExtra without peft."""
    peft = _package()
    config = peft.LoraConfig(r=rank, lora_alpha=scale * rank, target_modules=list(_ADAPTED), lora_dropout=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, decoder)


def merge_adapters(decoder: Decoder) -> None:
    """Add the adapters to the weights and take them out; nothing changes for a decoder without any."""
    for block in decoder.blocks:
        for path in _ADAPTED:
            parent, name = block.get_submodule(path.partition(".")[0]), path.partition(".")[2]
            module = getattr(parent, name)
            if hasattr(module, "get_base_layer"):
                module.merge()
                setattr(parent, name, module.get_base_layer())


def _package() -> ModuleType:
    try:
        import peft
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "low-rank training needs the package peft; install it with: pip install 'foredraft[tune]'"
        ) from error
    package: ModuleType = peft
    return package
