"""How sure the copying drafter is of its tokens, and where a controller's gate cuts a copy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.ngram import NgramConfig, NgramDrafter
from foredraft.trees import path_to
from foredraft.types import Budget
from tests.support.gates import Believing, Counting
from tests.unit.test_ngram import TEXTS, bold, fresh, propose, suffix_match


def expected(matched: int, depth: int) -> float:
    return matched / (matched + 2.3) if depth == 1 else (matched + depth - 1) / (matched + depth + 0.2)


@pytest.mark.parametrize(("matched", "drafted"), [(2, 1), (3, 2), (5, 4)])
def test_confidence_grows_with_the_match(matched: int, drafted: int) -> None:
    """n / (n + 2.3) for the first token behind a match of n; once that is right, the text is being repeated."""
    text = [*range(20), 99, *range(10 - matched, 10)]
    draft = propose(NgramDrafter(NgramConfig()), text, Budget.chain(6))
    assert draft.confidence == pytest.approx([expected(matched, depth) for depth in range(1, drafted + 1)])


@given(TEXTS, st.integers(1, 12), st.integers(1, 4))
def test_a_tree_has_a_confidence_for_every_node(text: list[int], depth: int, branches: int) -> None:
    """That of the match it was copied from."""
    drafter = NgramDrafter(bold())
    draft = propose(drafter, text, Budget(12, depth, branches))
    assert len(draft.confidence or ()) == len(draft)
    for node, sure in enumerate(draft.confidence or ()):
        above = len(path_to(draft.parents, node)) - 1
        matched = suffix_match(text, drafter._origins[node] - above, 16)
        assert sure == pytest.approx(expected(matched, above + 1))


@given(TEXTS, st.integers(1, 12), st.integers(0, 12), st.booleans())
def test_a_gate_decides_instead_of_caution(text: list[int], depth: int, keeps: int, cautious: bool) -> None:
    """The chain is that of a bold drafter, cut where the gate says."""
    whole = fresh(text, Budget.chain(depth))
    gate = Counting(99, keeps)
    draft = propose(NgramDrafter(NgramConfig(cautious=cautious)), text, Budget(depth, depth, 1, gate=gate))
    assert draft.tokens.tolist() == whole[:keeps]
    assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    if not len(draft):
        short = "ngram: the match is too short to be worth it"
        assert draft.reason == (short if whole else "ngram: no earlier occurrence")


def test_a_gate_is_told_depth_and_confidence() -> None:
    gate = Believing()
    draft = propose(NgramDrafter(), [1, 2, 3, 4, 5, 1, 2], Budget(3, 3, 1, gate=gate))
    assert draft.confidence == pytest.approx((expected(2, 1), expected(2, 2), expected(2, 3)))
    assert gate.asked == [(depth, 0, sure) for depth, sure in enumerate(draft.confidence or (), 1)]
    kept = propose(NgramDrafter(), [1, 2, 3, 4, 5, 1, 2], Budget(3, 3, 1, gate=Believing(keeps=0.3)))
    assert kept.tokens.tolist() == [3, 4], ".47 · .71 = .33, times .77 is .26"


def test_a_tree_has_no_gate() -> None:
    text = [7, 8, 1, 3, 7, 8, 1, 4, 7, 8]
    gated = propose(NgramDrafter(bold()), text, Budget(8, 2, 2, gate=Counting(0, 0)))
    assert gated.tokens.tolist() == propose(NgramDrafter(bold()), text, Budget(8, 2, 2)).tokens.tolist()


def test_the_copy_point_after_a_gated_draft() -> None:
    """What the gate dropped was not rejected; the accepted tokens move the copy point as ever."""
    drafter = NgramDrafter()
    text = [*range(20, 30), 1, 20, 21]
    drafter.begin(text)
    gated = Budget(8, 8, 1, gate=Counting(9, 2))
    assert propose(drafter, text, gated).tokens.tolist() == [22, 23]
    drafter.observe([0, 1])
    assert (drafter._copy_point, drafter._copied) == (4, 2)
    silent = Budget(8, 8, 1, gate=Counting(9, 0))
    assert len(propose(drafter, [*text, 22, 23, 24], silent)) == 0
    assert (drafter._copy_point, drafter._copied) == (4, 2), "nothing was proposed, so nothing was rejected"
    assert propose(drafter, [*text, 22, 23, 24], gated).tokens.tolist() == [25, 26]


def test_its_own_part_of_a_budget() -> None:
    text = [1, 2, 3, 4, 5, 1, 2]
    joint = Budget(4, 4, 1, sources={"model": Budget.chain(4), "ngram": Budget.chain(2)})
    assert fresh(text, joint) == [3, 4]
    assert fresh(text, Budget(4, 4, 1, sources={"model": Budget.chain(4)})) == []
