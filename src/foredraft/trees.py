"""Token trees as ``parents`` arrays: depth, ancestor mask, paths, and the shape to draft for a node budget.

A tree of N nodes is int32[N]: ``parents[i] < i`` is the parent's index, -1 the root (the last committed token).
Knows nothing about tokens, laws or engines.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from foredraft.types import Budget, Ids

RANK_ACCEPTANCE = (0.70, 0.12, 0.05, 0.03, 0.02, 0.015, 0.01, 0.008)
"""Assumed probability that the child of rank r is the target's choice, until it is measured: only the order of
magnitude matters for the shape. A further rank counts like the last one."""


def is_tree(parents: Ids) -> bool:
    """True if every node's parent stands before it."""
    return bool((parents < np.arange(len(parents))).all() and (parents >= -1).all())


def depths(parents: Ids) -> Ids:
    """Depth of every node, 1 for a child of the root, int32[N].

    >>> depths(np.array([-1, 0, 0, 1], np.int32)).tolist()
    [1, 2, 2, 3]
    """
    result = np.zeros(len(parents), np.int32)
    for node, parent in enumerate(parents.tolist()):
        result[node] = 1 if parent < 0 else result[parent] + 1
    return result


def children(parents: Ids) -> dict[int, list[int]]:
    """Children of every inner node and of the root (-1), in index order."""
    result: dict[int, list[int]] = {}
    for node, parent in enumerate(parents.tolist()):
        result.setdefault(parent, []).append(node)
    return result


def ancestor_mask(parents: Ids) -> NDArray[np.bool_]:
    """mask[i, j] is True if node i sees node j (itself and its ancestors), bool[N, N].

    >>> ancestor_mask(np.array([-1, 0, -1], np.int32)).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    mask = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents.tolist()):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


def path_to(parents: Sequence[int] | Ids, node: int) -> list[int]:
    """Node indices from the root's child down to ``node``; empty for the root (-1)."""
    path = []
    while node >= 0:
        path.append(int(node))
        node = int(parents[node])
    return path[::-1]


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree to draft: ``parents``, the ``tokens`` a round with it is expected to emit (bonus included), and the time
    that such a round takes."""

    parents: tuple[int, ...]
    tokens: float
    time: float

    @property
    def rate(self) -> float:
        """Expected tokens per unit of time."""
        return self.tokens / self.time


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a tree: at most ``nodes`` nodes, ``depth`` levels; ``sizes``: the only node counts allowed (None = any)."""

    nodes: int
    depth: int
    sizes: frozenset[int] | None = None


def best_shape(
    acceptance: Sequence[Sequence[float]], time: Callable[[Sequence[int]], float], bounds: Bounds
) -> Shape | None:
    """The tree with the most expected tokens per time: acceptance by child rank against time by width.

    ``acceptance[d][r]``: probability that the child of rank r at depth d + 1 is the target's choice given that its
    parent is (deeper levels are like the last one given). ``time(levels)``: a round's time for that many nodes at depth
    1, 2, …. None if not even one node is allowed.

    Dynamic programming over (depth limit, nodes): within a depth limit the tree of n + 1 nodes is the best tree of n
    nodes and its best open node, because a child is never likelier to be reached than its parent (the positional model
    of Sequoia, arXiv 2402.12374, §4.1); every one of them is set against its time.

    >>> best_shape([[0.6, 0.3]], lambda levels: 1.0 + 0.1 * sum(levels) + 0.1 * len(levels), Bounds(3, 3)).parents
    (-1, -1, 0)
    """
    best: Shape | None = None
    for depth in range(1, bounds.depth + 1):
        open_nodes: list[_Open] = [(-acceptance[0][0], (0,), -1.0)]
        taken: list[tuple[int, ...]] = []
        levels, tokens = [0] * depth, 1.0
        while open_nodes and len(taken) < bounds.nodes:
            value = -_take(open_nodes, acceptance, depth, taken)
            tokens += value
            levels[len(taken[-1]) - 1] += 1
            if bounds.sizes is not None and len(taken) not in bounds.sizes:
                continue
            spent = time([count for count in levels if count])
            if best is None or tokens / spent > best.rate * (1 + 1e-9):
                best = Shape(_parents(taken), tokens, spent)
    return best


