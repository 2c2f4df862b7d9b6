"""The protocol every controller implements."""

from __future__ import annotations

from typing import Protocol

from foredraft.types import Budget, Step

OFF = Budget(0, 0, 0)
"""Plain decoding: the same loop with nothing drafted."""


class Controller(Protocol):
    """Chooses the budget of every round."""

    def begin(self) -> None:
        """A new request: forget what was learned from the last one's text."""
        ...

    def budget(self, length: int) -> Budget:
        """What the next round may draft; ``length`` is the number of committed tokens."""
        ...

    def observe(self, step: Step) -> None:
        """A round is finished."""
        ...
