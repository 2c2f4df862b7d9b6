"""Speculative decoding of a known text, without a model: how many rounds, how wide, how much accepted.

With probabilities of acceptance instead of yes and no the numbers are expectations: the chance that a round starts at a
position is carried forward through the text (a renewal process), exactly, with no sampling.

P positions of the text, S settings replayed at once, D longest chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import InvalidValue
from foredraft.speed import AT_ONCE
from foredraft.trees import children, depths
from foredraft.types import Floats


@dataclass(frozen=True, slots=True)
class Copies:
    """What n-gram lookup would propose at each position: ``proposed`` int[P] tokens, of which the first ``matched``
    int[P] are the text's own."""

    proposed: NDArray[np.int16]
    matched: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.proposed)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Of one text under S settings. ``tokens`` float64[S] that rounds wrote; ``widths`` float64[S, D + 2]: rounds whose
    pass scores so many positions; ``passes`` float64[S] of the draft model, reading what n-gram lookup wrote included;
    ``hits`` and ``trials`` float64[S, D]: accepted and evaluated at depth 1..D; ``hit_at`` and ``tried_at`` float64[S,
    P]: the same by position of the text."""

    tokens: Floats
    widths: Floats
    passes: Floats
    hits: Floats
    trials: Floats
    hit_at: Floats
    tried_at: Floats

    @property
    def rounds(self) -> Floats:
        """Passes of the target, float64[S]."""
        return np.asarray(self.widths.sum(axis=1), np.float64)


@dataclass(frozen=True, slots=True)
class Text:
    """``length``: positions; ``limit``: tokens that might have been generated (a text that ends by itself is shorter);
    ``copies`` where n-gram lookup is asked first."""

    length: int
    limit: int
    copies: Copies | None = None

    def __post_init__(self) -> None:
        if self.limit < self.length:
            raise InvalidValue("limit of a text", self.limit, f"at least its length, {self.length}")
        if self.copies is not None and len(self.copies) != self.length:
            raise InvalidValue("copies", len(self.copies), f"one for each of the {self.length} positions")


def replay(text: Text, accept: Floats | None, lengths: Sequence[int], weight: Floats | None = None) -> Replayed:
    """Rounds of chains of ``lengths`` int[S] ≥ 0 over ``text``. ``accept`` float64[S, P]: probability that the draft
    model's token is accepted at each position if the text before it is (None: there is no model).

    ``weight`` float64[P]: how much a round that starts at each position counts, in all numbers alike (None: 1).

    As in the loop: a round at position t drafts at most as many tokens as are left but one, and its last token is the
    target's own.

    >>> found = replay(Text(8, 8), np.ones((1, 8)), [3])
    >>> found.rounds.tolist(), found.widths[0].tolist(), found.trials[0].tolist()
    ([2.0], [0.0, 0.0, 0.0, 0.0, 2.0], [2.0, 2.0, 2.0])
    """
    walk = _Walk(text, accept, lengths, np.ones(text.length) if weight is None else weight)
    for position in range(text.length):
        walk.visit(position)
    return walk.result()


class _Walk:
    def __init__(self, text: Text, accept: Floats | None, lengths: Sequence[int], weight: Floats) -> None:
        self._text = text
        self._accept = accept
        self._weight = weight
        self._lengths = np.asarray(lengths, np.int64)
        settings, longest = len(lengths), max(lengths, default=0)
        if accept is not None and accept.shape != (settings, text.length):
            raise InvalidValue("accept", accept.shape, f"({settings}, {text.length})")
        self._start = np.zeros((settings, text.length + longest + 2))
        self._start[:, 0] = 1.0
        self._widths = np.zeros((settings, longest + 2))
        self._tokens, self._passes = np.zeros((2, settings))
        self._hits, self._trials = np.zeros((2, settings, longest))
        self._hit_at, self._tried_at = np.zeros((2, settings, text.length))

    def visit(self, position: int) -> None:
        """Rounds that start here."""
        room = min(self._text.limit - position - 1, len(self._widths[0]) - 2)
        copies = self._text.copies
        if copies is not None and copies.proposed[position] > 0 and room > 0:
            self._copy(position, room, int(copies.proposed[position]), int(copies.matched[position]))
        elif self._accept is not None:
            self._draft(position, room)
        else:
            self._plain(position, self._start[:, position])

    def _plain(self, position: int, mass: Floats) -> None:
        self._widths[:, 1] += mass * self._weight[position]
        self._tokens += mass * self._weight[position]
        self._start[:, position + 1] += mass

    def _copy(self, position: int, room: int, proposed: int, matched: int) -> None:
        """All that is known beforehand: what is accepted, and where the next round starts."""
        left = self._text.length - position
        for setting, longest in enumerate(self._lengths.tolist()):
            drafted = min(longest, proposed, room)
            good = min(drafted, matched, left)
            tried = min(good + 1, drafted, left)
            self._start[setting, position + good + 1] += self._start[setting, position]
            mass = self._start[setting, position] * self._weight[position]
            self._widths[setting, drafted + 1] += mass
            self._tokens[setting] += mass * min(good + 1, left)
            if self._accept is not None:  # the draft model reads later what was written without it
                self._passes[setting] += mass * (good + 1) / AT_ONCE
            self._trials[setting, :tried] += mass
            self._hits[setting, :good] += mass
            self._tried_at[setting, position : position + tried] += mass
            self._hit_at[setting, position : position + good] += mass

    def _draft(self, position: int, room: int) -> None:
        assert self._accept is not None
        mass, weight = self._start[:, position], self._weight[position]
        drafted = np.minimum(self._lengths, max(room, 0))
        self._widths[np.arange(len(drafted)), drafted + 1] += mass * weight
        self._passes += drafted * mass * weight
        reach, most = mass.copy(), int(drafted.max(initial=0))
        for depth in range(most):
            self._all_accepted(position, depth, drafted, reach)
            at = position + depth
            if at >= self._text.length:
                return  # the text ended with an accepted token
            good = reach * self._accept[:, at]
            self._tokens += reach * weight
            self._trials[:, depth] += reach * weight
            self._hits[:, depth] += good * weight
            self._tried_at[:, at] += reach * weight
            self._hit_at[:, at] += good * weight
            self._start[:, at + 1] += reach - good
            reach = good
        self._all_accepted(position, most, drafted, reach)

    def _all_accepted(self, position: int, depth: int, drafted: NDArray[np.int64], reach: Floats) -> None:
        """Where ``depth`` tokens were drafted and all accepted, the target's own follows and then the next round."""
        whole = drafted == depth
        if position + depth < self._text.length:
            self._tokens[whole] += reach[whole] * self._weight[position]
        self._start[whole, position + depth + 1] += reach[whole]
        reach[whole] = 0.0

    def result(self) -> Replayed:
        """What was counted."""
        return Replayed(
            self._tokens,
            self._widths,
            self._passes,
            self._hits,
            self._trials,
            self._hit_at,
            self._tried_at,
        )


def replay_tree(text: Text, rank: NDArray[np.int8], parents: Sequence[int]) -> tuple[int, list[int]]:
    """Rounds over ``text`` with the tree ``parents`` (siblings in the order of their ranks), and how many of them
    accepted 0, 1, 2, … tokens. ``rank`` int[P]: which of the draft's guesses the token of each position is, -1 for
    none.

    Along an accepted path the text before a node is the text itself, so these ranks are all that a round depends on.

    >>> replay_tree(Text(6, 6), np.array([0, 1, 0, 0, -1, 0], np.int8), [-1, -1, 0, 0])
    (3, [1, 1, 1])
    """
    kids = children(np.array(parents, np.int32))
    deepest = int(depths(np.array(parents, np.int32)).max(initial=0))
    position = rounds = 0
    accepted = [0] * (deepest + 1)
    while position < text.length:
        room = min(deepest, text.limit - position - 1, text.length - position)
        node, depth = -1, 0
        while depth < room:
            below, at = kids.get(node, []), int(rank[position + depth])
            if not 0 <= at < len(below):
                break
            node, depth = below[at], depth + 1
        rounds += 1
        accepted[depth] += 1
        position += depth + 1
    return rounds, accepted
