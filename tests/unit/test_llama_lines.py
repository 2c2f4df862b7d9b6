"""Lines of a token tree, against a small model of llama.cpp's cache.

What the model holds of llama.cpp (src/llama-kv-cache.cpp, src/llama-batch.cpp): a token is stored in a cell with its
position and all its sequence ids; it sees the cells that carry its *first* sequence id and do not stand behind it.
Copying a sequence adds an id to cells. Every sequence of a batch must go on where its cells end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.engines.llama_lines import ROOT, Copy, Lines
from foredraft.errors import InvalidValue
from foredraft.trees import children, path_to
from tests.support.engine_cases import ids

MOST = 12
KEPT = "kept"


@dataclass
class Cell:
    name: str
    position: int
    lines: set[int]


@dataclass
class Cache:
    """llama.cpp's cells; names are ``kept0``, ``kept1``, … and the numbers of pending tokens."""

    length: int
    cells: list[Cell] = field(default_factory=list)
    seen: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cells = [Cell(f"{KEPT}{i}", i, {ROOT}) for i in range(self.length)]

    def copy(self, copy: Copy) -> None:
        for cell in self.cells:
            if copy.source in cell.lines and cell.position < copy.end:
                cell.lines.add(copy.line)

    def on(self, line: int, most: int = 10**9) -> set[str]:
        """Names of the cells of a line up to position ``most``."""
        return {cell.name for cell in self.cells if line in cell.lines and cell.position <= most}

    def end(self, line: int) -> int:
        """Last position of a line, -1 if it has no cells."""
        return max((cell.position for cell in self.cells if line in cell.lines), default=-1)

    def decode(self, batch: list[Cell], sequences: list[list[int]]) -> None:
        self._check(batch)
        self.cells += batch
        for cell, lines in zip(batch, sequences, strict=True):
            self.seen[cell.name] = self.on(lines[0], cell.position)

    def _check(self, batch: list[Cell]) -> None:
        """Raises where llama_decode would refuse the batch."""
        for line in {line for cell in batch for line in cell.lines}:
            positions = [cell.position for cell in batch if line in cell.lines]
            start = self.end(line) + 1
            assert positions == list(range(start, start + len(positions))), f"line {line} does not go on"
        for cell in batch:
            assert len({self.end(line) for line in cell.lines}) == 1, "coupled lines have diverged"


@dataclass
class Session:
    """What the engine does with Lines, on the model."""

    lines: Lines
    cache: Cache
    parents: list[int] = field(default_factory=list)

    def extend(self, parents: list[int], chunk: int) -> None:
        copies, sequences = self.lines.add(parents)
        for copy in copies:
            self.cache.copy(copy)
        first = len(self.parents)
        self.parents += parents
        assert len(sequences) == len(parents)
        assert all(len(set(own)) == len(own) for own in sequences), "a line is named once"
        for start in range(0, len(parents), chunk):
            lines = sequences[start : start + chunk]
            batch = [
                Cell(str(node), self.lines.position(node), set(own)) for node, own in enumerate(lines, first + start)
            ]
            self.cache.decode(batch, lines)

    def expected(self, node: int) -> set[str]:
        """Names of the kept text and of the path down to ``node``."""
        kept = {f"{KEPT}{i}" for i in range(self.cache.length)}
        return kept | {str(index) for index in path_to(self.parents, node)}

    def check(self) -> None:
        for node in range(-1, len(self.parents)):
            if node >= 0:
                assert self.cache.seen[str(node)] == self.expected(node)
            position = self.cache.length - 1 + len(path_to(self.parents, node))
            assert self.lines.position(node) == position
            assert self.cache.on(self.lines.line(node), position) == self.expected(node)
        inner = children(ids(self.parents))
        leaves = sum(node not in inner for node in range(len(self.parents)))
        assert self.lines.used == max(1, leaves) <= MOST


def opened(length: int) -> Session:
    lines = Lines(MOST)
    lines.clear(length)
    return Session(lines, Cache(length))


