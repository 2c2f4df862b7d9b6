"""A virtual machine for controllers: the real loop, real gates, synthetic times and acceptance, no waiting.

The target is a session whose rows name the next token of a fixed text; passes advance a virtual clock by the scenario's
curve. The draft knows for every position at which rank the right token would be among its guesses, and how sure it is.
Every arm of a scenario sees the same text, the same guesses and the same noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from unittest.mock import patch

import numpy as np

from foredraft.control import Controller, Priors, SourcePriors
from foredraft.decode import Limits, Parts, decode
from foredraft.drafters.base import Drafter
from foredraft.drafters.chain import ChainDrafter
from foredraft.engines.base import EngineInfo
from foredraft.sampling import History, Sampler
from foredraft.speed import Curve
from foredraft.trees import children, path_to, static_shape
from foredraft.types import Budget, Draft, Floats, Ids, Logits, SamplingParams, Scores

VOCAB = 32
PROMPT = 4
RANKS = 4


@dataclass
class VirtualClock:
    """Seconds that pass only when somebody spends them."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Source:
    """One draft's truth: ``ranks`` int[T]: at which rank its guess for each position is right, -1 = none;
    ``confidence`` float[T]: how sure it is of its first guess. ``cost``: seconds of a pass (0: no model).
    ``speaks`` bool[T]: whether it proposes anything there."""

    name: str
    cost: float
    ranks: Ids
    confidence: Floats
    speaks: np.ndarray


