"""One suite for every engine: whatever is fed, kept and forgotten, a session scores like a fresh one.

How closely is stated in ``tests/support/engine_cases.py``; ``test_one_wrong_token_is_seen`` shows that this is close
enough to tell a wrong token from rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from foredraft.engines.base import Session
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.errors import EngineFailure
from foredraft.trees import path_to
from tests.support import tiny_models
from tests.support.engine_cases import (
    ALL,
    CONTEXT,
    FORGETS,
    NONES,
    QUICK,
    REPLAYS,
    TINY,
    TREES,
    Case,
    chain,
    distance,
    grow,
    node_text,
    read,
)

T = TypeVar("T")
QUICK_FORGETS = [name for name in FORGETS if name in QUICK]
over_all = pytest.mark.parametrize("case", ALL, indirect=True)
over_quick = pytest.mark.parametrize("case", QUICK, indirect=True)
over_quick_forgetting = pytest.mark.parametrize("case", QUICK_FORGETS, indirect=True)
over_trees = pytest.mark.parametrize("case", TREES, indirect=True)


def some_for_large(first: Sequence[T], few: Sequence[T]) -> list[tuple[str, T]]:
    """Every engine with trees and each of ``first``; large models get ``few`` of them."""
    return [(name, one) for name in TREES for one in (first if name in QUICK else few)]


# --- what the engines say of themselves --------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_abilities(cases: Callable[[str], Case], name: str) -> None:
    info = cases(name).engine.info
    rollback = "none" if name in NONES else "replay" if name in REPLAYS else "trim"
    assert (info.rollback, info.max_context) == (rollback, CONTEXT)
    assert info.tree == (name in TREES or name == "scripted-none")
    if rollback != "trim":
        assert info.reason


@pytest.mark.parametrize("case", TREES + REPLAYS, indirect=True)
def test_one_wrong_token_is_seen(case: Case) -> None:
    text = case.text[:12]
    for place in (3, 6, 10):
        wrong = [*text[:place], (text[place] + 7) % case.engine.info.vocab_size, *text[place + 1 :]]
        assert distance(case.row(wrong), case.row(text)) > case.tolerance
    assert distance(case.row(text[:4] + text[5:]), case.row(text)) > case.tolerance


# --- chains ------------------------------------------------------------------------------------------------


@over_all
def test_all_at_once_is_one_at_a_time(case: Case, session: Session) -> None:
    text = case.text[:8]
    rows = read(session, text, len(text))
    assert session.length == len(text)
    assert rows.dtype == np.float32
    other = case.engine.open()
    for index, token in enumerate(text):
        single = read(other, [token])[0]
        assert other.length == index + 1
        case.check(single, text[: index + 1])
        case.check(rows[index], text[: index + 1])
    other.close()


@over_quick
@pytest.mark.parametrize("rows", [0, 1, 3, 8])
def test_only_the_last_rows_are_scored(case: Case, session: Session, rows: int) -> None:
    text = case.text[:11]
    read(session, text[:3], 0)
    logits = chain(session, text[3:], rows)
    assert logits.shape == (rows, case.engine.info.vocab_size)
    for back in range(rows):
        case.check(logits[-1 - back], text[: len(text) - back])


@over_quick
def test_a_chain_grows_over_several_extends(case: Case, session: Session) -> None:
    text = case.text[:12]
    read(session, text[:4])
    case.check(chain(session, text[4:7], 1)[0], text[:7])
    case.check(grow(session, text[7:8], [2], 1)[0], text[:8])
    rows = grow(session, text[8:10], [3, 4], 2)
    case.check(rows[0], text[:9])
    case.check(rows[1], text[:10])
    assert session.length == 4
    session.keep(range(6))
    assert session.length == 10
    case.check(read(session, text[10:])[0], text)


@over_all
def test_longer_than_a_native_pass(case: Case, session: Session) -> None:
    """More tokens than one native pass takes (512), and more rows than it scores (64)."""
    text, count = case.text[:650], 140
    rows = read(session, text, count)
    assert rows.shape == (count, case.engine.info.vocab_size)
    other = case.engine.open()
    for start in range(0, 650, 50):
        piece = read(other, text[start : start + 50], 50)
        for index in range(max(start, 510), start + 50):
            case.compare(rows[index - 510], piece[index - start], f"row {index}")
    other.close()


@over_quick_forgetting
@pytest.mark.parametrize("kept", [0, 1, 4, 6])
def test_keep_part_of_a_chain(case: Case, session: Session, kept: int) -> None:
    text = case.text[:10]
    read(session, text[:4])
    chain(session, case.text[20:26], 6)
    session.keep(range(kept))
    text = text[:4] + case.text[20 : 20 + kept]
    assert session.length == len(text)
    case.check(read(session, case.text[30:32])[0], text + case.text[30:32])


@over_quick_forgetting
def test_keep_from_an_empty_session(case: Case, session: Session) -> None:
    chain(session, case.text[:5], 1)
    session.keep([])
    assert session.length == 0
    chain(session, case.text[5:9], 1)
    session.keep([0, 1])
    case.check(read(session, case.text[9:10])[0], case.text[5:7] + case.text[9:10])


@over_quick_forgetting
@pytest.mark.parametrize("pending", [0, 3])
@pytest.mark.parametrize("length", [0, 1, 5, 8, 9])
def test_rewind(case: Case, session: Session, length: int, pending: int) -> None:
    text = case.text[:9]
    read(session, text)
    if pending:
        chain(session, case.text[40 : 40 + pending], 1)
    reached = session.rewind(length)
    assert 0 <= reached <= length
    assert session.length == reached
    if case.engine.info.rollback == "trim" or length in (0, 9):
        assert reached == length
    more = text[reached:length] + case.text[50:52]
    case.check(read(session, more)[0], text[:reached] + more)


# --- trees -------------------------------------------------------------------------------------------------

SHAPES: dict[str, list[int]] = {
    "bush": [-1, -1, -1, -1],
    "two chains": [-1, -1, 0, 1, 2, 3],
    "level by level": [-1, -1, 0, 0, 1, 1, 2, 4],
    "depth first": [-1, 0, 1, 1, 0, 4, -1, 6],
    "late second root": [-1, 0, 1, 2, 3, -1, 5],
}


@pytest.mark.parametrize(
    ("case", "shape"), some_for_large([*SHAPES], ["level by level", "depth first"]), indirect=["case"]
)
def test_every_node_sees_its_own_path(case: Case, session: Session, shape: str) -> None:
    """And a second tree, of siblings swapped, behind the first one's kept path."""
    parents, text = SHAPES[shape], case.text[:5]
    read(session, text)
    tokens = case.text[100 : 100 + len(parents)]
    rows = grow(session, tokens, parents, len(parents))
    for node in range(len(parents)):
        case.check(rows[node], node_text(text, tokens, parents, node))
    path = path_to(parents, len(parents) - 1)
    session.keep(path)
    text = text + [tokens[node] for node in path]
    row = grow(session, tokens[::-1], parents, 1)[0]
    case.check(row, node_text(text, tokens[::-1], parents, len(parents) - 1))


