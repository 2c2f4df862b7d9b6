"""Texts written by a program, with every row they came from; and a draft that is right and wrong as it likes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from foredraft.control import OFF, Fixed
from foredraft.decode import Limits, Parts, decode
from foredraft.drafters.base import Drafter
from foredraft.drafters.null import NullDrafter
from foredraft.engines.base import Engine, Session
from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft, Ids, Logits, SamplingParams, Scores
from tests.support.engine_cases import ids


@dataclass
class Recorder:
    """A session that remembers the row of every position that was kept."""

    inner: Session
    rows: dict[int, Logits] = field(default_factory=dict)
    pending: dict[int, Logits] = field(default_factory=dict)
    fed: int = 0

    @property
    def length(self) -> int:
        return self.inner.length

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        scores = self.inner.extend(tokens, parents, rows)
        self.fed += len(tokens)
        self.pending |= {self.fed - rows + index: row.copy() for index, row in enumerate(scores.logits)}
        return scores

    def keep(self, path: Sequence[int]) -> None:
        base = self.inner.length
        self.inner.keep(path)
        self.rows |= {base + depth: self.pending[node] for depth, node in enumerate(path) if node in self.pending}
        self._settle()

    def rewind(self, length: int) -> int:
        self._settle()
        return self.inner.rewind(length)

    def close(self) -> None:
        self.inner.close()

    def _settle(self) -> None:
        self.pending, self.fed = {}, 0


@dataclass
class Guesser:
    """Knows the text, but some of its tokens are wrong, every third one unless ``right`` says otherwise; in trees wrong
    siblings stand around the right ones."""

    text: list[int]
    vocab: int
    right: float = 0.67
    name: str = "guesser"

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing."""

    def observe(self, accepted: Sequence[int]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        random = np.random.default_rng(len(context))
        if budget.branches == 1:
            return Draft.chain([self._token(context, depth, random) for depth in range(budget.depth)], self.name)
        tokens, parents, depths = [0], [-1], [0]
        tokens[0] = self._token(context, 0, random)
        while len(tokens) < budget.nodes:
            parent = len(tokens) - 1 if random.random() < 0.4 else int(random.integers(-1, len(tokens)))
            depth = depths[parent] + 1 if parent >= 0 else 0
            token = self._token(context, depth, random)
            if depth < budget.depth and (parent, token) not in zip(parents, tokens, strict=True):
                tokens.append(token)
                parents.append(parent)
                depths.append(depth)
        return Draft(ids(tokens), ids(parents), None, self.name)

    def _token(self, context: History, depth: int, random: np.random.Generator) -> int:
        at = len(context) + depth
        if at < len(self.text) and random.random() < self.right:
            return self.text[at]
        return int(random.integers(0, self.vocab))


@dataclass(frozen=True)
class Written:
    """A text, the row behind every position from the prompt's last token on, and what was accepted."""

    ids: list[int]
    rows: dict[int, Logits]
    drafted: int
    accepted: int


@dataclass(frozen=True)
class Job:
    """A prompt and the law to continue it with."""

    engine: Engine
    prompt: list[int]
    law: SamplingParams
    count: int

    def write(self, drafter: Drafter | None = None, budget: Budget = OFF, chunk: int = 512) -> Written:
        session = Recorder(self.engine.open())
        drafter = drafter or NullDrafter()
        parts = Parts(session, self.engine.info, Sampler(self.law), drafter, Fixed(budget))
        steps = list(decode(parts, self.prompt, Limits(self.count, chunk=chunk)))
        session.close()
        text = [id for step in steps for id in step.ids]
        return Written(text, session.rows, sum(s.drafted for s in steps), sum(s.accepted for s in steps))


def differences(one: Written, other: Written, prompt: Sequence[int]) -> list[str]:
    """Where two texts or their rows are not the same to the last bit. Both have a row for every token but the last."""
    if one.ids != other.ids:
        return ["the text"]
    places = range(len(prompt) - 1, len(prompt) + len(one.ids) - 1)
    assert set(places) <= one.rows.keys() & other.rows.keys()
    return [f"row {place}" for place in places if one.rows[place].tobytes() != other.rows[place].tobytes()]
