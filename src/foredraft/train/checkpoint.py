"""A training run on disk, to be gone on with: weights, the optimizer's moments, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from foredraft.errors import TrainingDataError
from foredraft.train.measures import Measured
from foredraft.whole_files import replacing

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Checkpoint:
    """After ``step`` whole steps. ``settings``: a run with others does not go on from here; ``losses``: of the steps
    that were not reported yet."""

    settings: Mapping[str, Any]
    weights: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    step: int
    seconds: float
    tokens: int
    waited: int
    best: Measured | None
    losses: tuple[float, ...]


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Written whole, or the one before stays."""
    data = {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}
    data |= {"settings": dict(checkpoint.settings), "best": asdict(checkpoint.best) if checkpoint.best else None}
    with replacing(directory / CHECKPOINT) as temporary:
        torch.save(data, temporary)


def load_checkpoint(directory: Path, settings: Mapping[str, Any]) -> Checkpoint | None:
    """The checkpoint of a run with these ``settings``; None if there is none. TrainingDataError if it is another
    run's, or damaged."""
    path = directory / CHECKPOINT
    if not path.exists():
        return None
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
        data["best"] = Measured(**data["best"]) if data["best"] else None
        found = Checkpoint(**data)
    except (OSError, RuntimeError, EOFError, TypeError, KeyError, ValueError, UnpicklingError) as error:
        raise TrainingDataError(f"{path}: is damaged ({str(error)[:80]}); remove it to begin again") from None
    names = [name for name in settings if found.settings.get(name) != settings[name]]
    if names:
        listed = ", ".join(name.replace("_", " ") for name in names)
        raise TrainingDataError(f"{path}: is of a run with other settings ({listed}); give another -o, or --restart")
    return found
