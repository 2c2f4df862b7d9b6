"""Frozen value types that travel between the rooms. numpy only; no behaviour beyond validation.

Shapes: N drafted nodes, M tokens fed, R scored rows, V vocabulary size, H hidden size, S law support.
Ids are int32, scores float32, all sampling arithmetic float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import InvalidValue

Ids = NDArray[np.int32]
Logits = NDArray[np.float32]
Floats = NDArray[np.float64]

Rule = Literal["coupled", "residual", "relaxed"]
RULES: tuple[Rule, ...] = ("coupled", "residual", "relaxed")
FinishReason = Literal["stop", "length", "cancelled"]
Rung = Literal["tree", "chain", "ngram", "off"]
"""What a round drafted, from the top of the fallback ladder to its end."""
RUNGS: tuple[Rung, ...] = ("tree", "chain", "ngram", "off")


@dataclass(frozen=True, slots=True)
class Law:
    """A probability law over token ids, kept sparse: only the tokens that survive truncation.

    ``ids`` int32[S], ascending. ``scores`` float64[S]: log-probabilities up to one additive constant,
    so that a Gumbel-max draw needs no normalisation.
    """

    ids: Ids
    scores: Floats

    @staticmethod
    def point(token: int) -> Law:
        """The point mass on one token (greedy decoding; a deterministic proposal)."""
        return Law(np.array([token], np.int32), np.zeros(1))

    def probs(self) -> Floats:
        """Normalised probabilities, float64[S]; they sum to 1 within rounding."""
        weights = np.exp(self.scores - self.scores.max())
        return np.asarray(weights / weights.sum(), np.float64)

    def prob(self, token: int) -> float:
        """Probability of ``token``; exactly 0 outside the support."""
        index = int(np.searchsorted(self.ids, token))
        if index == len(self.ids) or self.ids[index] != token:
            return 0.0
        return float(self.probs()[index])


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal: a tree (a chain is a tree with one child per node).

    ``tokens`` int32[N]; ``parents`` int32[N], parents before children, -1 = child of the last committed
    token; siblings are listed in the order in which they are to be tried. ``laws``: for each node the law
    its sibling group was drawn from *without replacement* (one shared object per group), or None for a
    deterministic proposal (a point mass each). ``reason`` says why nothing was proposed. ``confidence``: for each node
    how sure the drafter was of it, in [0, 1], on a scale of its own that the controller calibrates (None: it gives
    none). ``passes``: passes of a draft model that were spent, also on nodes that were dropped again.
    """

    tokens: Ids
    parents: Ids
    laws: tuple[Law, ...] | None = None
    source: str = "none"
    reason: str | None = None
    confidence: tuple[float, ...] | None = None
    passes: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def empty(source: str = "none", reason: str | None = None, passes: int = 0) -> Draft:
        """No proposal: the round is plain decoding."""
        none = np.empty(0, np.int32)
        return Draft(none, none, None, source, reason, None, passes)

    @staticmethod
    def chain(tokens: Sequence[int], source: str, laws: tuple[Law, ...] | None = None) -> Draft:
        """A proposal with one child per node."""
        return Draft(np.asarray(tokens, np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32), laws, source)


