"""Draft heads of tiny models: untrained, but of weights that make every input show."""

from __future__ import annotations

from pathlib import Path

import torch

from foredraft.models.decoder import Decoder
from foredraft.models.head import DraftHead, HeadConfig
from foredraft.models.head_file import HeadTarget, StoredHead, save_head
from foredraft.models.load import load_decoder

IDS = (0, 1, 2, 3, 5, 6, 8, 9, 11, 14, 15, 20)


def taps_of(layers: int) -> tuple[int, ...]:
    """The first, a middle and the last layer, as far as they differ."""
    return tuple(sorted({0, layers // 2, layers - 1}))


def head_of(target: Decoder, seed: int = 0) -> DraftHead:
    """Always the same; it says the tokens ``IDS``."""
    head = DraftHead(HeadConfig.of(target.config, taps_of(target.config.layers), len(IDS)))
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in head.parameters():
            values = torch.randn(weight.shape, generator=random)
            weight.copy_(values / weight.shape[-1] ** 0.5 if weight.dim() > 1 else 1.0 + 0.1 * values)
    return head.requires_grad_(False).eval()  # type: ignore[no-any-return]


def write_head(model: Path, folder: Path, seed: int = 0) -> Path:
    """A head of the model in ``model``, as ``foredraft tune head`` leaves it."""
    stored = StoredHead(head_of(load_decoder(model), seed), IDS, HeadTarget(model.name, "0" * 64), {"test": {}})
    save_head(folder, stored)
    return folder
