"""The same budget every round."""

from __future__ import annotations

from dataclasses import dataclass

from foredraft.control.base import OFF
from foredraft.errors import InvalidValue
from foredraft.types import Budget, Step

MOST = 256
"""Tokens a round may draft at most."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """``what``, whatever happens."""

    what: Budget = OFF

    def begin(self) -> None:
        """Nothing to forget."""

    def budget(self, length: int) -> Budget:
        """``what``, whatever the length."""
        return self.what

    def observe(self, step: Step) -> None:
        """Nothing to learn."""


def check_draft_size(max_draft: int, tree: int, branches: int = 1) -> None:
    """Raise InvalidValue for a draft length or tree size that is out of range."""
    if not 0 <= max_draft <= MOST:
        raise InvalidValue("max_draft", max_draft, f"0 (off) to {MOST} tokens")
    if not 0 <= tree <= MOST:
        raise InvalidValue("tree", tree, f"0 (chain) to {MOST} nodes")
    if branches < 1:
        raise InvalidValue("branches", branches, "1 (a chain) or more children per node")


def fixed(max_draft: int, tree: int = 0, branches: int = 4) -> Fixed:
    """A chain of ``max_draft`` tokens, or a tree of ``tree`` nodes at most ``max_draft`` deep."""
    check_draft_size(max_draft, tree, branches)
    if max_draft == 0:
        return Fixed(OFF)
    if tree:
        return Fixed(Budget(tree, min(max_draft, tree), branches))
    return Fixed(Budget.chain(max_draft))
