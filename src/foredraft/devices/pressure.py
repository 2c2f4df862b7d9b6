"""Whether this machine is about to run out of memory, asked often and read seldom."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from foredraft.devices.machine import all_memory, free_memory

LEAST = 128 << 20
"""Bytes that must stay free on a small machine."""
_SHARE = 0.02
"""Part of all memory that must stay free on a large one, because its programs take more at once."""
_EVERY = 0.25


class MemoryWatch:
    """Called, it says whether fewer than ``least`` bytes are free; a reading is good for a quarter of a second. False
    where nobody says how much is free."""

    def __init__(
        self,
        least: int | None = None,
        read: Callable[[], int | None] = free_memory,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.least = max(LEAST, int(_SHARE * (all_memory() or 0))) if least is None else least
        self._read, self._clock = read, clock
        self._next, self._short = float("-inf"), False

    def __call__(self) -> bool:
        """True if memory is short."""
        now = self._clock()
        if now >= self._next:
            self._next = now + _EVERY
            free = self._read()
            self._short = free is not None and free < self.least
        return self._short
