"""How much to draft next. Knows nothing about engines, tokens or text; sees only finished steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from foredraft.errors import InvalidValue
from foredraft.types import Budget, Step

OFF = Budget(0, 0, 0)
"""Plain decoding: the same loop with nothing drafted."""


class Controller(Protocol):
    """Chooses the budget of every round."""

    def budget(self, length: int) -> Budget:
        """What the next round may draft; ``length`` is the number of committed tokens."""
        ...

    def observe(self, step: Step) -> None:
        """A round is finished."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same budget every round."""

    what: Budget = OFF

    def budget(self, length: int) -> Budget:
        """``what``, whatever the length."""
        return self.what

    def observe(self, step: Step) -> None:
        """Nothing to learn."""


def fixed(max_draft: int, tree: int = 0, branches: int = 4) -> Fixed:
    """A chain of ``max_draft`` tokens, or a tree of ``tree`` nodes at most ``max_draft`` deep."""
    if not 0 <= max_draft <= 256:
        raise InvalidValue("max_draft", max_draft, "0 (off) to 256 tokens")
    if not 0 <= tree <= 256:
        raise InvalidValue("tree", tree, "0 (chain) to 256 nodes")
    if branches < 1:
        raise InvalidValue("branches", branches, "1 (a chain) or more children per node")
    if max_draft == 0:
        return Fixed(OFF)
    if tree:
        return Fixed(Budget(tree, min(max_draft, tree), branches))
    return Fixed(Budget.chain(max_draft))
