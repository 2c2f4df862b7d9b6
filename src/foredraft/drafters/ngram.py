"""Drafts by copying: where did the last tokens occur before, and what came next?

Prompt lookup (Saxena 2023; in REST/LLMA's family) over prompt + output of one request. Hash chains as in LZ77 keep
the cost per token constant, whatever the context length. Needs no model.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import numpy as np

from foredraft.errors import InvalidValue
from foredraft.sampling import History, Sampler
from foredraft.trees import TreeBuilder
from foredraft.types import Budget, Draft, Gate, Trial

_NEAR = 4
"""How many matched tokens being next to the copy point is worth."""
_RESUMES = 2
"""Accepted tokens, see ``_copied``, from which on the copy point counts."""


@dataclass(frozen=True, slots=True)
class NgramConfig:
    """``min_n``/``max_n``: shortest and longest suffix matched. ``candidates``: earlier occurrences compared per
    level. ``resume``: after a miss, a single-token match this near behind the copy point also counts, so that copying
    goes on after an edited word (0 = off). ``cautious``: a match of n tokens drafts at most n - 1, unless a
    controller's gate decides."""

    min_n: int = 2
    max_n: int = 16
    candidates: int = 32
    resume: int = 16
    cautious: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.min_n <= self.max_n <= 64:
            raise InvalidValue("min_n, max_n", (self.min_n, self.max_n), "1 <= min_n <= max_n <= 64")
        if not 1 <= self.candidates <= 4096:
            raise InvalidValue("candidates", self.candidates, "1 to 4096")
        if not 0 <= self.resume <= 4096:
            raise InvalidValue("resume", self.resume, "0 (off) to 4096")


