"""Cost-aware control: draft what maximises tokens per second under measured times, nothing if nothing pays.

Every few rounds the arms {off, chain of K, tree of n} of the model draft are set against each other; drafts that cost
nothing to make (n-gram) are asked first and used where their proposal is worth more than the best arm. Within a round
the gates stop early. Never slower than plain decoding by more than a small share spent on probing: a ledger of the time
lost switches drafting off when that share is used up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foredraft.control.base import OFF
from foredraft.control.clock import Clock
from foredraft.control.estimates import Acceptance
from foredraft.control.fixed import check_draft_size
from foredraft.control.gates import ChainGate, Stops
from foredraft.control.priors import Priors
from foredraft.errors import InvalidValue
from foredraft.speed import expected_tokens, read_passes
from foredraft.trees import Bounds, best_shape, depths
from foredraft.types import Budget, Step, Trial


@dataclass(frozen=True, slots=True)
class CostConfig:
    """``max_draft``: longest chain; ``tree``: largest tree, 0 = none; ``branches``: children per node at most.

    ``loss``: share of the time that may be lost to drafts that did not pay; ``credit``: target steps of it that each
    draft may lose at once, half of them anew with every request; ``bank``: target steps won in the same request that
    may be lost again. ``first_probe``, ``last_probe``: rounds without drafting before a draft is tried again, doubled
    after every vain try. ``memory``: trials after which one counts 1/e. ``widths``: the only widths a pass may have
    (None = any).
    """

    max_draft: int = 15
    tree: int = 0
    branches: int = 4
    loss: float = 0.02
    credit: float = 2.0
    bank: float = 10.0
    first_probe: int = 15
    last_probe: int = 256
    memory: float = 60.0
    widths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_draft_size(self.max_draft, self.tree, self.branches)
        if not 0.0 <= self.loss < 1.0:
            raise InvalidValue("loss", self.loss, "a share in [0, 1), e.g. 0.02")
        if not 1 <= self.first_probe <= self.last_probe:
            raise InvalidValue("first_probe, last_probe", (self.first_probe, self.last_probe), "1 <= first <= last")


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to spend a round on the model draft, with the tokens it is expected to emit and the seconds it takes."""

    budget: Budget
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Expected tokens per second."""
        return self.tokens / self.seconds


_EVERY = 4
"""Rounds between two comparisons of all arms; trees, which take a millisecond to weigh, every fourth of them."""
_TREE_MARGIN = 1.08
"""A tree must promise this much more than the best chain: its estimates lean on more assumptions."""
_STRETCH = 3
"""Rounds over which it is to pay that a draft reads what it missed: then copies may take over again."""
_STAY = 0.97
"""A draft in use is given up when it promises less than this, so that an estimate near 1 does not switch it on and
off."""
_DECAY = 0.995
"""How long the realised speed is remembered, per round."""
_WON, _LOST = 1.0, 0.5
"""What a source that may lose no more is credited, in target steps, where its first token would have been right, and
charged where not: somewhat less than a right copy wins, and about what a wrong one costs."""
_HOPEFUL = 0.8
"""Acceptance at which a probe's draft length would be the best one."""


