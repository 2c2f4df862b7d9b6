"""Trees as parents arrays: masks, paths, the best shape, and merging paths."""

from __future__ import annotations

import doctest
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft import trees
from foredraft.speed import expected_tokens
from foredraft.trees import (
    RANK_ACCEPTANCE,
    Bounds,
    TreeBuilder,
    ancestor_mask,
    best_shape,
    children,
    depths,
    expected_length,
    is_tree,
    path_to,
    static_shape,
    uniform_shape,
)
from foredraft.types import Budget, Ids


def parents(*nodes: int) -> Ids:
    return np.array(nodes, np.int32)


@st.composite
def random_trees(draw: st.DrawFn) -> Ids:
    size = draw(st.integers(0, 12))
    return parents(*(draw(st.integers(-1, node - 1)) for node in range(size)))


def test_docstring_examples() -> None:
    result = doctest.testmod(trees)
    assert (result.failed, result.attempted > 3) == (0, True)


@given(tree=random_trees())
def test_paths_depths_and_masks_agree(tree: Ids) -> None:
    assert is_tree(tree)
    mask, depth = ancestor_mask(tree), depths(tree)
    assert mask.shape == (len(tree), len(tree))
    assert depth.dtype == np.int32
    for node in range(len(tree)):
        path = path_to(tree, node)
        assert path[-1] == node and tree[path[0]] == -1
        assert all(tree[below] == above for above, below in itertools.pairwise(path))
        assert depth[node] == len(path)
        assert np.flatnonzero(mask[node]).tolist() == path


@given(tree=random_trees())
def test_children_list_every_node_once(tree: Ids) -> None:
    below = children(tree)
    assert sorted(kid for kids in below.values() for kid in kids) == list(range(len(tree)))
    assert all(tree[kid] == parent for parent, kids in below.items() for kid in kids)
    assert all(kids == sorted(kids) and kids for kids in below.values())


@pytest.mark.parametrize("bad", [(0,), (-1, 1), (-1, 2, -1), (-2,)])
def test_what_is_no_tree(bad: tuple[int, ...]) -> None:
    assert not is_tree(parents(*bad))


def test_empty_tree_and_root() -> None:
    assert is_tree(parents())
    assert children(parents()) == {}
    assert ancestor_mask(parents()).shape == (0, 0)
    assert path_to([-1, 0], -1) == []
    assert path_to([-1, 0, 1], 2) == [0, 1, 2]


Ranks = tuple[int, ...]


def all_shapes(budget: Budget) -> list[frozenset[Ranks]]:
    """Every tree of exactly ``budget.nodes`` nodes, a node written as the ranks along its path."""
    shapes: set[frozenset[Ranks]] = {frozenset()}
    for _ in range(budget.nodes):
        grown = set()
        for shape in shapes:
            for parent in [(), *shape]:
                rank = sum(node[:-1] == parent for node in shape)
                if len(parent) < budget.depth and rank < budget.branches:
                    grown.add(shape | {(*parent, rank)})
        shapes = grown
    return sorted(shapes, key=sorted)


def value(shape: frozenset[Ranks], acceptance: tuple[float, ...]) -> float:
    """Expected accepted length: every node's probability to be reached."""
    return sum(prod(acceptance[min(rank, len(acceptance) - 1)] for rank in node) for node in shape)


def as_ranks(tree: Ids) -> frozenset[Ranks]:
    ranks: dict[int, Ranks] = {-1: ()}
    for parent, kids in sorted(children(tree).items()):
        for rank, kid in enumerate(kids):
            ranks[kid] = (*ranks[parent], rank)
    return frozenset(ranks.values()) - {()}


