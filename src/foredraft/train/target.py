"""The target of a training run, as a torch decoder with its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from foredraft.errors import InvalidValue, ModelFileError
from foredraft.export.source import Source, open_source
from foredraft.hf_tokenizer import HfTokenizer
from foredraft.manifest import is_export
from foredraft.models.decoder import Decoder
from foredraft.models.load import load_decoder
from foredraft.tokens import Tokenizer

DTYPES = ("auto", "float32", "bfloat16")


def use_threads(count: int) -> None:
    """Of the whole process; 0: as PyTorch is set."""
    if count:
        torch.set_num_threads(count)


@dataclass(frozen=True)
class Machine:
    """``device`` and ``dtype``: where the target runs, and the type of its weights and of products in training."""

    device: torch.device
    dtype: torch.dtype

    @staticmethod
    def of(device: str = "auto", dtype: str = "auto") -> Machine:
        """``auto``: a CUDA device if there is one; bfloat16 where the processor multiplies it faster than float32."""
        if dtype not in DTYPES:
            raise InvalidValue("dtype", dtype, ", ".join(DTYPES))
        cuda = torch.cuda.is_available()
        known = ["auto", "cpu", *(["cuda"] if cuda else [])]
        if device not in known:
            raise InvalidValue("device", device, f"{', '.join(known)} (on this machine)")
        chosen = torch.device(("cuda" if cuda else "cpu") if device == "auto" else device)
        fast = chosen.type == "cuda" or torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
        half = dtype == "bfloat16" or (dtype == "auto" and fast)
        return Machine(chosen, torch.bfloat16 if half else torch.float32)


@dataclass(frozen=True)
class Target:
    """A model file opened for training."""

    source: Source
    sha256: str
    decoder: Decoder
    tokenizer: Tokenizer

    @property
    def name(self) -> str:
        """The file's name."""
        return self.source.path.name


def check_trainable(path: Path) -> Source:
    """The source behind ``path``; ModelFileError for an export, which torch cannot run."""
    if is_export(path):
        raise ModelFileError(f"{path}: is an export; give the model that it was made from, which torch can read")
    return open_source(path)


def open_target(source: Source, machine: Machine) -> Target:
    """Load it (minutes for a large one)."""
    decoder = load_decoder(source.path, machine.dtype)
    converted = source.tokenizer()
    tokenizer = HfTokenizer(converted.tokenizer, converted.facts)
    return Target(source, source.facts().sha256, decoder.to(machine.device), tokenizer)
