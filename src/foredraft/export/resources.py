"""How much memory and disk an export takes, estimated before it starts, and whether this machine has them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from foredraft.devices.machine import free_memory
from foredraft.errors import ForedraftError
from foredraft.models.config import DecoderConfig

_BYTES = {"int4": 4.5 / 8, "int8": 1.0, "float32": 4.0}
"""Bytes a weight takes in the program; int4 with a bfloat16 scale for 32 of them."""
_BASE = 1.0e9
"""torch, the exporter and their libraries, measured."""


class ShortOfResourcesError(ForedraftError):
    """Memory or disk are too small for an export."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Estimates in bytes: peak ``memory`` of the process, ``disk`` for the finished export, ``parameters`` counted."""

    parameters: int
    memory: int
    disk: int


def needs(config: DecoderConfig, weights: str, head: str) -> Needs:
    """From the shape alone. Peak memory was measured: the float32 weights, the same again in int8 while they are
    quantized, and copies of the packed program while it is lowered and written."""
    attention = (2 * config.heads + 2 * config.kv_heads) * config.head_dim * config.hidden_size
    inner = config.layers * (attention + 3 * config.ffn_size * config.hidden_size)
    table = config.vocab_size * config.hidden_size
    disk = inner * _BYTES[weights] + table * (_BYTES[head] + 5 / 8)
    memory = _BASE + 4.0 * (inner + 2 * table) + 1.0 * inner + 2 * disk
    return Needs(inner + table * (1 if config.tied else 2), int(memory), int(disk))


def check_resources(wanted: Needs, target: Path) -> None:
    """Raise ShortOfResourcesError, one line, if memory or disk will not do."""
    memory = free_memory()
    if memory is not None and memory < wanted.memory:
        raise ShortOfResourcesError(
            f"this export needs about {gigabytes(wanted.memory)} of memory, {gigabytes(memory)} are available; "
            "close other programs, or export on a larger machine"
        )
    parent = next(folder for folder in target.absolute().parents if folder.exists())
    disk = shutil.disk_usage(parent).free
    if disk < 1.1 * wanted.disk:
        raise ShortOfResourcesError(
            f"this export needs about {gigabytes(int(1.1 * wanted.disk))} of disk, {parent} has {gigabytes(disk)}; "
            "free some, or choose another --output"
        )


def gigabytes(size: int) -> str:
    """1.5e9 -> "1.5 GB"."""
    return f"{size / 1e9:.1f} GB"
