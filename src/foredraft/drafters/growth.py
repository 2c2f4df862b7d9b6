"""A draft under construction: which nodes get children next, and which ones are proposed in the end.

Along a planned shape (chains, static trees), or where the draft is confident (dynamic trees, EAGLE-2, arXiv 2406.16858,
§4). Knows no engine: a drafter feeds it logits rows.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from foredraft.sampling import History, Sampler
from foredraft.trees import children, path_to, static_shape
from foredraft.types import Budget, Draft, Law, Logits


class Growth(Protocol):
    """What a drafter feeds rows into. ``most_fed``: nodes that it may have to hold in its cache at once."""

    tokens: list[int]
    parents: list[int]

    @property
    def most_fed(self) -> int:
        """Nodes fed at most."""
        ...

    def put(self, node: int, row: Logits) -> None:
        """The logits ``row`` float32[V] behind ``node`` (-1: behind the text)."""
        ...

    def next_level(self) -> list[int]:
        """Nodes to be fed in one pass, each once and after its parent; empty when the tree is complete."""
        ...

    def finish(self) -> Finished:
        """The proposal."""
        ...


def growth(budget: Budget, sampler: Sampler, context: History) -> Growth:
    """A growth for ``budget``: dynamic where it says so, else along its shape, or the best one for its size.

    A rule that accepts and rejects (all but ``coupled``) is exact only if everything drawn is proposed, whatever it is:
    there no tree is dynamic, and a gate says where to stop drawing, not what to keep.
    """
    nodes = Nodes(sampler, context)
    if budget.dynamic and budget.branches > 1 and nodes.droppable:
        return DynamicGrowth(budget, nodes)
    return StaticGrowth(budget, nodes)


@dataclass(frozen=True)
class Finished:
    """The proposed ``nodes`` by their numbers in the growth, parents first, and what is known of them."""

    nodes: list[int]
    tokens: list[int]
    parents: list[int]
    laws: list[Law | None]
    confidence: list[float]

    def draft(self, name: str, passes: int) -> Draft:
        """As a proposal, nodes numbered anew."""
        index = {-1: -1} | {node: number for number, node in enumerate(self.nodes)}
        laws = tuple(law for node in self.nodes if (law := self.laws[node]) is not None)
        return Draft(
            np.array([self.tokens[node] for node in self.nodes], np.int32),
            np.array([index[self.parents[node]] for node in self.nodes], np.int32),
            laws if laws and len(laws) == len(self.nodes) else None,
            name,
            None,
            tuple(self.confidence[node] for node in self.nodes),
            passes,
        )


@dataclass
class Nodes:
    """All nodes drafted, and how sure the draft was of each."""

    sampler: Sampler
    context: History
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    laws: list[Law | None] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)

    def add_children(self, node: int, row: Logits, count: int) -> list[int]:
        """Draw up to ``count`` children of ``node``; their numbers in the order to be tried."""
        length = len(self.context)
        for ancestor in path_to(self.parents, node):
            self.context.push(self.tokens[ancestor])
        found = self.sampler.children(row, self.context, count)
        self.context.shrink(length)
        first = len(self.tokens)
        self.tokens += found.ids.tolist()
        self.parents += [node] * len(found.ids)
        self.laws += [found.law] * len(found.ids)
        self.confidence += found.confidence
        return list(range(first, len(self.tokens)))

    @property
    def droppable(self) -> bool:
        """True if a drawn node may be left out because of what it is: the output does not depend on the draft (rule
        ``coupled``), or nothing is drawn at random (greedy)."""
        return self.sampler.rule == "coupled" or self.sampler.params.greedy

    def ends(self, node: int) -> bool:
        """True if nothing can follow ``node``."""
        return self.sampler.ends(self.tokens[node])

    def finished(self, nodes: list[int]) -> Finished:
        """These nodes as a proposal."""
        return Finished(nodes, self.tokens, self.parents, self.laws, self.confidence)


class StaticGrowth:
    """Along a planned shape; a chain also stops where its gate says so. A node at the end of the text gets no
    children."""

    def __init__(self, budget: Budget, nodes: Nodes) -> None:
        shape = np.array(budget.shape, np.int32) if budget.shape else static_shape(budget)
        self._planned = children(shape)
        self._nodes = nodes
        self._gate = budget.gate if budget.branches == 1 else None
        self._slot: dict[int, int] = {-1: -1}  # drafted node -> node of the shape
        self._fresh: list[int] = []
        self._values: list[float] = []  # of a gated chain: the probability that this token is reached and accepted
        self.most_fed = len(shape)
        self.tokens, self.parents = nodes.tokens, nodes.parents

    def put(self, node: int, row: Logits) -> None:
        """Draw the planned children of ``node``."""
        planned = self._planned.get(self._slot[node], [])
        if not planned:
            return
        added = self._nodes.add_children(node, row, len(planned))
        self._slot.update(zip(added, planned, strict=False))
        self._fresh += added
        if self._gate is not None:
            above = self._values[-1] if self._values else 1.0
            depth = len(self._values) + 1
            self._values += [above * self._gate.survival(depth, 0, self._nodes.confidence[new]) for new in added]

    def next_level(self) -> list[int]:
        """The nodes added since the last call that are to have children."""
        level = [node for node in self._fresh if self._slot[node] in self._planned and not self._nodes.ends(node)]
        self._fresh = []
        if level and self._gate is not None and not self._gate.more(self._values):
            return []
        return level

    def finish(self) -> Finished:
        """All nodes, or those of a chain that its gate keeps."""
        count = len(self.tokens)
        if self._gate is not None and self._nodes.droppable:
            count = self._gate.kept(self._values)
        return self._nodes.finished(list(range(count)))


class DynamicGrowth:
    """Level by level the ``branches`` nodes that are likeliest to be reached get ``branches`` children each; of all
    nodes the best ``nodes`` are proposed. A node's value is the product of its path's acceptance as the gate estimates
    it (the draft's own confidence without one), so a parent is never worth less than its child."""

    def __init__(self, budget: Budget, nodes: Nodes) -> None:
        self._budget = budget
        self._nodes = nodes
        self._value: dict[int, float] = {-1: 1.0}
        self._depth: dict[int, int] = {-1: 0}
        self._fresh: list[int] = []
        self.most_fed = budget.branches * (budget.depth - 1) + 1
        self.tokens, self.parents = nodes.tokens, nodes.parents

    def put(self, node: int, row: Logits) -> None:
        """Draw the children of ``node``."""
        depth, gate = self._depth[node] + 1, self._budget.gate
        for rank, new in enumerate(self._nodes.add_children(node, row, self._budget.branches)):
            sure = self._nodes.confidence[new]
            share = gate.survival(depth, rank, sure) if gate is not None else sure
            self._value[new], self._depth[new] = self._value[node] * min(share, 1.0), depth
            self._fresh.append(new)

    def next_level(self) -> list[int]:
        """The most promising of the nodes drafted last, if a child of theirs could be among the best of all: below the
        last of these nothing better is to be found."""
        best = self._best(self._budget.nodes)
        open_nodes = set(best if len(best) < self._budget.nodes else best[:-1])
        level = [
            node
            for node in self._fresh
            if node in open_nodes and self._depth[node] < self._budget.depth and not self._nodes.ends(node)
        ]
        level = sorted(heapq.nlargest(self._budget.branches, level, key=self._rank))
        self._fresh = []
        gate = self._budget.gate
        if level and gate is not None:
            top = max(level, key=self._rank)
            if not gate.more([self._value[node] for node in path_to(self.parents, top)]):
                return []
        return level

    def finish(self) -> Finished:
        """The best nodes, as many as the gate keeps, parents first."""
        best = self._best(self._budget.nodes)
        if self._budget.gate is not None:
            best = best[: self._budget.gate.kept([self._value[node] for node in best])]
        return self._nodes.finished(sorted(best))

    def _rank(self, node: int) -> tuple[float, int]:
        return self._value[node], -node

    def _best(self, count: int) -> list[int]:
        """The ``count`` most valuable nodes; of equals the older one, so that parents come before their children."""
        return heapq.nlargest(count, range(len(self.tokens)), key=self._rank)