class _Level:
    """All occurrences of the n-grams of one length: newest end position, and for every end the one before it."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.newest: dict[tuple[int, ...], int] = {}
        self.before: list[int] = []

    def add(self, tokens: Sequence[int], end: int) -> None:
        """Index the n-gram that ends just before ``end``; called for end = 1, 2, 3, …"""
        if end < self.n:
            self.before.append(-1)
            return
        key = tuple(tokens[end - self.n : end])
        self.before.append(self.newest.get(key, -1))
        self.newest[key] = end


class NgramDrafter:
    """Longest suffix match over prompt + output; of equally good matches the newest comes first. With
    ``budget.branches`` > 1 the continuations of several matches are merged into one tree.

    Lookup levels are n = min_n, 2·min_n, 4·min_n, … ≤ max_n: the longest level with an occurrence is searched, its
    candidates are compared backwards up to max_n tokens. A match near the copy point (where the last accepted copy
    stopped) counts ``_NEAR`` tokens longer.
    """

    name = "ngram"

    def __init__(self, config: NgramConfig | None = None, *, barred: frozenset[int] = frozenset()) -> None:
        self._config = config or NgramConfig()
        self._barred = barred
        self._reset()

    def _reset(self) -> None:
        self._tokens: list[int] = []
        self._levels: list[_Level] = []
        n = self._config.min_n
        while n <= self._config.max_n:
            self._levels.append(_Level(n))
            n *= 2
        self._copied = 0  # how well copying went lately: accepted tokens, halved by every rejected copy
        self._copy_point = -1  # index in the text of the token that a copy would take next
        self._unsaid: tuple[int, float] | None = None  # the token that was not worth proposing, and how sure it was
        self._origins: list[int] = []  # for each node drafted: the index in the text it was copied from

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget the last request."""
        self._reset()

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        """Continuations of the best matches; point-mass proposals (no law)."""
        budget = budget.of(self.name)
        self._look_back(context.tokens, budget.gate)
        self._catch_up(context.tokens)
        builder = TreeBuilder(budget.nodes)
        self._origins = []
        depths: list[int] = []
        confidence: list[float] = []
        gated = budget.gate is not None and budget.branches <= 1
        for end in self._matches(max(1, budget.branches)):
            length = self._score(end)
            matched = self._matched(end) + self._near(end)
            builder.add(self._continuation(end, budget.depth if gated else self._depth(length, budget.depth), sampler))
            for parent in builder.parents[len(depths) :]:
                depths.append(depths[parent] + 1 if parent >= 0 else 0)
                self._origins.append(end + depths[-1])
                confidence.append(_confidence(matched, depths[-1] + 1))
        if not builder.tokens:
            return Draft.empty(self.name, "ngram: no earlier occurrence")
        count = len(confidence)
        if gated and budget.gate is not None:
            count = _worth(budget.gate, confidence)
            if not count:
                self._unsaid = (builder.tokens[0], confidence[0])
                return Draft.empty(self.name, "ngram: the match is too short to be worth it")
        tokens, parents = (np.array(part[:count], np.int32) for part in (builder.tokens, builder.parents))
        return Draft(tokens, parents, None, self.name, None, tuple(confidence[:count]))

    def observe(self, accepted: Sequence[int]) -> None:
        """Move the copy point behind the accepted tokens; a rejected copy leaves it where it was."""
        if accepted:
            self._copy_point = self._origins[accepted[-1]] + 1
            self._copied = min(self._copied + len(accepted), self._config.max_n)
        else:
            self._copied //= 2

    def close(self) -> None:
        """Drop the index."""
        self._reset()

    def _look_back(self, tokens: Sequence[int], gate: Gate | None) -> None:
        """Whether the copy that the gate did not let through would have been right."""
        if self._unsaid is not None and gate is not None and len(tokens) > len(self._tokens):
            token, sure = self._unsaid
            gate.learn([Trial(1, 0 if tokens[len(self._tokens)] == token else -1, sure)])
        self._unsaid = None

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """Index the tokens committed since the last call: amortised O(levels · max_n) each."""
        for position in range(len(self._tokens), len(tokens)):
            self._tokens.append(tokens[position])
            for level in self._levels:
                level.add(self._tokens, position + 1)

    def _matches(self, want: int) -> list[int]:
        """Ends of the best earlier matches of the text's suffix, best first."""
        if not self._tokens:
            return []
        ends = {*self._occurrences(), *self._near_copy_point()}
        return heapq.nlargest(want, ends, key=lambda end: (self._score(end), end))

    def _occurrences(self) -> list[int]:
        """Ends of the newest occurrences at the longest level that has any."""
        for level in reversed(self._levels):
            ends: list[int] = []
            end = level.before[len(self._tokens) - 1]
            while end > 0 and len(ends) < self._config.candidates:
                ends.append(end)
                end = level.before[end - 1]
            if ends:
                return ends
        return []

    def _near_copy_point(self) -> list[int]:
        """Ends of the occurrences of the last token just behind the copy point, nearest first, at most one."""
        start = self._copy_point
        if start < 0 or self._copied < _RESUMES:
            return []
        for index in range(start, min(start + self._config.resume, len(self._tokens) - 1)):
            if self._tokens[index] == self._tokens[-1]:
                return [index + 1]
        return []

    def _score(self, end: int) -> int:
        """How good a match is: its length, and nearer is better."""
        return self._matched(end) + _NEAR * self._near(end)

    def _matched(self, end: int) -> int:
        """Length of the common suffix of the text and of its part before ``end``, at most max_n."""
        tokens, size = self._tokens, len(self._tokens)
        length = 0
        while length < min(self._config.max_n, end) and tokens[end - 1 - length] == tokens[size - 1 - length]:
            length += 1
        return length

    def _near(self, end: int) -> bool:
        """Whether copying went well and a copy from ``end`` would go on where it stopped."""
        return self._copied >= _RESUMES and 0 <= self._copy_point < end <= self._copy_point + self._config.resume

    def _depth(self, length: int, most: int) -> int:
        """How far to trust a match: a short one is often a coincidence, and a rejected tail costs a wide pass."""
        return min(most, max(1, length - 1)) if self._config.cautious else most

    def _continuation(self, end: int, depth: int, sampler: Sampler) -> list[int]:
        """Tokens that followed the occurrence before ``end``, up to the end of a text; a copy may run on into itself
        (a repeating text)."""
        size = len(self._tokens)
        result: list[int] = []
        for offset in range(depth):
            index = end + offset
            token = self._tokens[index] if index < size else result[index - size]
            if token in self._barred:
                break
            result.append(token)
            if sampler.ends(token):
                break
        return result


def _worth(gate: Gate, confidence: Sequence[float]) -> int:
    """How many tokens of a copied chain the gate keeps."""
    shares = (gate.survival(depth, 0, sure) for depth, sure in enumerate(confidence, 1))
    return gate.kept(list(accumulate(shares, mul)))


def _confidence(matched: int, depth: int) -> float:
    """How sure a copy is of its token at ``depth`` (from 1) behind a match of ``matched`` tokens. Every token that
    turns out right makes the match longer; the first one is less sure than that, since it may be a coincidence. (Of
    copies in answers of code, edits, summaries and chat behind 2 matching tokens, the first, second, … were right in
    41, 72, 68, 87, 74 % of cases; behind 16 and more, in 90, 96, 91, 95, 95 %.)"""
    if depth == 1:
        return matched / (matched + 2.3)
    certain = matched + depth - 1
    return certain / (certain + 1.2)