_Open = tuple[float, tuple[int, ...], float]
"""A node that could be added: minus its value, its ranks along the path, minus its parent's value."""


def _take(heap: list[_Open], acceptance: Sequence[Sequence[float]], depth: int, taken: list[tuple[int, ...]]) -> float:
    """Move the best open node to ``taken`` and open its next sibling and its first child; returns minus its value."""
    value, ranks, above = heapq.heappop(heap)
    taken.append(ranks)
    here = acceptance[min(len(ranks), len(acceptance)) - 1]
    sibling = ranks[-1] + 1
    if sibling < len(here):
        heapq.heappush(heap, (above * here[sibling], (*ranks[:-1], sibling), above))
    if len(ranks) < depth:
        below = acceptance[min(len(ranks) + 1, len(acceptance)) - 1]
        heapq.heappush(heap, (value * below[0], (*ranks, 0), value))
    return value


def _parents(taken: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Nodes level by level, siblings by rank."""
    ordered = sorted(taken, key=lambda ranks: (len(ranks), ranks))
    index = {ranks: node for node, ranks in enumerate(ordered)}
    return tuple(index.get(ranks[:-1], -1) for ranks in ordered)


def uniform_shape(nodes: int, branches: int) -> Ids:
    """``branches`` children for every node, level by level, until there are ``nodes``, int32[nodes].

    >>> uniform_shape(5, 2).tolist()
    [-1, -1, 0, 0, 1]
    """
    return np.array([node // branches - 1 for node in range(nodes)], np.int32)


def expected_length(parents: Sequence[int] | Ids, acceptance: Sequence[Sequence[float]]) -> float:
    """Tokens that a round with this tree is expected to emit, bonus included; ``acceptance`` as in ``best_shape``.

    >>> round(expected_length([-1, 0, -1], [[0.6, 0.3]]), 2)
    2.26
    """
    value, depth = {-1: 1.0}, {-1: 0}
    used: dict[int, int] = {}
    total = 1.0
    for node, parent in enumerate(parents):
        above = int(parent)
        rank = used[above] = used.get(above, -1) + 1
        depth[node] = depth[above] + 1
        here = acceptance[min(depth[node], len(acceptance)) - 1]
        value[node] = value[above] * (here[rank] if rank < len(here) else 0.0)
        total += value[node]
    return total


def static_shape(budget: Budget, acceptance: Sequence[float] = RANK_ACCEPTANCE) -> Ids:
    """The tree with the highest expected accepted length among all with ``budget.nodes`` nodes, int32[N].

    The expected length is the sum over nodes of the product of ``acceptance[rank]`` along their path; a child
    never has a higher product than its parent, so taking the best open node each time is optimal (the positional
    model of Sequoia, arXiv 2402.12374, §4.1, without its time term). Nodes come level by level, siblings by rank.

    >>> static_shape(Budget(4, 4, 1)).tolist()
    [-1, 0, 1, 2]
    >>> static_shape(Budget(4, 3, 2), (0.6, 0.3)).tolist()
    [-1, -1, 0, 2]
    """
    return np.array(_static_shape(budget.nodes, budget.depth, budget.branches, tuple(acceptance)), np.int32)


@lru_cache(maxsize=256)
def _static_shape(nodes: int, depth: int, branches: int, acceptance: tuple[float, ...]) -> tuple[int, ...]:
    if not nodes:
        return ()
    ranks = [acceptance[min(rank, len(acceptance) - 1)] for rank in range(branches)]
    open_nodes: list[_Open] = [(-ranks[0], (0,), -1.0)]
    taken: list[tuple[int, ...]] = []
    while open_nodes and len(taken) < nodes:
        _take(open_nodes, [ranks], depth, taken)
    return _parents(taken)


class TreeBuilder:
    """Merges token paths into one tree: a common prefix is stored once, siblings stay in the order added."""

    def __init__(self, nodes: int) -> None:
        self._room = nodes
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._index: dict[tuple[int, int], int] = {}

    def add(self, path: Sequence[int]) -> None:
        """Add one path from the root; what does not fit into the node budget is left out."""
        parent = -1
        for token in path:
            node = self._index.get((parent, token))
            if node is None:
                if len(self.tokens) >= self._room:
                    return
                node = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(parent)
                self._index[parent, token] = node
            parent = node