class TestStaticShape:
    @settings(max_examples=60)
    @given(
        nodes=st.integers(1, 5),
        depth=st.integers(1, 5),
        branches=st.integers(1, 5),
        acceptance=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5),
    )
    def test_no_tree_is_better(self, nodes: int, depth: int, branches: int, acceptance: list[float]) -> None:
        """Against every tree of up to 5 nodes."""
        falling = tuple(sorted(acceptance, reverse=True))
        budget = Budget(nodes, depth, branches)
        found = static_shape(budget, falling)
        shapes = all_shapes(budget)
        if not shapes:  # the budget has room for fewer nodes than asked for: the fullest tree there is
            assert len(found) < nodes
            return
        assert as_ranks(found) in shapes
        assert value(as_ranks(found), falling) >= max(value(each, falling) for each in shapes) - 1e-12

    @pytest.mark.parametrize("budget", [Budget(16, 4, 3), Budget(40, 8, 4), Budget(3, 1, 8)])
    def test_order_and_limits(self, budget: Budget) -> None:
        found = static_shape(budget)
        depth = depths(found)
        assert is_tree(found) and len(found) == budget.nodes
        assert (np.diff(depth) >= 0).all()
        assert depth.max() <= budget.depth
        assert max(len(kids) for kids in children(found).values()) <= budget.branches

    def test_fullest_tree_where_the_budget_asks_for_more(self) -> None:
        assert len(static_shape(Budget(100, 2, 2))) == 2 + 4

    def test_rank_that_is_never_accepted(self) -> None:
        """A measured acceptance of 0 is no division by zero; such children come last."""
        assert static_shape(Budget(3, 3, 2), (0.7, 0.0)).tolist() == [-1, 0, 1]
        assert len(static_shape(Budget(5, 3, 2), (0.7, 0.0))) == 5
        assert len(static_shape(Budget(4, 3, 2), (0.0,))) == 4

    def test_nothing_to_draft(self) -> None:
        assert static_shape(Budget(0, 0, 0)).tolist() == []

    def test_default_prefers_depth_until_survival_falls_below_a_sibling(self) -> None:
        """.7^5 > .12 > .7^6: the sixth node is the first one's sibling."""
        assert list(RANK_ACCEPTANCE) == sorted(RANK_ACCEPTANCE, reverse=True)
        assert static_shape(Budget(5, 8, 4)).tolist() == [-1, 0, 1, 2, 3]
        assert static_shape(Budget(6, 8, 4)).tolist() == [-1, -1, 0, 2, 3, 4]


# --- the best shape for a measured acceptance and time ----------------------------------------------------------------