@dataclass(frozen=True, slots=True)
class Scores:
    """What an engine returns: ``logits`` float32[R, V], row i belongs to the i-th of the last R tokens fed.

    The arrays may be views into the engine's own memory: they are valid until the session's next call.
    ``hidden`` float32[M, H] where the engine offers hidden states: of all M tokens fed, scored or not.
    """

    logits: Logits
    hidden: Logits | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of verifying one draft.

    ``path``: accepted node indices, root first. ``token``: the target's own next token, which always comes
    with them (correction or bonus). ``evaluated``: tree levels at which a drafted token was tried, which for a
    chain is the number of drafted tokens up to and including the first rejection. ``bias``: total-variation
    distance from the target's law spent on each emitted token by a lossy rule (zeros otherwise).
    """

    path: tuple[int, ...]
    token: int
    evaluated: int
    bias: tuple[float, ...] = ()


class Gate(Protocol):
    """A controller's say within a round, once a drafter knows how sure it is of its tokens."""

    def learn(self, trials: Sequence[Trial]) -> None:
        """What the draft would have guessed at positions of the text that are known by now, and whether that was right:
        a draft that was not asked for a while reads them anyway."""
        ...

    def survival(self, depth: int, rank: int, confidence: float) -> float:
        """Probability that the child of this ``rank`` (0 = tried first) at ``depth`` (1 = first level) is the target's
        choice, given that its parent is."""
        ...

    def more(self, values: Sequence[float]) -> bool:
        """Whether another token is worth drafting behind a path whose tokens are reached and accepted with these
        probabilities (descending)."""
        ...

    def kept(self, values: Sequence[float]) -> int:
        """How many of the tokens accepted with these probabilities (descending) are worth the target's time; 0 if
        something else is better."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to draft: at most ``nodes`` drafted tokens, ``depth`` levels, ``branches`` children per node.

    ``shape``: parents of the tree to draft (empty: the drafter's choice); ``dynamic``: a tree that grows where the
    draft is confident; ``merge``: what several drafters say becomes one tree (``branches`` then counts each one's own).
    ``gate``: where to stop within a round (None: at the budget); what was drawn for a rule that accepts and rejects is
    never dropped again. ``sources``: budgets of single drafters by name, in the order in which to ask them; empty: this
    one holds for all. ``why``: the controller's reason in words.
    """

    nodes: int
    depth: int
    branches: int = 1
    shape: tuple[int, ...] = ()
    dynamic: bool = False
    merge: bool = False
    gate: Gate | None = field(default=None, compare=False)
    sources: Mapping[str, Budget] = field(default_factory=dict, compare=False)
    why: str | None = field(default=None, compare=False)

    @staticmethod
    def chain(length: int) -> Budget:
        """A chain of at most ``length`` tokens."""
        return Budget(length, length, 1)

    def of(self, source: str) -> Budget:
        """The budget of the drafter ``source``: 0 tokens if only others are named."""
        return self if not self.sources else self.sources.get(source, Budget(0, 0, 0))

    def within(self, nodes: int, depth: int, *, tree: bool) -> Budget:
        """The same budget cut down to ``nodes`` and ``depth``, and to chains unless ``tree``."""
        nodes = min(self.nodes, nodes)
        depth = min(self.depth, depth, nodes)
        inner = {name: budget.within(nodes, depth, tree=tree) for name, budget in self.sources.items()}
        if depth <= 0 or nodes <= 0:
            return replace(self, nodes=0, depth=0, branches=0, shape=(), dynamic=False, merge=False,
                           sources=inner)  # fmt: skip
        if not tree or self.branches <= 1:
            return replace(self, nodes=min(nodes, depth), depth=min(nodes, depth), branches=1, shape=(), dynamic=False,
                           merge=False, sources=inner)  # fmt: skip
        return replace(self, nodes=nodes, depth=depth, shape=_cut(self.shape, nodes, depth), sources=inner)


def _cut(shape: tuple[int, ...], nodes: int, depth: int) -> tuple[int, ...]:
    """The nodes of a tree (parents before children) that lie within ``depth``, at most ``nodes`` of them."""
    index: dict[int, int] = {-1: -1}
    level: dict[int, int] = {-1: 0}
    cut: list[int] = []
    for node, parent in enumerate(shape):
        if parent in index and level[parent] < depth and len(cut) < nodes:
            index[node], level[node] = len(cut), level[parent] + 1
            cut.append(index[parent])
    return tuple(cut)


