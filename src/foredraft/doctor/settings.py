"""How long to measure, behind which text, and where times come from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from foredraft.devices.machine import free_memory
from foredraft.engines.base import Engine
from foredraft.errors import InvalidValue

SAMPLE = (
    "The lighthouse keeper wrote in a plain notebook. Every evening at six she noted the wind, the height of the "
    "waves and the ships that passed: 'Wind from the west, force 4. Two freighters, one sailing boat. The lamp was "
    "lit at 18:42.' In winter there was little else to do. She repaired the shutters, counted the tins in the pantry "
    "and read the same four books again. When the supply boat came, on the first Tuesday of the month, she asked the "
    "crew for news and for three things: flour, lamp oil and pencils. They always brought the flour and the oil. "
)
"""English to be read by the models while they are timed; repeated until it is long enough."""
Progress = Callable[[str, float], None]
"""What is being done, and the share of the time budget that is spent, 0 to 1."""


def silent(doing: str, share: float) -> None:
    """No progress."""


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """``seconds``: time budget without loading; ``context``: tokens in the cache. ``quick``: few widths, three runs, no
    numeric noise. ``notes`` go into the profile. The rest is where times, dates and free memory come from."""

    seconds: float = 20.0
    context: int = 256
    quick: bool = False
    notes: tuple[str, ...] = ()
    clock: Callable[[], float] = time.perf_counter
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))
    free_memory: Callable[[], int | None] = free_memory

    def __post_init__(self) -> None:
        if not 0.1 <= self.seconds <= 3600:
            raise InvalidValue("seconds", self.seconds, "0.1 to 3600")
        if not 1 <= self.context <= 1 << 20:
            raise InvalidValue("context", self.context, "a positive number of tokens")


QUICK = DoctorSettings(seconds=1.5, context=32, quick=True)


@dataclass(frozen=True)
class Loaded:
    """Loaded models, and ids of a text that they can read (pseudo-random ones if it is empty)."""

    target: Engine
    drafts: tuple[Engine, ...] = ()
    text: tuple[int, ...] = ()
