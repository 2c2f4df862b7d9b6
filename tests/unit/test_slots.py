"""Slots of chains and trees: a model cache of labels is replayed beside the bookkeeping and compared step by step."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.engines.slots import Bools, Layout, Moves, Slots
from foredraft.errors import ContextFull, InvalidValue

Cache = list[int]
Apply = Callable[[Moves, Cache], None]
CONTEXT = 64
"""More than five steps can fill."""


def moved(moves: Moves, cache: Cache) -> None:
    """All sources are read before a target is written."""
    rows = [cache[source] for source in moves.sources]
    for target, row in zip(moves.targets, rows, strict=True):
        cache[target] = row


@dataclass
class Replay:
    """A session whose cache holds labels, and what it must look like, kept in plain lists."""

    slots: Slots
    context: int
    apply: Apply = moved
    kept: list[int] = field(default_factory=list)
    tree: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache: Cache = [-1] * self.context
        self.fresh = itertools.count()

    def add(self, parents: Sequence[int]) -> None:
        layout = self.slots.add(parents)
        assert len(layout.slots) == len(layout.positions) == len(parents)
        first = len(self.tree)
        self.tree += parents
        for slot in layout.slots.tolist():
            label = next(self.fresh)
            self.cache[slot] = label
            self.labels.append(label)
            self.at.append(slot)
        depths = [len(self.path(node)) - 1 for node in range(first, len(self.tree))]
        assert layout.positions.tolist() == [len(self.kept) + depth for depth in depths]
        self.check()

    def keep(self, path: Sequence[int]) -> None:
        self.apply(self.slots.keep(path), self.cache)
        self.kept += [self.labels[node] for node in path]
        self.forget()

    def rewind(self, length: int) -> None:
        self.slots.rewind(length)
        del self.kept[length:]
        self.forget()

    def forget(self) -> None:
        self.tree, self.labels, self.at = [], [], []
        self.check()

    def path(self, node: int) -> list[int]:
        """Root first, ``node`` last."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.tree[node]
        return path[::-1]

    def check(self) -> None:
        """Kept token i lies in slot i; pending ones in slots of their own, in which path order is slot order."""
        assert self.slots.length == len(self.kept)
        assert self.slots.pending == len(self.tree)
        assert self.slots.used == len(self.kept) + len(self.tree) <= self.context
        assert self.cache[: len(self.kept)] == self.kept
        assert len(set(self.at)) == len(self.at)
        assert all(len(self.kept) <= slot < self.context for slot in self.at)
        assert [self.cache[slot] for slot in self.at] == self.labels
        for node, parent in enumerate(self.tree):
            assert parent < 0 or self.at[parent] < self.at[node]

    def seen(self, window: int | None) -> Bools:
        """bool[pending, context] by definition: row by row, along the path, distances in tokens."""
        table = np.zeros((len(self.tree), self.context), np.bool_)
        for node in range(len(self.tree)):
            text = [*range(len(self.kept)), *(self.at[above] for above in self.path(node))]
            table[node, text if window is None else text[-window:]] = True
        return table


def replay(context: int, apply: Apply = moved, kind: type[Slots] = Slots) -> Replay:
    return Replay(kind(context), context, apply)


def draw_parents(data: st.DataObject, first: int, most: int) -> list[int]:
    """A tree that continues a pending one of ``first`` tokens; long chains are as likely as bushes."""
    count = data.draw(st.integers(0, most), "count")
    straight = data.draw(st.integers(0, count), "straight")
    chain = list(range(first - 1, first - 1 + straight))
    return chain + [data.draw(st.integers(-1, first + index - 1), "parent") for index in range(straight, count)]


def draw_step(data: st.DataObject, session: Replay) -> None:
    room = session.context - session.slots.used
    match data.draw(st.sampled_from(["add", "add", "keep", "rewind"]), "step"):
        case "add":
            session.add(draw_parents(data, len(session.tree), min(room, 9)))
        case "keep":
            session.keep(session.path(data.draw(st.integers(-1, len(session.tree) - 1), "node")))
        case _:
            session.rewind(data.draw(st.integers(0, len(session.kept)), "length"))


ROUNDS = settings(derandomize=True, deadline=None, database=None, max_examples=400)


@ROUNDS
@given(data=st.data(), context=st.integers(1, 40), steps=st.integers(1, 12))
def test_every_step_leaves_kept_tokens_in_their_slots(data: st.DataObject, context: int, steps: int) -> None:
    session = replay(context)
    for _ in range(steps):
        draw_step(data, session)


@ROUNDS
@given(data=st.data(), window=st.none() | st.integers(1, 12))
def test_who_sees_whom(data: st.DataObject, window: int | None) -> None:
    session = replay(30)
    for _ in range(data.draw(st.integers(1, 6), "steps")):
        draw_step(data, session)
    first = data.draw(st.integers(0, len(session.tree)), "first")
    count = data.draw(st.integers(0, len(session.tree) - first), "rows")
    columns = data.draw(st.integers(0, session.context), "columns")
    table = session.slots.visible(first, count, columns, window)
    assert table.dtype == np.bool_
    np.testing.assert_array_equal(table, session.seen(window)[first : first + count, :columns])


def state(session: Replay) -> tuple[int, int, list[list[bool]]]:
    slots = session.slots
    return slots.length, slots.pending, slots.visible(0, slots.pending, session.context).tolist()


def grown(data: st.DataObject) -> Replay:
    session = replay(CONTEXT)
    for _ in range(data.draw(st.integers(0, 5), "steps")):
        draw_step(data, session)
    return session