def random_parents(data: st.DataObject, size: int) -> list[int]:
    count = data.draw(st.integers(1, 7))
    return [data.draw(st.integers(-1, size + i - 1)) for i in range(count)]


@given(st.data())
def test_every_token_sees_the_kept_text_and_its_ancestors(data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 2))):
        session = opened(data.draw(st.sampled_from([0, 1, 4])))
        for _ in range(data.draw(st.integers(1, 4))):
            parents = random_parents(data, len(session.parents))
            try:
                session.extend(parents, data.draw(st.integers(1, 7)))
            except InvalidValue:
                assert leaves_of(session.parents + parents) > MOST
            session.check()


@given(st.data())
def test_clear_starts_anew(data: st.DataObject) -> None:
    used, fresh = Lines(MOST), Lines(MOST)
    used.clear(3)
    used.add(random_parents(data, 0))
    length = data.draw(st.integers(0, 5))
    used.clear(length)
    fresh.clear(length)
    assert len(used) == 0
    assert used.position(-1) == length - 1
    parents = random_parents(data, 0)
    assert used.add(parents) == fresh.add(parents)
    assert used.used == fresh.used


def leaves_of(parents: list[int]) -> int:
    return len(set(range(len(parents))) - set(parents))


def test_a_chain_stays_on_the_root_line() -> None:
    lines = Lines(1)
    lines.clear(5)
    assert lines.add([-1, 0, 1]) == ([], [[ROOT], [ROOT], [ROOT]])
    assert lines.add([2]) == ([], [[ROOT]])
    assert lines.used == 1
    assert [lines.position(node) for node in range(-1, 4)] == [4, 5, 6, 7, 8]


def test_a_second_child_starts_a_line() -> None:
    """The root's first child stays on its line, the second gets a copy of the five kept tokens."""
    lines = Lines(2)
    lines.clear(5)
    assert lines.add([-1, -1]) == ([Copy(ROOT, 1, 5)], [[ROOT], [1]])


def test_ancestors_in_the_same_call_carry_the_new_line() -> None:
    """Node 2 branches off node 0, which is fed in the same call: it carries both lines, its own first."""
    lines = Lines(2)
    lines.clear(5)
    assert lines.add([-1, 0, 0]) == ([Copy(ROOT, 1, 5)], [[ROOT, 1], [ROOT], [1]])


def test_ancestors_of_an_earlier_call_are_copied() -> None:
    lines = Lines(2)
    lines.clear(5)
    lines.add([-1, 0])
    assert lines.add([0]) == ([Copy(ROOT, 1, 6)], [[1]])


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([0], "parents"),
        ([-2], "parents"),
        ([-1, 1], "parents"),
        ([-1, 2], "parents"),
        ([-1, -1, -1], "3 leaves"),
        ([-1, 0, 0, 0], "3 leaves"),
    ],
)
def test_errors_change_nothing(parents: list[int], message: str) -> None:
    lines, fresh = Lines(2), Lines(2)
    lines.clear(4)
    fresh.clear(4)
    with pytest.raises(InvalidValue, match=message):
        lines.add(parents)
    assert (len(lines), lines.used) == (0, 1)
    assert lines.add([-1, 0, -1]) == fresh.add([-1, 0, -1])
    with pytest.raises(InvalidValue, match="3 leaves"):
        lines.add([1, 0])
    assert (len(lines), lines.used) == (3, 2)
    assert lines.add([1, 2]) == fresh.add([1, 2])


@pytest.mark.parametrize("path", [[], [0], [0, 1], [0, 2], [3]])
def test_good_paths(path: list[int]) -> None:
    lines = Lines(4)
    lines.clear(1)
    lines.add([-1, 0, 0, -1])
    lines.check_path(path)
    assert len(lines) == 4


@pytest.mark.parametrize("path", [[1], [0, 0], [0, 3], [3, 0], [4], [-1], [0, 1, 2], [2, 0]])
def test_bad_paths(path: list[int]) -> None:
    lines = Lines(4)
    lines.clear(1)
    lines.add([-1, 0, 0, -1])
    with pytest.raises(InvalidValue, match="root-first path"):
        lines.check_path(path)
