"""A virtual machine for controllers: the real loop, real gates, synthetic times and acceptance, no waiting.

The target is a session whose rows name the next token of a fixed text; passes advance a virtual clock by the scenario's
curve. The draft knows for every position at which rank the right token would be among its guesses, and how sure it is.
Every arm of a scenario sees the same text, the same guesses and the same noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from foredraft.speed import LONGEST_READ, RECENT, Curve, read_passes
from foredraft.trees import children, path_to, static_shape
from foredraft.types import Budget, Draft, Floats, Ids, SamplingParams, Scores, Step, Trial

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
    """One drawn text with its drafts. ``load`` float[T]: factor on all times at each position. ``text``: ids of a real
    one, its prompt of ``prompt`` tokens first (empty: any text will do)."""

    curve: Curve
    sources: tuple[Source, ...]
    load: Floats
    noise: float
    overhead: float
    seed: int
    prompt: int = PROMPT
    vocab: int = VOCAB
    text: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        return len(self.load)

    def token(self, position: int) -> int:
        """The text: any function of the position will do where there is no real one."""
        if self.text:
            return self.text[min(position, len(self.text) - 1)]
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
            at = min(max(0, self.length - self.world.prompt + 1), self.world.length - 1)
            jitter = float(np.exp(self.random.normal(0.0, self.world.noise)))
            self.clock.now += self.world.curve(len(tokens)) * self.world.load[at] * jitter
        logits = np.zeros((rows, self.world.vocab), np.float32)
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
    read: int = 0
    """Tokens of the text in the draft's cache."""
    fed: int = 0
    """Drafted tokens in it."""
    unsaid: int = 0
    """Where a copy was not worth proposing."""

    def __post_init__(self) -> None:
        self.name = self.source.name

    def begin(self, prompt: Sequence[int]) -> None:
        """Read all but the last token."""
        self.read, self.fed, self.unsaid = len(prompt) - 1, 0, 0

    def observe(self, accepted: Sequence[int]) -> None:
        """Keep the accepted tokens that were fed."""
        self.read += min(len(accepted), self.fed)

    def close(self) -> None:
        """Nothing to free."""

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        start, budget = len(context), budget.of(self.name)
        if not self.source.speaks[min(start - self.world.prompt, self.world.length - 1)]:
            return Draft.empty(self.name, "silent")
        shape = np.array(budget.shape, np.int32) if budget.shape else static_shape(budget)
        late = self._catch_up(start, budget)
        draft = self._chain(start, len(shape), budget) if budget.branches == 1 else self._tree(start, shape)
        self.read, self.fed = start, max(0, len(draft) - 1)
        return replace(draft, passes=draft.passes + late)

    def _catch_up(self, start: int, budget: Budget) -> int:
        """Read what was written without this draft, eight tokens in the time of a pass, and look back at it; returns
        the passes spent beyond the one that reads the last token."""
        unseen = start - self.read
        if unseen > LONGEST_READ + 1:
            unseen, self.read = RECENT + 1, start - RECENT - 1
        late = read_passes(unseen - 1) if self.source.cost else 0
        if self.unsaid and budget.gate is not None:
            hit = self.source.ranks[self.unsaid - self.world.prompt] == 0
            budget.gate.learn([Trial(1, 0 if hit else -1, self._sure(self.unsaid))])
        self.unsaid = 0
        for _ in range(late):
            self._pass(start)
        if budget.gate is not None and self.source.cost and unseen >= 3:
            prompt = self.world.prompt
            places = range(max(self.read + 1, start - 16, prompt), start)
            ranks = self.source.ranks
            budget.gate.learn([Trial(1, 0 if ranks[at - prompt] == 0 else -1, self._sure(at)) for at in places])
        return late

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
            self.unsaid = start if not self.source.cost else 0
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
        at = min(position - self.world.prompt, self.world.length - 1)
        self.clock.now += self.source.cost * float(self.world.load[at])
        return int(self.source.cost > 0)

    def _guess(self, position: int, rank: int) -> int:
        at = position - self.world.prompt
        right = self.world.token(position)
        if at < self.world.length and self.source.ranks[at] == rank:
            return right
        return (right + 1 + rank) % (self.world.vocab - 1)

    def _sure(self, position: int) -> float:
        return float(self.source.confidence[min(position - self.world.prompt, self.world.length - 1)])


@contextmanager
def virtual_time(clock: VirtualClock) -> Iterator[None]:
    """The loop reads this clock instead of the machine's."""
    with patch("foredraft.decode.perf_counter", clock):
        yield


def play(world: World, controller: Controller, names: Sequence[str] | None = None) -> float:
    """Seconds that ``controller`` needs for the world's text with these drafts (None: all of them)."""
    clock = VirtualClock()
    run(world, controller, clock, [
        SimDrafter(source, world, clock) for source in world.sources if names is None or source.name in names
    ])  # fmt: skip
    return clock.now


def run(world: World, controller: Controller, clock: VirtualClock, drafters: Sequence[Drafter]) -> list[Step]:
    """The whole text, written with these drafters; the clock then shows how long it took."""
    session = SimSession(world, clock, np.random.default_rng(world.seed))
    info = EngineInfo("sim", "sim", world.vocab, world.length + world.prompt + 64, tree=True, rollback="trim")
    parts = Parts(session, info, Sampler(SamplingParams()), ChainDrafter(drafters), controller)
    with virtual_time(clock):
        steps = list(decode(parts, [world.token(position) for position in range(world.prompt)], Limits(world.length)))
    written = [id for step in steps for id in step.ids]
    assert written == [world.token(world.prompt + at) for at in range(world.length)]
    return steps


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