class CostAware:
    """The default controller. ``priors`` say what the machine costs and which drafts there are."""

    def __init__(self, priors: Priors | None = None, config: CostConfig | None = None) -> None:
        self._priors = priors or Priors()
        self._config = config or CostConfig()
        self._clock = Clock(self._priors)
        self._model = next((name for name, source in self._priors.sources.items() if source.cost is not None), None)
        self._free = [name for name, source in self._priors.sources.items() if source.cost is None]
        self._seen = {
            name: Acceptance(source.alpha, source.weight, self._config.memory)
            for name, source in self._priors.sources.items()
        }
        self._left = dict.fromkeys(self._priors.sources, self._config.credit)  # target steps that may be lost
        self._reset()

    def _reset(self) -> None:
        self._rounds = 0
        self._flow, self._spell, self._paced = 0.0, 0.0, 0  # discounted tokens and seconds, over so many rounds
        self._quiet, self._wait = 0, self._config.first_probe
        self._unread = 0
        self._probing = False
        self._tree: Arm | None = None
        self._best: Arm | None = None

    def begin(self) -> None:
        """Forget the last text; what the machine costs is kept, the ledger, and a little of how good the drafts
        were."""
        for seen in self._seen.values():
            seen.next_text()
        credit = self._config.credit
        self._left = {name: min(max(left, credit / 2), credit) for name, left in self._left.items()}
        self._reset()

    def budget(self, length: int) -> Budget:
        """The next round's budget, with the reason in ``why``."""
        self._probing = False
        if not self._priors.sources:
            return _off("cost: there is no draft")
        if not self._clock.known:
            return _off("cost: a plain round first, to see what it takes")
        plain = self._plain_seconds()
        if self._best is None or self._rounds % _EVERY == 0:
            self._weigh()
        return self._chosen(plain)

    def _chosen(self, plain: float) -> Budget:
        barred = [name for name, left in self._left.items() if left < 0]
        if barred == [self._model] and len(self._left) == 1:
            return _off("cost: off, what may be lost on trying is used up")
        best = self._best if self._model not in barred else None
        stay = _STAY if self._quiet == 0 and self._rounds else 1.0
        pays = best is not None and best.tokens * plain > stay * best.seconds + self._late() / _STRETCH
        rate = max(1.0 / plain, best.rate if best is not None and pays else 0.0, self._realised())
        if not pays and self._quiet >= self._wait and self._affordable(plain):
            probe = self._probe()
            if probe is not None:
                best, pays, self._probing = probe, True, True
        floor = 1.0 - rate * plain
        if best is not None and pays and not self._probing:
            floor = max(floor, best.tokens - rate * best.seconds)
        sources = {name: self._chain_budget(name, rate, math.inf if name in barred else floor) for name in self._free}
        why = "cost: no draft model pays" if self._model is not None else "cost: copies where they pay"
        if best is not None and pays and self._model is not None:
            sources[self._model] = self._gated(best.budget, rate, 1.0 - rate * plain)
            ahead = f"{best.rate * plain:.2f}× plain expected"
            what = "a tree" if best.budget.branches > 1 else "a chain"
            why = f"cost: {'probing with ' if self._probing else ''}{what} of {best.budget.nodes}, {ahead}"
        return _joined(sources, why)

    def _affordable(self, plain: float) -> bool:
        """Whether the ledger allows a vain try: the draft reads what it missed before it says anything."""
        if self._model is None:
            return True
        return self._late() + self._clock.draft(self._model) <= plain * self._left[self._model]

    def _late(self) -> float:
        """Seconds that the model draft needs to read what was written without it."""
        assert self._model is not None
        return read_passes(self._unread) * self._clock.draft(self._model)

    def _chain_budget(self, name: str, rate: float, floor: float) -> Budget:
        most = self._config.max_draft
        return Budget(most, most, 1, gate=self._gate(name, Stops(rate, floor, most, self._config.widths)))

    def _gate(self, name: str, stops: Stops) -> ChainGate:
        return ChainGate(self._clock, self._seen[name], name, stops, self._would_have)

    def _would_have(self, name: str, trials: Sequence[Trial]) -> None:
        """A source that lost what it might still looks on; it may lose again when it would have won."""
        if self._left[name] < 0:
            for trial in trials:
                self._left[name] += _WON if trial.rank == 0 else -_LOST
            self._left[name] = max(self._left[name], -self._config.credit)

    def _gated(self, budget: Budget, rate: float, floor: float) -> Budget:
        if budget.branches > 1 or self._model is None:
            return budget
        if self._probing:
            stops = Stops(rate, floor, budget.nodes, self._config.widths, _HOPEFUL)
            return replace(budget, gate=self._gate(self._model, stops))
        return self._chain_budget(self._model, rate, floor)

    def observe(self, step: Step) -> None:
        """Learn from a finished round."""
        drifts = self._clock.drifts
        self._clock.observe(step)
        if self._clock.drifts > drifts:  # what seemed lost lately was the machine's doing, and its old speed is gone
            self._left = {name: max(left, self._config.credit / 2) for name, left in self._left.items()}
            self._flow, self._spell, self._paced = 0.0, 0.0, 0
        self._rounds += 1
        plain = self._plain_seconds()
        seconds = step.seconds.total
        self._flow, self._spell = _DECAY * self._flow + step.generated, _DECAY * self._spell + seconds
        self._paced += 1
        if step.drafter in self._seen:  # a merged tree says nothing of either draft alone
            self._seen[step.drafter].observe(step.trials)
        if step.drafted or step.passes:
            source = self._model if step.passes and self._model is not None else step.drafter
            excess = min(seconds, 3.0 * plain * max(1, step.width)) - step.generated * plain
            if source in self._left:
                self._left[source] = min(self._left[source] - excess / plain, self._config.credit + self._config.bank)
        refill = self._config.loss * seconds / plain / max(1, len(self._left))
        for name, left in self._left.items():
            self._left[name] = max(left, min(self._config.credit, left + refill))
        tried = step.passes > 0 if self._model is not None else step.drafted > 0
        self._schedule(tried, step.generated, step.generated * plain > seconds)

    def _schedule(self, tried: bool, generated: int, paid: bool) -> None:
        """Count the rounds in which the model (or where there is none, any draft) was not tried; a vain probe doubles
        the wait, one that paid ends it."""
        if not tried:
            self._quiet += 1
            self._unread += generated
            return
        self._quiet = self._unread = 0
        if self._probing:
            self._wait = self._config.first_probe if paid else min(2 * self._wait, self._config.last_probe)
            self._quiet = self._wait if paid else 0
            self._best = None
        elif paid:
            self._wait = self._config.first_probe

    def _plain_seconds(self) -> float:
        return self._clock.target(1) + self._clock.rest(drafted=False)

    def _realised(self) -> float:
        return self._flow / self._spell if self._paced >= 16 and self._spell > 0 else 0.0

    # --- arms ------------------------------------------------------------------------------------------

    def _weigh(self) -> None:
        """Find the best arm of the model draft."""
        if self._model is None:
            return
        seen = self._seen[self._model]
        self._best = self._best_chain(seen.by_depth(self._config.max_draft))
        if self._config.tree:
            if self._tree is None or self._rounds % (4 * _EVERY) == 0:
                self._tree = self._best_tree(seen)
            if self._tree is not None and (self._best is None or self._tree.rate > _TREE_MARGIN * self._best.rate):
                self._best = self._tree

    def _best_chain(self, acceptance: Sequence[float]) -> Arm | None:
        assert self._model is not None
        clock, step = self._clock, self._clock.draft(self._model)
        rest, best = clock.rest(drafted=True), None
        for length in range(1, len(acceptance) + 1):
            if self._config.widths is not None and length + 1 not in self._config.widths:
                continue
            seconds = clock.target(length + 1) + length * step + rest
            arm = Arm(Budget.chain(length), expected_tokens(acceptance[:length]), seconds)
            if best is None or arm.rate > best.rate:
                best = arm
        return best

    def _best_tree(self, seen: Acceptance) -> Arm | None:
        assert self._model is not None
        clock, step, single = self._clock, self._clock.draft(self._model), self._clock.target(1)
        rest = clock.rest(drafted=True)

        def seconds(levels: Sequence[int]) -> float:
            passes = sum(clock.target(count) / single for count in (1, *levels[:-1]))
            return clock.target(1 + sum(levels)) + step * passes + rest

        depth = min(8, self._config.max_draft)
        table = [seen.by_rank(first, self._config.branches) for first in seen.by_depth(depth)]
        sizes = frozenset(width - 1 for width in self._config.widths) if self._config.widths else None
        shape = best_shape(table, seconds, Bounds(self._config.tree, depth, sizes))
        if shape is None or shape.parents == tuple(range(-1, len(shape.parents) - 1)):
            return None  # a chain, which has a gate of its own
        levels = int(depths(np.array(shape.parents, np.int32)).max())
        budget = Budget(len(shape.parents), levels, self._config.branches, shape=shape.parents)
        return Arm(budget, shape.tokens, shape.time)

    def _probe(self) -> Arm | None:
        """A short draft to learn from, if any could pay here at all; what was believed is half forgotten."""
        for name in self._free:
            self._seen[name].fade(0.5)
        if self._model is None:
            self._quiet = 0
            return None
        hopeful = self._best_chain([_HOPEFUL] * min(4, self._config.max_draft))
        if hopeful is None or hopeful.rate * self._plain_seconds() <= 1.0:
            self._quiet = 0
            return None
        self._seen[self._model].fade(0.5)
        return hopeful


def _off(why: str) -> Budget:
    return replace(OFF, why=why)


def _joined(sources: dict[str, Budget], why: str) -> Budget:
    """One budget that holds all of them."""
    most = list(sources.values())
    return Budget(
        max((budget.nodes for budget in most), default=0),
        max((budget.depth for budget in most), default=0),
        max((budget.branches for budget in most), default=0),
        sources=sources,
        why=why,
    )
