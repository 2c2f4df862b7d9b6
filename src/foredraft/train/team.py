"""Processes that train together, started by ``accelerate launch``: each takes every n-th batch, and slopes are
averaged.

Alone is the same thing with one process. The adapter of accelerate.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from foredraft.errors import MissingExtra

T = TypeVar("T")


class Team(Protocol):
    """``rank`` of ``size`` processes; the one of rank 0 measures and writes."""

    rank: int
    size: int

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each slope by its mean over the team."""
        ...

    def told(self, value: T) -> T:
        """What rank 0 says, for all."""
        ...


class Alone:
    """One process. ``device`` None: wherever it likes."""

    rank, size, device = 0, 1, None

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """The slopes are what they are."""

    def told(self, value: T) -> T:
        """What it says itself."""
        return value


class Launched:
    """A process among several, as accelerate has set them up (its environment says where the others are)."""

    def __init__(self) -> None:
        try:
            from accelerate import Accelerator
            from accelerate.utils import broadcast_object_list
        except ImportError:
            raise MissingExtra("several processes need accelerate: pip install 'foredraft[tune]'") from None
        self._accelerator: Any = Accelerator()
        self._broadcast = broadcast_object_list
        self.rank, self.size = self._accelerator.process_index, self._accelerator.num_processes

    @property
    def device(self) -> torch.device:
        """Where this process is to work."""
        device: torch.device = self._accelerator.device
        return device

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """One mean over the team for each parameter."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad = self._accelerator.reduce(parameter.grad, reduction="mean")

    def told(self, value: T) -> T:
        """What rank 0 says; the others wait for it."""
        box = [value]
        self._broadcast(box)
        return box[0]


def joined() -> Alone | Launched:
    """The team that this process was started in."""
    return Launched() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Alone()
