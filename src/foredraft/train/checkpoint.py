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
        data["best"] = Measured(**data["best"]) if data["best"] is not None else None
        found = Checkpoint(**data)
        _check(found)
    except (OSError, RuntimeError, EOFError, TypeError, LookupError, ValueError, UnpicklingError) as error:
        raise damaged(directory, error) from None
    names = [name for name in settings if found.settings.get(name) != settings[name]]
    if names:
        listed = ", ".join(name.replace("_", " ") for name in names)
        raise TrainingDataError(f"{path}: is of a run with other settings ({listed}); give another -o, or --restart")
    return found


def damaged(directory: Path, error: Exception) -> TrainingDataError:
    """What to say of a checkpoint that cannot be gone on with."""
    why = " ".join(str(error).split())[:80]
    return TrainingDataError(f"{directory / CHECKPOINT}: is damaged ({why}); remove it to begin again")


def _check(found: Checkpoint) -> None:
    """ValueError for values that no run leaves; weights and moments are checked by who takes them."""
    numbers = (found.step, found.tokens, found.waited)
    if not all(type(number) is int and number >= 0 for number in numbers) or not isinstance(found.seconds, float | int):
        raise ValueError("a count is no whole number from 0 on")
    for name in ("settings", "weights", "optimizer"):
        if not isinstance(getattr(found, name), dict):
            raise ValueError(f"{name} is no mapping")
    losses: Any = found.losses
    if not isinstance(losses, list | tuple) or not all(isinstance(loss, float) for loss in losses):
        raise ValueError("losses are no numbers")
