"""Token trees as ``parents`` arrays: depth, ancestor mask, paths, and the shape to draft for a node budget.

A tree of N nodes is int32[N]: ``parents[i] < i`` is the parent's index, -1 the root (the last committed token).
Knows nothing about tokens, laws or engines.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
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
    return np.array(_static_shape(budget, tuple(acceptance)), np.int32)


@lru_cache(maxsize=256)
def _static_shape(budget: Budget, acceptance: tuple[float, ...]) -> tuple[int, ...]:
    taken: list[tuple[int, ...]] = []
    heap: list[tuple[float, tuple[int, ...], float]] = [(-acceptance[0], (0,), -1.0)]
    while heap and len(taken) < budget.nodes:
        score, ranks, above = heapq.heappop(heap)
        taken.append(ranks)
        sibling = ranks[-1] + 1
        if sibling < budget.branches:
            share = acceptance[min(sibling, len(acceptance) - 1)]
            heapq.heappush(heap, (above * share, (*ranks[:-1], sibling), above))
        if len(ranks) < budget.depth:
            heapq.heappush(heap, (score * acceptance[0], (*ranks, 0), score))
    taken.sort(key=lambda ranks: (len(ranks), ranks))
    index = {ranks: node for node, ranks in enumerate(taken)}
    return tuple(index.get(ranks[:-1], -1) for ranks in taken)


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