PATHS: list[tuple[int, ...]] = [(), (0,), (1,), (0, 2), (0, 3), (1, 4), (1, 5), (0, 2, 6), (1, 4, 7)]


@pytest.mark.parametrize(("case", "path"), some_for_large(PATHS, [(), (1, 4, 7)]), indirect=["case"])
def test_keep_a_path_then_go_on(case: Case, session: Session, path: tuple[int, ...]) -> None:
    text, parents = case.text[:5], SHAPES["level by level"]
    read(session, text)
    tokens = case.text[100 : 100 + len(parents)]
    grow(session, tokens, parents, 1)
    session.keep(path)
    text = text + [tokens[node] for node in path]
    assert session.length == len(text)
    more = case.text[30:32]
    case.check(read(session, more)[0], text + more)


@over_trees
def test_a_tree_grows_over_several_extends(case: Case, session: Session) -> None:
    """As a draft model does it: unseen tokens, then level by level below tokens of any earlier call."""
    text = case.text[:5]
    read(session, text[:3])
    tokens = text[3:]
    parents = [-1, 0]
    grow(session, tokens, parents, 1)
    for level in ([1, 1, 1], [2, 2, 4, 1], [5, 8, 5, 0], [-1, 9]):
        fed = case.text[60 + len(tokens) : 60 + len(tokens) + len(level)]
        rows = grow(session, fed, level, len(level))
        tokens, parents = tokens + fed, parents + level
        for order in range(len(level)):
            node = len(tokens) - len(level) + order
            case.check(rows[order], node_text(text[:3], tokens, parents, node))
    path = path_to(parents, 14)
    assert len(path) == 6
    session.keep(path)
    case.check(read(session, [7])[0], [*text[:3], *(tokens[node] for node in path), 7])


@over_trees
def test_a_tree_across_two_native_passes(case: Case, session: Session) -> None:
    """Unseen text and tree in one call, the boundary of 512 inside the tree; beyond a sliding window of 512."""
    text, parents = case.text[:506], SHAPES["level by level"] + [6, 7, 5, 5]
    tokens = case.text[600 : 600 + len(parents)]
    fed = [*range(-1, 505), *(parent + 506 for parent in parents)]
    rows = grow(session, text + tokens, fed, len(parents) + 1)
    other = case.engine.open()
    case.compare(rows[0], read(other, text)[0], "the last row of the text")
    for node in range(len(parents)):
        want = chain(other, node_text([], tokens, parents, node), 1)[0]
        case.compare(rows[1 + node], want, f"node {node}")
        other.keep([])
    path = path_to(parents, 9)
    session.keep([*range(506), *(506 + node for node in path)])
    more = case.text[30:36]
    want = read(other, [*(tokens[node] for node in path), *more])[0]
    case.compare(read(session, more)[0], want, "the row after the kept path")
    other.close()


