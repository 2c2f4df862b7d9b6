"""Trees as parents arrays: masks, paths, the best shape, and merging paths."""

from __future__ import annotations

import doctest
import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft import trees
from foredraft.trees import (
    RANK_ACCEPTANCE,
    TreeBuilder,
    ancestor_mask,
    children,
    depths,
    is_tree,
    path_to,
    static_shape,
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