Table = list[list[float]]
"""Acceptance by depth, then by rank, as in ``best_shape``."""


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """One row for each of 1 to 3 depths: falling by rank, summing to at most 1; rows may differ in length."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        shares = sorted(draw(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=3)), reverse=True)
        hit = draw(st.floats(0.05, 1.0))
        rows.append([hit * share / sum(shares) for share in shares])
    return rows


@dataclass(frozen=True)
class Times:
    """Any time of N nodes, plus a share of its own for every level: deeper never takes less."""

    by_nodes: tuple[float, ...]
    by_level: tuple[float, ...]

    def __call__(self, levels: Sequence[int]) -> float:
        assert levels and min(levels) > 0, "no empty levels"
        return self.by_nodes[sum(levels)] + sum(self.by_level[: len(levels)])


@st.composite
def times(draw: st.DrawFn, most: int = 6) -> Times:
    base = draw(st.lists(st.floats(0.5, 4.0), min_size=most + 1, max_size=most + 1))
    steps = draw(st.lists(st.floats(0.0, 0.5), min_size=most, max_size=most))
    return Times(tuple(base), tuple(steps))


def levels_of(tree: Sequence[int] | Ids) -> list[int]:
    """Nodes at depth 1, 2, …"""
    counts: list[int] = np.bincount(depths(np.array(tree, np.int32)))[1:].tolist()
    return counts


def row(table: Table, depth: int) -> list[float]:
    return table[min(depth, len(table)) - 1]


def every_rate(table: Table, time: Callable[[Sequence[int]], float], bounds: Bounds) -> list[float]:
    """Tokens per time of every tree within ``bounds``, by definition."""
    rates = []
    for nodes in range(1, bounds.nodes + 1):
        if bounds.sizes is not None and nodes not in bounds.sizes:
            continue
        for shape in all_shapes(Budget(nodes, bounds.depth, 3)):
            if any(rank >= len(row(table, depth)) for node in shape for depth, rank in enumerate(node, 1)):
                continue
            tokens = 1 + sum(prod(row(table, depth)[rank] for depth, rank in enumerate(node, 1)) for node in shape)
            counts = np.bincount([len(node) for node in shape])[1:].tolist()
            rates.append(tokens / time(counts))
    return rates


class TestBestShape:
    @settings(max_examples=80, deadline=None)
    @given(
        table=tables(),
        time=times(),
        nodes=st.integers(1, 5),
        depth=st.integers(1, 5),
        sizes=st.none() | st.frozensets(st.integers(1, 6), max_size=4),
    )
    def test_no_tree_is_faster(
        self, table: Table, time: Times, nodes: int, depth: int, sizes: frozenset[int] | None
    ) -> None:
        """Against every tree of up to 5 nodes, each with its own time."""
        bounds = Bounds(nodes, depth, sizes)
        rates = every_rate(table, time, bounds)
        found = best_shape(table, time, bounds)
        assert (found is None) == (not rates)
        if found is not None:
            assert found.rate == pytest.approx(max(rates), rel=1e-8)

    def test_no_tree_of_six_is_faster(self) -> None:
        table = [[0.6, 0.2, 0.1], [0.7, 0.1], [0.5, 0.3, 0.05]]
        time = Times((9.0, 1.0, 1.1, 1.2, 1.25, 1.3, 1.32), (0.05, 0.05, 0.1, 0.2, 0.4, 0.4))
        found = best_shape(table, time, Bounds(6, 6))
        assert found is not None and len(found.parents) == 6
        assert found.rate == pytest.approx(max(every_rate(table, time, Bounds(6, 6))), rel=1e-12)

    @given(table=tables(), time=times(12), nodes=st.integers(1, 12), depth=st.integers(1, 6))
    def test_its_numbers_are_those_of_its_tree(self, table: Table, time: Times, nodes: int, depth: int) -> None:
        found = best_shape(table, time, Bounds(nodes, depth))
        assert found is not None
        tree = parents(*found.parents)
        assert is_tree(tree) and len(tree) <= nodes
        assert depths(tree).max() <= depth and (np.diff(depths(tree)) >= 0).all()
        assert found.tokens == pytest.approx(expected_length(found.parents, table), rel=1e-12)
        assert found.time == time(levels_of(tree))
        assert found.rate == found.tokens / found.time

    @given(table=tables(), nodes=st.integers(1, 12), branches=st.integers(1, 3))
    def test_beats_the_uniform_tree_of_as_many_nodes(self, table: Table, nodes: int, branches: int) -> None:
        """At equal size and any time by size and depth."""
        uniform = uniform_shape(nodes, branches)
        deepest = int(depths(uniform).max())
        time = Times((1.0,) * (nodes + 1), (0.1,) * nodes)
        found = best_shape(table, time, Bounds(nodes, deepest, frozenset({nodes})))
        if found is None:
            return  # the table's ranks do not make as many nodes
        assert found.rate >= expected_length(uniform, table) / time(levels_of(uniform)) - 1e-9

    @pytest.mark.parametrize("nodes", [4, 8, 16, 32])
    @pytest.mark.parametrize("branches", [2, 3, 4])
    def test_beats_the_uniform_tree_by_far_where_acceptance_is_uneven(self, nodes: int, branches: int) -> None:
        table = [list(RANK_ACCEPTANCE)]
        found = best_shape(table, lambda levels: 1.0 + 0.05 * sum(levels), Bounds(nodes, 16, frozenset({nodes})))
        assert found is not None
        assert found.tokens > 1.1 * expected_length(uniform_shape(nodes, branches), table)

    def test_a_steep_curve_makes_it_small_and_a_flat_one_large(self) -> None:
        table = [[0.7, 0.12, 0.05]]
        sizes = []
        for slope in (2.0, 0.5, 0.1, 0.0):
            shape = best_shape(table, lambda levels, slope=slope: 1 + slope * sum(levels), Bounds(16, 8))  # type: ignore[misc]
            assert shape is not None
            sizes.append(len(shape.parents))
        assert sizes[0] == 1 and sizes == sorted(sizes) and sizes[-1] == 16

    def test_steps_of_a_curve_are_used_up(self) -> None:
        """Passes of up to 8 positions take the same time, 9 take half as long again: 7 nodes and the last token."""
        found = best_shape([[0.6, 0.2]], lambda levels: 1.0 if sum(levels) < 8 else 1.5, Bounds(12, 8))
        assert found is not None and len(found.parents) == 7

    def test_dear_levels_make_it_flat(self) -> None:
        cheap, dear = (
            best_shape([[0.5, 0.3, 0.1]], lambda levels, cost=cost: 1 + cost * len(levels), Bounds(6, 6))  # type: ignore[misc]
            for cost in (0.01, 0.5)
        )
        assert cheap is not None and dear is not None
        assert depths(parents(*cheap.parents)).max() > depths(parents(*dear.parents)).max()

    @pytest.mark.parametrize(
        "bounds", [Bounds(0, 4), Bounds(4, 0), Bounds(4, 4, frozenset()), Bounds(4, 4, frozenset({7}))]
    )
    def test_nothing_allowed(self, bounds: Bounds) -> None:
        assert best_shape([[0.6, 0.3]], lambda levels: 1.0, bounds) is None

    def test_only_sizes_that_are_allowed(self) -> None:
        found = best_shape([[0.9, 0.05]], lambda levels: 1.0, Bounds(12, 12, frozenset({3, 7, 15})))
        assert found is not None and len(found.parents) == 7


class TestExpectedLength:
    @pytest.mark.parametrize("seed", range(5))
    def test_by_walking(self, seed: int) -> None:
        """40 000 walks down a random tree of 9 nodes, 4 sigma: at every node the target's choice has one rank."""
        random = np.random.default_rng(seed)
        tree = parents(*(int(random.integers(-1, node)) for node in range(9)))
        table = [sorted(random.dirichlet([3, 2, 1, 1, 1, 1, 1, 1, 1, 4])[:9].tolist(), reverse=True) for _ in range(2)]
        below = children(tree)
        lengths = []
        for _ in range(40_000):
            node, length = -1, 1
            while (rank := int(np.searchsorted(np.cumsum(row(table, length)), random.random()))) < len(
                below.get(node, [])
            ):
                node, length = below[node][rank], length + 1
            lengths.append(length)
        assert expected_length(tree, table) == pytest.approx(np.mean(lengths), abs=4 * float(np.std(lengths)) / 200)

    @given(acceptance=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
    def test_of_a_chain_is_the_speed_model_s(self, acceptance: list[float]) -> None:
        chain = range(-1, len(acceptance) - 1)
        assert expected_length(chain, [[each] for each in acceptance]) == pytest.approx(expected_tokens(acceptance))

    def test_more_siblings_than_the_table_has(self) -> None:
        assert expected_length([-1, -1, -1], [[0.6, 0.3]]) == pytest.approx(1.9)
        assert expected_length([], [[0.6]]) == 1.0


class TestUniformShape:
    @pytest.mark.parametrize(
        ("nodes", "branches", "levels"), [(14, 2, [2, 4, 8]), (7, 3, [3, 4]), (4, 1, [1, 1, 1, 1])]
    )
    def test_levels(self, nodes: int, branches: int, levels: list[int]) -> None:
        tree = uniform_shape(nodes, branches)
        assert tree.dtype == np.int32 and is_tree(tree)
        assert levels_of(tree) == levels
        assert all(len(kids) <= branches for kids in children(tree).values())


class TestTreeBuilder:
    def test_common_prefixes_are_stored_once(self) -> None:
        builder = TreeBuilder(10)
        builder.add([5, 6, 7])
        builder.add([5, 6, 8])
        builder.add([9])
        builder.add([5, 6])
        assert builder.tokens == [5, 6, 7, 8, 9]
        assert builder.parents == [-1, 0, 1, 1, -1]

    def test_same_token_below_different_parents(self) -> None:
        builder = TreeBuilder(10)
        builder.add([1, 1])
        builder.add([2, 1])
        assert (builder.tokens, builder.parents) == ([1, 1, 2, 1], [-1, 0, -1, 2])

    def test_what_does_not_fit_is_left_out(self) -> None:
        builder = TreeBuilder(3)
        builder.add([1, 2])
        builder.add([3, 4, 5])
        builder.add([1, 2, 6])
        builder.add([7])
        assert (builder.tokens, builder.parents) == ([1, 2, 3], [-1, 0, -1])

    @given(paths=st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=6), room=st.integers(0, 12))
    def test_is_the_trie_of_the_paths(self, paths: list[list[int]], room: int) -> None:
        builder = TreeBuilder(room)
        for path in paths:
            builder.add(path)
        tree = parents(*builder.parents)
        assert is_tree(tree) and len(builder.tokens) == len(tree) <= room
        spelt = [tuple(builder.tokens[up] for up in path_to(tree, node)) for node in range(len(tree))]
        prefixes = {tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)}
        assert len(set(spelt)) == len(spelt)
        assert set(spelt) <= prefixes
        assert len(spelt) == min(room, len(prefixes))