@ROUNDS
@given(data=st.data(), excess=st.integers(1, 5))
def test_a_full_cache_refuses_and_changes_nothing(data: st.DataObject, excess: int) -> None:
    session = grown(data)
    before, room = state(session), session.context - session.slots.used
    with pytest.raises(ContextFull, match=f"{CONTEXT + excess} tokens do not fit into a context of {CONTEXT}"):
        session.slots.add([-1] * (room + excess))
    assert state(session) == before
    session.add([-1] * room)
    assert session.slots.used == session.context


@ROUNDS
@given(data=st.data(), bad=st.integers(-9, -2) | st.integers(0, 9))
def test_a_wrong_parent_is_refused_and_changes_nothing(data: st.DataObject, bad: int) -> None:
    session = grown(data)
    parents = draw_parents(data, len(session.tree), 8)
    wrong = bad if bad < 0 else len(session.tree) + len(parents) + bad  # itself or a later one
    before = state(session)
    with pytest.raises(InvalidValue, match=rf"parents\[{len(parents)}\] is {wrong}; allowed: -1 ") as caught:
        session.slots.add([*parents, wrong, *parents])
    assert str(caught.value).isprintable()
    assert state(session) == before


@ROUNDS
@given(data=st.data())
def test_a_wrong_path_is_refused_and_changes_nothing(data: st.DataObject) -> None:
    session = grown(data)
    pending = len(session.tree)
    right = [session.path(node) for node in range(-1, pending)]
    path = data.draw(st.lists(st.integers(-2, pending + 1), max_size=4).filter(lambda path: path not in right), "path")
    before = state(session)
    with pytest.raises(InvalidValue, match=r"path\[\d\] is -?\d+; allowed: .*root-first path") as caught:
        session.slots.keep(path)
    assert str(caught.value).isprintable()
    assert state(session) == before


@pytest.mark.parametrize("length", [-1, 3, 100])
def test_rewinding_beyond_the_kept_text_is_refused_and_changes_nothing(length: int) -> None:
    session = replay(8)
    session.add([-1, 0])
    session.keep([0, 1])
    session.add([-1, -1, 1])
    before = state(session)
    with pytest.raises(InvalidValue, match=f"length is {length}; allowed: 0 to 2"):
        session.slots.rewind(length)
    assert state(session) == before


def test_moves_name_only_rows_that_change_place() -> None:
    slots = Slots(16)
    slots.add([-1, 0, 1])
    moves = slots.keep([0, 1, 2])
    assert len(moves) == 0 and moves.sources.dtype == moves.targets.dtype == np.int64
    layout = slots.add([-1, -1, 0, 1, 2, 3])
    assert layout.slots.tolist() == [3, 4, 5, 6, 7, 8]
    assert layout.positions.tolist() == [3, 3, 4, 4, 5, 5]
    moves = slots.keep([0, 2, 4])
    assert (moves.sources.tolist(), moves.targets.tolist()) == ([5, 7], [4, 5])
    assert (slots.length, slots.pending) == (6, 0)


def test_a_long_prompt_costs_memory_by_its_length() -> None:
    """32,000 tokens at once, rows asked for in pieces; a table of all pairs would be a gigabyte."""
    count, piece = 32_000, 64
    slots = Slots(count + 8)
    parents = [*range(-1, count - 1), count - 1, count - 1, count]
    tracemalloc.start()
    try:
        layout = slots.add(parents)
        for first in range(0, count, 8000):
            table = slots.visible(first, piece, first + piece)
            assert table.sum(1).tolist() == list(range(first + 1, first + piece + 1))
        table = slots.visible(count, 3, count + 3, window=100)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert layout.positions[-4:].tolist() == [count - 1, count, count, count + 1]
    assert table[:, -3:].tolist() == [[True, False, False], [False, True, False], [True, False, True]]
    assert table.sum(1).tolist() == [100, 100, 100]
    assert peak < 16e6
    assert len(slots.keep([*range(count), count + 1])) == 1


# Faults that the checks above must find.


def not_applied(moves: Moves, cache: Cache) -> None:
    """The rows stay where they are."""


def last_first(moves: Moves, cache: Cache) -> None:
    """One by one from the end: a target may be another move's source."""
    for source, target in list(zip(moves.sources, moves.targets, strict=True))[::-1]:
        cache[target] = cache[source]


def swapped(moves: Moves, cache: Cache) -> None:
    moved(Moves(moves.targets, moves.sources), cache)


class Backwards(Slots):
    """Children lie before their parents."""

    def add(self, parents: Sequence[int]) -> Layout:
        layout = super().add(parents)
        return Layout(layout.slots[::-1].copy(), layout.positions)


class Forgetful(Slots):
    """Each extend starts right behind the kept text."""

    def add(self, parents: Sequence[int]) -> Layout:
        pending = self.pending
        layout = super().add(parents)
        return Layout(layout.slots - pending, layout.positions)


class Flat(Slots):
    """Siblings lie in one slot: the slot is the position."""

    def add(self, parents: Sequence[int]) -> Layout:
        positions = super().add(parents).positions
        return Layout(positions, positions)


def scene(session: Replay) -> None:
    """A prompt, a tree in two extends of which a branch is kept, and one more token."""
    session.add([-1, 0, 1])
    session.keep([0, 1, 2])
    session.add([-1, -1, 1])
    session.add([2, 2, 3])
    session.keep([1, 2, 3])
    session.add([-1])


def test_the_scene_is_right_without_a_fault() -> None:
    session = replay(16)
    scene(session)
    assert session.kept == [0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize("fault", [not_applied, last_first, swapped])
def test_wrong_moves_are_found(fault: Apply) -> None:
    with pytest.raises(AssertionError):
        scene(replay(16, fault))


@pytest.mark.parametrize("fault", [Backwards, Forgetful, Flat])
def test_wrong_slots_are_found(fault: type[Slots]) -> None:
    with pytest.raises(AssertionError):
        scene(replay(16, kind=fault))