@dataclass(frozen=True)
class World:
    """One drawn text with its drafts. ``load`` float[T]: factor on all times at each position."""

    curve: Curve
    sources: tuple[Source, ...]
    load: Floats
    noise: float
    overhead: float
    seed: int

    @property
    def length(self) -> int:
        return len(self.load)

    def token(self, position: int) -> int:
        """The text: any function of the position will do."""
        return (position * 7 + position // VOCAB) % (VOCAB - 1)


@dataclass
class SimSession:
    """The target: rows with one peak, time by width."""

    world: World
    clock: VirtualClock
    random: np.random.Generator
    length: int = 0
    parents: list[int] = field(default_factory=list)

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        self.parents = parents.tolist()
        if rows:
            at = min(max(0, self.length - PROMPT + 1), self.world.length - 1)
            jitter = float(np.exp(self.random.normal(0.0, self.world.noise)))
            self.clock.now += self.world.curve(len(tokens)) * self.world.load[at] * jitter
        logits = np.zeros((rows, VOCAB), np.float32)
        for row in range(rows):
            node = len(tokens) - rows + row
            logits[row, self.world.token(self.length + len(path_to(self.parents, node)))] = 9.0
        return Scores(logits)

    def keep(self, path: Sequence[int]) -> None:
        self.length += len(path)
        self.clock.now += self.world.overhead

    def rewind(self, length: int) -> int:
        self.length = length
        return length

    def close(self) -> None:
        """Nothing to free."""


@dataclass
class SimDrafter:
    """Guesses as its source says, through the controller's gate, as the real drafters do."""

    source: Source
    world: World
    clock: VirtualClock
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.source.name

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing to prepare."""

    def observe(self, accepted: Sequence[int], hidden: Logits | None) -> None:
        """Nothing to learn."""

    def close(self) -> None:
        """Nothing to free."""

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        start, budget = len(context), budget.of(self.name)
        if not self.source.speaks[min(start - PROMPT, self.world.length - 1)]:
            return Draft.empty(self.name, "silent")
        shape = np.array(budget.shape, np.int32) if budget.shape else static_shape(budget)
        if budget.branches == 1:
            return self._chain(start, len(shape), budget)
        return self._tree(start, shape)

    def _chain(self, start: int, length: int, budget: Budget) -> Draft:
        tokens, sure, values, gate, passes = [], list[float](), list[float](), budget.gate, 0
        for depth in range(length):
            if depth and gate is not None and self.source.cost and not gate.more(values):
                break
            passes += self._pass(start)
            tokens.append(self._guess(start + depth, 0))
            sure.append(self._sure(start + depth))
            if gate is not None:
                values = list(accumulate((gate.survival(at, 0, one) for at, one in enumerate(sure, 1)), mul))
        count = len(tokens) if gate is None else gate.kept(values)
        if not count:
            return Draft.empty(self.name, "not sure enough", passes)
        parents = np.arange(-1, count - 1, dtype=np.int32)
        return Draft(np.array(tokens[:count], np.int32), parents, None, self.name, None, tuple(sure[:count]), passes)

    def _tree(self, start: int, shape: Ids) -> Draft:
        tokens, sure = [0] * len(shape), [0.5] * len(shape)
        for parent, kids in children(shape).items():
            depth = len(path_to(shape, parent))
            for rank, kid in enumerate(kids):
                tokens[kid], sure[kid] = self._guess(start + depth, rank), self._sure(start + depth)
        passes = 1 + max(len(path_to(shape, node)) for node in range(len(shape))) - 1
        for _ in range(passes):
            self._pass(start)
        return Draft(np.array(tokens, np.int32), shape, None, self.name, None, tuple(sure), passes)

    def _pass(self, position: int) -> int:
        at = min(position - PROMPT, self.world.length - 1)
        self.clock.now += self.source.cost * float(self.world.load[at])
        return int(self.source.cost > 0)

    def _guess(self, position: int, rank: int) -> int:
        at = position - PROMPT
        right = self.world.token(position)
        if at < self.world.length and self.source.ranks[at] == rank:
            return right
        return (right + 1 + rank) % (VOCAB - 1)

    def _sure(self, position: int) -> float:
        return float(self.source.confidence[min(position - PROMPT, self.world.length - 1)])


@contextmanager
def virtual_time(clock: VirtualClock) -> Iterator[None]:
    """The loop reads this clock instead of the machine's."""
    with patch("foredraft.decode.perf_counter", clock):
        yield


def play(world: World, controller: Controller, names: Sequence[str] | None = None) -> float:
    """Seconds that ``controller`` needs for the world's text with these drafts (None: all of them)."""
    clock = VirtualClock()
    session = SimSession(world, clock, np.random.default_rng(world.seed))
    drafters: list[Drafter] = [
        SimDrafter(source, world, clock) for source in world.sources if names is None or source.name in names
    ]
    info = EngineInfo("sim", "sim", VOCAB, world.length + PROMPT + 64, tree=True, rollback="trim")
    parts = Parts(session, info, Sampler(SamplingParams()), ChainDrafter(drafters), controller)
    with virtual_time(clock):
        steps = list(decode(parts, [world.token(position) for position in range(PROMPT)], Limits(world.length)))
    assert [id for step in steps for id in step.ids] == [world.token(PROMPT + at) for at in range(world.length)]
    return clock.now


def play_all(worlds: Sequence[World], controller: Controller, names: Sequence[str] | None = None) -> float:
    """Seconds for several requests, one after the other, with one controller."""
    return sum(play(world, controller, names) for world in worlds)


def priors(world: World, *, measured: bool = True) -> Priors:
    """What a capability check would have found."""
    step = world.curve(1)
    sources = {
        source.name: SourcePriors(source.cost / step if source.cost else None, 0.5 if not source.cost else 0.6)
        for source in world.sources
    }
    if not measured:
        return Priors(sources=sources)
    return Priors(world.curve.scaled(1.0 / step), True, step, sources)


# --- drawing texts -----------------------------------------------------------------------------------------


def latent(alpha: Callable[[int], float], length: int, spread: float, random: np.random.Generator) -> Floats:
    """Acceptance of each position: beta laws around ``alpha(position)``; ``spread`` 0 = all alike, 1 = yes or no."""
    means = np.clip([alpha(at) for at in range(length)], 0.001, 0.999)
    if spread <= 0:
        return np.asarray(means, np.float64)
    concentration = (1 - spread) / spread
    return np.asarray(random.beta(means * concentration, (1 - means) * concentration), np.float64)


def source(name: str, cost: float, chances: Floats, random: np.random.Generator, honest: float = 0.8) -> Source:
    """Draw ranks from the positions' acceptance; ``honest``: how well the confidence knows it (0: not at all)."""
    length = len(chances)
    first = random.random(length) < chances
    later = random.choice([1, 2, 3, -1], length, p=[0.4, 0.15, 0.1, 0.35])
    clear = np.clip(chances, 0.005, 0.995)
    logit = honest * np.log(clear / (1 - clear)) + (1 - honest) * random.normal(0.0, 1.5, length)
    ranks = np.where(first, 0, later).astype(np.int32)
    return Source(name, cost, ranks, 1 / (1 + np.exp(-logit)), np.ones(length, np.bool_))