def _check(name: str, value: float, allowed: str, ok: bool) -> None:
    if not ok:  # NaN fails every comparison
        raise InvalidValue(name, value, allowed)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's law is made from its logits; defaults are greedy decoding.

    Order: logit bias, penalties, temperature, top-k, top-p, min-p. ``repetition_penalty`` looks at prompt and
    output, ``presence_penalty`` and ``frequency_penalty`` at the output only; all three within the last
    ``penalty_window`` tokens (0 = all).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 0
    min_tokens: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        inf = math.inf
        _check("temperature", self.temperature, "0 (greedy) or a positive number", 0 <= self.temperature < inf)
        _check("top_k", self.top_k, "0 (off) or a positive integer", self.top_k >= 0)
        _check("top_p", self.top_p, "a number in (0, 1]", 0 < self.top_p <= 1)
        _check("min_p", self.min_p, "a number in [0, 1]", 0 <= self.min_p <= 1)
        penalty = self.repetition_penalty
        _check("repetition_penalty", penalty, "a positive number (1 = off)", 0 < penalty < inf)
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(name, value, "a finite number (0 = off)", abs(value) < inf)
        _check("penalty_window", self.penalty_window, "0 (all) or a positive integer", self.penalty_window >= 0)
        _check("min_tokens", self.min_tokens, "0 or a positive integer", self.min_tokens >= 0)
        _check("seed", self.seed, "an integer in [0, 2**64)", 0 <= self.seed < 2**64)
        for token, bias in self.logit_bias.items():
            _check(f"logit_bias[{token}]", bias, "a finite number, or -inf to bar the token", bias < inf)

    @property
    def greedy(self) -> bool:
        """True if the law is a point mass on the best token."""
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """True if the law depends on the history of tokens."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Seconds:
    """Where a round's time went, in seconds. ``other`` is everything outside engine calls and drafting."""

    draft: float = 0.0
    verify: float = 0.0
    keep: float = 0.0
    other: float = 0.0

    def __add__(self, more: Seconds) -> Seconds:
        return Seconds(*(getattr(self, f.name) + getattr(more, f.name) for f in fields(self)))

    @property
    def total(self) -> float:
        """Sum of the four parts."""
        return self.draft + self.verify + self.keep + self.other


@dataclass(frozen=True, slots=True)
class Emitted:
    """One released token. ``logprob``: natural log of the target's unprocessed probability; ``top``: the best
    alternatives as (id, logprob). Both None unless log-probabilities were asked for."""

    id: int
    drafted: bool
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One tree level at which drafted tokens were tried: ``tried`` siblings, of which the one of ``rank`` (from 0) was
    the target's choice, -1 for none. ``confidence``: the draft's, in the sibling tried first (None: it gave none)."""

    tried: int
    rank: int
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What one round of decoding did.

    ``emitted``: tokens released by this round (a token that may be the start of a stop string waits).
    ``drafted`` ≥ ``evaluated`` ≥ ``accepted`` count drafted tokens; nothing after the end of the text is counted.
    ``generated``: tokens this round added to the text, bonus included. ``width``: positions the target scored.
    ``reason``: why nothing was drafted, if nothing was. ``rung``: what was drafted; ``why``: the controller's reason
    for the round. ``trials``: the levels evaluated, root first; ``passes``: passes of a draft model. ``bias``: total
    variation spent by a lossy rule, summed. ``hidden_bytes``: trailing bytes of the last released token that lie behind
    a stop string's start; ``dropped``: ids of the text that lie wholly behind it.
    """

    emitted: tuple[Emitted, ...]
    drafted: int
    evaluated: int
    accepted: int
    generated: int
    width: int
    seconds: Seconds
    drafter: str
    reason: str | None = None
    finish_reason: FinishReason | None = None
    bias: float = 0.0
    hidden_bytes: int = 0
    dropped: tuple[int, ...] = ()
    rung: Rung = "off"
    why: str | None = None
    trials: tuple[Trial, ...] = ()
    passes: int = 0

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of the released tokens."""
        return tuple(token.id for token in self.emitted)
