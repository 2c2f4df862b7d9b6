"""The fixed controller and what it refuses."""

from __future__ import annotations

import pytest

from foredraft.control import OFF, Fixed, fixed
from foredraft.errors import InvalidValue
from foredraft.types import Budget, Seconds, Step

STEP = Step((), 0, 0, 0, 0, 0, Seconds(), "none")


@pytest.mark.parametrize(
    ("arguments", "budget"),
    [
        ((0,), OFF),
        ((0, 16), OFF),
        ((1,), Budget(1, 1, 1)),
        ((8,), Budget(8, 8, 1)),
        ((256,), Budget(256, 256, 1)),
        ((4, 16), Budget(16, 4, 4)),
        ((8, 3), Budget(3, 3, 4)),
        ((4, 16, 2), Budget(16, 4, 2)),
    ],
)
def test_budgets(arguments: tuple[int, ...], budget: Budget) -> None:
    controller = fixed(*arguments)
    assert controller.budget(10) == budget
    controller.observe(STEP)
    assert controller.budget(5000) == budget


def test_off_drafts_nothing() -> None:
    assert (OFF.nodes, OFF.depth) == (0, 0)
    assert Fixed().budget(3) == OFF


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1,), r"max_draft is -1; allowed: 0 \(off\) to 256 tokens"),
        ((257,), r"max_draft is 257; allowed: 0 \(off\) to 256 tokens"),
        ((4, -2), r"tree is -2; allowed: 0 \(chain\) to 256 nodes"),
        ((4, 257), r"tree is 257; allowed: 0 \(chain\) to 256 nodes"),
    ],
)
def test_refusals(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        fixed(*arguments)
