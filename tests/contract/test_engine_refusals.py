"""What every engine refuses: one clear error, and the session goes on as if nothing had been asked."""

from __future__ import annotations

import pytest

from foredraft.engines.base import Session
from foredraft.errors import ContextFull, EngineFailure, InvalidValue
from foredraft.trees import path_to
from tests.support.engine_cases import CHAINS, NONES, QUICK, TREES, Case, chain, grow, node_text, read

QUICK_TREES = [name for name in TREES if name in QUICK]
over_quick = pytest.mark.parametrize("case", QUICK, indirect=True)


@over_quick
def test_a_full_context(case: Case, session: Session) -> None:
    full = case.engine.info.max_context
    read(session, case.text, 0)
    room = full - len(case.text)
    more = case.text[:room]
    with pytest.raises(ContextFull, match=str(full)):
        chain(session, [*more, 1], 1)
    row = chain(session, more[:20], 1)[0]
    case.check(row, case.text + more[:20])
    with pytest.raises(ContextFull, match=str(full)):
        grow(session, [1] * (room - 19), [19, *range(20, room)], 1)
    row = grow(session, more[20:], range(19, room - 1), 1)[0]
    case.check(row, case.text + more)
    session.keep(range(room))
    assert session.length == full
    with pytest.raises(ContextFull, match=str(full)):
        chain(session, [1], 1)
    reached = session.rewind(5)
    case.check(read(session, case.text[reached:7])[0], case.text[:7])


@pytest.mark.parametrize("case", QUICK_TREES, indirect=True)
def test_a_tree_fills_the_context(case: Case, session: Session) -> None:
    """Every node takes a place, whatever its depth."""
    read(session, case.text, 0)
    room = case.engine.info.max_context - len(case.text)
    with pytest.raises(ContextFull):
        grow(session, [1] * (room + 1), [-1] * 8 + [0] * (room - 7), 1)
    parents = [-1] * 8 + list(range(room - 8))
    tokens = case.text[100 : 100 + room]
    case.check(grow(session, tokens, parents, 1)[0], node_text(case.text, tokens, parents, room - 1))
    session.keep(path_to(parents, room - 1))
    left = case.engine.info.max_context - session.length
    read(session, [3] * left, 0)
    assert session.length == case.engine.info.max_context


V = 10**9  # stands for the size of the vocabulary
BAD_EXTENDS: dict[str, tuple[list[int], list[int], int]] = {
    "no tokens": ([], [], 0),
    "fewer parents": ([1, 2], [1], 1),
    "more parents": ([1], [1, 2], 1),
    "negative id": ([1, -1], [1, 2], 1),
    "id V": ([1, V], [1, 2], 1),
    "itself": ([1], [2], 1),
    "a later one": ([1, 2], [3, 1], 1),
    "below -1": ([1], [-2], 1),
    "negative rows": ([1], [1], -1),
    "too many rows": ([1], [1], 2),
}
BAD_PATHS = [[1], [0, 0], [2], [-1], [1, 0], [0, 2], [0, 1, 2]]


@over_quick
@pytest.mark.parametrize("what", BAD_EXTENDS)
def test_a_bad_extend_changes_nothing(case: Case, session: Session, what: str) -> None:
    tokens, parents, rows = BAD_EXTENDS[what]
    text = case.text[:6]
    read(session, text[:3])
    chain(session, text[3:5], 1)
    with pytest.raises(InvalidValue, match="allowed"):
        grow(session, [case.engine.info.vocab_size if t == V else t for t in tokens], parents, rows)
    case.check(grow(session, text[5:], [1], 1)[0], text)
    session.keep([0, 1, 2])
    assert session.length == 6
    case.check(read(session, [4])[0], [*text, 4])


@over_quick
@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_bad_path_changes_nothing(case: Case, session: Session, path: list[int]) -> None:
    text = case.text[:5]
    read(session, text[:3])
    chain(session, text[3:], 1)
    with pytest.raises(InvalidValue, match="root-first path"):
        session.keep(path)
    assert session.length == 3
    session.keep([0, 1])
    case.check(read(session, [4])[0], [*text, 4])


@over_quick
@pytest.mark.parametrize("length", [-1, 4])
def test_a_bad_rewind_changes_nothing(case: Case, session: Session, length: int) -> None:
    text = case.text[:5]
    read(session, text[:3])
    chain(session, text[3:], 1)
    with pytest.raises(InvalidValue, match="0 to 3"):
        session.rewind(length)
    session.keep([0, 1])
    case.check(read(session, [4])[0], [*text, 4])


@pytest.mark.parametrize("case", CHAINS, indirect=True)
@pytest.mark.parametrize("parents", [[-1, -1], [-1, 0, 0], [-1, 0, -1]])
def test_an_engine_without_trees_refuses_them(case: Case, session: Session, parents: list[int]) -> None:
    text = case.text[:6]
    read(session, text[:3])
    with pytest.raises(InvalidValue):
        grow(session, case.text[10 : 10 + len(parents)], parents, 1)
    chain(session, text[3:5], 1)
    for parent in (-1, 0):
        with pytest.raises(InvalidValue):
            grow(session, [1], [parent], 1)
    session.keep([0, 1])
    case.check(read(session, text[5:])[0], text)


@pytest.mark.parametrize("case", NONES, indirect=True)
def test_an_engine_that_cannot_forget_says_so(case: Case, session: Session) -> None:
    text = case.text[:6]
    read(session, text)
    assert session.rewind(6) == 6
    assert session.rewind(3) == session.length == 0
    case.check(read(session, text[:4])[0], text[:4])
    chain(session, text[4:], 1)
    with pytest.raises(EngineFailure, match="forget"):
        session.keep([0])
