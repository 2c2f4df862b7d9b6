"""Sessions of one engine share its weights and nothing else: calls may interleave, rows outlive the others' calls."""

from __future__ import annotations

import pytest

from tests.support.engine_cases import QUICK, TREES, Case, chain, grow, ids, node_text, read

over_quick = pytest.mark.parametrize("case", QUICK, indirect=True)
PARENTS = [-1, -1, 0, 0, 1, 1, 2, 4]


@over_quick
def test_rows_stay_valid_while_another_session_runs(case: Case) -> None:
    """They are valid until their own session's next call, whatever others do; keeping is not disturbed either."""
    one, other = case.engine.open(), case.engine.open()
    text, foreign = case.text[:9], case.text[30:42]
    read(one, text[:5], 0)
    scores = one.extend(ids(text[5:]), ids(range(-1, 3)), 4)
    before = scores.logits.copy()
    case.check(read(other, foreign, 1)[0], foreign)
    case.check(chain(other, case.text[50:54], 4)[0], [*foreign, case.text[50]])
    assert scores.logits.tobytes() == before.tobytes()
    one.keep(range(4))
    other.close()
    case.check(read(one, [3])[0], [*text, 3])
    one.close()


@pytest.mark.parametrize("case", [name for name in TREES if name in QUICK], indirect=True)
def test_trees_of_two_sessions_interleave(case: Case) -> None:
    sessions = [case.engine.open() for _ in range(2)]
    texts = [case.text[:5], case.text[200:207]]
    trees = [case.text[100:108], case.text[300:308]]
    for session, text in zip(sessions, texts, strict=True):
        read(session, text, 0)
    rows = [grow(session, tree, PARENTS, 8) for session, tree in zip(sessions, trees, strict=True)]
    for found, text, tree in zip(rows, texts, trees, strict=True):
        for node in range(8):
            case.check(found[node], node_text(text, tree, PARENTS, node))
    for session, path in zip(sessions, ([1, 4, 7], [0, 2, 6]), strict=True):
        session.keep(path)
    for session, text, tree, path in zip(sessions, texts, trees, ([1, 4, 7], [0, 2, 6]), strict=True):
        case.check(read(session, [4])[0], [*text, *(tree[node] for node in path), 4])
        session.close()
