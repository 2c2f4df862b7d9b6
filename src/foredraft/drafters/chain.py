"""The first drafter with something to say, or several of them in one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from foredraft.drafters.base import Drafter, ReadsStates
from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft, Logits


class ChainDrafter:
    """Asks its drafters in order; the first non-empty proposal wins. One that raises is left out for the rest of
    the request, the others go on."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = tuple(drafters)
        self._failed: dict[int, str] = {}
        self._asked: dict[int, tuple[int, ...]] = {}  # drafter -> where its nodes lie in the proposal
        self.name = "+".join(drafter.name for drafter in drafters)

    def begin(self, prompt: Sequence[int]) -> None:
        """Begin all of them."""
        self._failed.clear()
        self._asked = {}
        for index, drafter in enumerate(self._drafters):
            try:
                drafter.begin(prompt)
            except Exception as error:  # noqa: BLE001  a draft must never take the answer down, whatever it raises
                self._leave_out(index, error)

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        """The first non-empty proposal, under its own drafter's name; else all reasons joined. With ``budget.merge``
        all proposals become one tree (rule ``coupled`` only: siblings of different laws cannot be accepted and rejected
        in turn)."""
        merge = budget.merge and sampler.rule == "coupled"
        reasons, found, passes = [], [], 0
        room = budget.nodes
        for index in self._order(budget):
            draft = self._ask(
                index, context, budget.of(self._drafters[index].name).within(room, room, tree=True), sampler
            )
            passes += draft.passes
            if not len(draft):
                reasons.append(draft.reason or f"{self._drafters[index].name}: nothing to propose")
                continue
            found.append((index, draft))
            room -= len(draft)
            if not merge or room <= 0:
                break
        self._asked = {}
        if not found:
            return Draft.empty(self.name, "; ".join(reasons) or f"{self.name}: budget 0", passes)
        if len(found) == 1:
            index, draft = found[0]
            self._asked = {index: tuple(range(len(draft)))}
            return draft if passes == draft.passes else replace(draft, passes=passes)
        merged = merge_drafts([draft for _, draft in found])
        self._asked = {index: numbers for (index, _), numbers in zip(found, merged.numbers, strict=True)}
        return replace(merged.draft, passes=passes)

    def _order(self, budget: Budget) -> list[int]:
        """The drafters to ask, in the budget's order where it names them."""
        indices = range(len(self._drafters))
        if not budget.sources:
            return list(indices)
        wanted = list(budget.sources)
        named = [index for index in indices if budget.of(self._drafters[index].name).nodes > 0]
        return sorted(named, key=lambda index: wanted.index(self._drafters[index].name))

    def _ask(self, index: int, context: History, budget: Budget, sampler: Sampler) -> Draft:
        if index in self._failed:
            return Draft.empty(self.name, self._failed[index])
        length = len(context)
        try:
            return self._drafters[index].propose(context, budget, sampler)
        except Exception as error:  # noqa: BLE001  see begin
            context.shrink(length)
            self._leave_out(index, error)
            return Draft.empty(self.name, self._failed[index])

    def observe(self, accepted: Sequence[int]) -> None:
        """Tell each one that proposed how far its own tokens went."""
        for index, numbers in self._asked.items():
            own = [numbers.index(node) for node in takewhile(numbers.__contains__, accepted)]
            try:
                self._drafters[index].observe(own)
            except Exception as error:  # noqa: BLE001  see begin
                self._leave_out(index, error)

    def read_states(self, first: int, states: Logits, text: Sequence[int]) -> None:
        """Passed on to those that want them."""
        for index, drafter in enumerate(self._drafters):
            if isinstance(drafter, ReadsStates) and index not in self._failed:
                try:
                    drafter.read_states(first, states, text)
                except Exception as error:  # noqa: BLE001  see begin
                    self._leave_out(index, error)

    def _leave_out(self, index: int, error: Exception) -> None:
        self._failed[index] = f"{self._drafters[index].name} failed: {error}"

    def close(self) -> None:
        """Close all of them."""
        for drafter in self._drafters:
            drafter.close()


@dataclass(frozen=True)
class Merged:
    """One tree of several proposals; ``numbers``: for each proposal where its nodes lie in the tree."""

    draft: Draft
    numbers: list[tuple[int, ...]]


def merge_drafts(drafts: Sequence[Draft]) -> Merged:
    """All paths of ``drafts`` (without laws) in one tree: equal beginnings are stored once, earlier drafts' children
    are tried first."""
    tokens: list[int] = []
    parents: list[int] = []
    confidence: list[float] = []
    index: dict[tuple[int, int], int] = {}
    numbers = []
    for draft in drafts:
        own: list[int] = []
        sure = draft.confidence or (1.0,) * len(draft)
        for node, (token, parent) in enumerate(zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True)):
            above = own[parent] if parent >= 0 else -1
            if (above, token) not in index:
                index[above, token] = len(tokens)
                tokens.append(token)
                parents.append(above)
                confidence.append(sure[node])
            own.append(index[above, token])
        numbers.append(tuple(own))
    source = "+".join(dict.fromkeys(draft.source for draft in drafts))
    tree = Draft(np.array(tokens, np.int32), np.array(parents, np.int32), None, source, None, tuple(confidence))
    return Merged(tree, numbers)