@over_trees
def test_rewind_with_a_pending_tree(case: Case, session: Session) -> None:
    text = case.text[:6]
    for length in (6, 4, 0):
        session.rewind(0)
        read(session, text)
        grow(session, case.text[50:58], SHAPES["level by level"], 2)
        assert session.rewind(length) == session.length == length
        case.check(read(session, case.text[70:72])[0], text[:length] + case.text[70:72])


def test_a_window_forgets_nothing_that_a_rewind_needs(tmp_path: Path) -> None:
    """A cache of windows alone (8 tokens and one native pass) would have lost what comes before token 1000."""
    path = tiny_models.write_gemma3(tmp_path / "gemma3.gguf")
    engine = LlamaEngine(path, LlamaConfig(context=4096, threads=1, lines=4, kv_type="f32", repack=False))
    text = np.random.default_rng(0).integers(0, tiny_models.VOCAB, 3000).tolist()
    session, other = engine.open(), engine.open()
    read(session, text)
    assert session.rewind(1000) == session.length == 1000
    assert distance(read(session, [3, 4])[0], read(other, [*text[:1000], 3, 4])[0]) < TINY
    session.close()
    other.close()
    engine.close()


# --- several sessions, the end of one ----------------------------------------------------------------------


@over_quick
def test_sessions_are_independent(case: Case) -> None:
    texts = [case.text[start : start + 6] for start in (0, 10, 20)]
    sessions = [case.engine.open() for _ in texts]
    for index in range(0, 6, 2):
        for session, text in zip(sessions, texts, strict=True):
            case.check(read(session, text[index : index + 2])[0], text[: index + 2])
    sessions[1].close()
    sessions[2].rewind(0)
    case.check(read(sessions[0], [5])[0], [*texts[0], 5])
    case.check(read(sessions[2], [5])[0], [5])
    for session in sessions:
        session.close()


@over_quick
def test_a_closed_session(case: Case, session: Session) -> None:
    read(session, case.text[:3])
    chain(session, case.text[3:5], 1)
    session.close()
    session.close()
    calls: list[Callable[[], object]] = [
        lambda: chain(session, [1], 1),
        lambda: session.keep([0]),
        lambda: session.rewind(0),
    ]
    for call in calls:
        with pytest.raises(EngineFailure, match="closed"):
            call()
    other = case.engine.open()
    case.check(read(other, case.text[:3])[0], case.text[:3])
    other.close()


# --- any sequence of calls ---------------------------------------------------------------------------------


@dataclass
class Walk:
    """Random calls on a session beside the plain text that it should hold."""

    case: Case
    session: Session
    random: np.random.Generator
    text: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def extend(self) -> None:
        count = int(self.random.integers(1, 6))
        tokens = self.random.choice(self.case.text, count).tolist()
        info, size = self.case.engine.info, len(self.tokens)
        if info.tree:
            parents = [int(self.random.integers(-1, size + i)) for i in range(count)]
        else:
            parents = list(range(size - 1, size + count - 1))
        rows = int(self.random.integers(0, count + 1))
        logits = grow(self.session, tokens, parents, rows)
        self.tokens, self.parents = self.tokens + tokens, self.parents + parents
        for back in range(rows):
            node = len(self.tokens) - 1 - back
            self.case.check(logits[-1 - back], node_text(self.text, self.tokens, self.parents, node))

    def keep(self) -> None:
        path = path_to(self.parents, int(self.random.integers(-1, len(self.tokens))))
        self.session.keep(path)
        self._settle(self.text + [self.tokens[node] for node in path])

    def rewind(self) -> None:
        reached = self.session.rewind(int(self.random.integers(0, len(self.text) + 1)))
        self._settle(self.text[:reached])

    def _settle(self, text: list[int]) -> None:
        self.text, self.tokens, self.parents = text, [], []
        assert self.session.length == len(text)

    def run(self, calls: int) -> None:
        kinds = [self.extend, self.extend, self.extend, self.keep, self.keep, self.rewind]
        for choice in self.random.integers(0, len(kinds), calls):
            kinds[choice]()
        self.keep()
        end = self.case.text[5:7]
        self.case.check(read(self.session, end)[0], self.text + end)


WALKS = [
    (name, seed, calls)
    for names, seeds, calls in (
        (["scripted", "scripted-chain"], 40, 40),
        (["tiny-llama", "tiny-gemma3", "torch-llama", "torch-gemma3", *REPLAYS], 12, 25),
        (["executorch-llama", "executorch-gemma3"], 24, 25),
        (["smollm2", "gemma3", "torch-smollm2"], 1, 10),
        (["executorch-smollm2"], 4, 15),
    )
    for name, seed in product(names, range(seeds))
]


@pytest.mark.parametrize(("case", "seed", "calls"), WALKS, indirect=["case"])
def test_any_sequence_of_calls(case: Case, session: Session, seed: int, calls: int) -> None:
    Walk(case, session, np.random.default_rng(seed)).run(calls)
