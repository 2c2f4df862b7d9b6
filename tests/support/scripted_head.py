"""A draft head whose guesses come from a table, and a drafter that is shown states as the decoding loop would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from foredraft.drafters.head import HeadDrafter
from foredraft.engines.head_base import HeadEngine, HeadInfo, HeadScores
from foredraft.engines.scripted import Table
from foredraft.errors import ContextFull, InvalidValue
from foredraft.sampling import History, Sampler
from foredraft.trees import path_to
from foredraft.types import Budget, Draft, Ids, Logits


def states_of(tokens: Sequence[int]) -> Logits:
    """A token's states are its number: float32[n, 2], so that a shifted or a missing one is noticed."""
    return np.stack([np.array(tokens, np.float32), np.ones(len(tokens), np.float32)], axis=1)


@dataclass(frozen=True)
class ScriptedHead:
    """``table`` gives the logits of the whole vocabulary, of which the head says those of ``ids``."""

    table: Table
    vocab_size: int
    ids: tuple[int, ...]
    max_context: int = 4096

    @property
    def info(self) -> HeadInfo:
        return HeadInfo(np.array(self.ids, np.int32), self.vocab_size, 2, 1, self.max_context, 0.1)

    def open(self) -> ScriptedHeadSession:
        return ScriptedHeadSession(self)

    def close(self) -> None:
        """Nothing to free."""


@dataclass
class ScriptedHeadSession:
    """Knows the text from its entries, and checks that states and outputs are those of the tokens before."""

    engine: ScriptedHead
    text: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return max(0, len(self.text) - 1)

    def read(self, states: Logits, tokens: Ids, rows: int) -> HeadScores:
        assert not self.own, "own entries are forgotten before known ones are read"
        if self.length + len(tokens) > self.engine.max_context:
            raise ContextFull("too much for this head")
        if not self.text:
            self.text = [int(states[0, 0])]
        before = [self.text[-1], *tokens.tolist()[:-1]]
        assert states.tolist() == states_of(before).tolist(), "the states are those of the tokens before"
        first = len(self.text)
        self.text += tokens.tolist()
        return self._scores(
            [tuple(self.text[: first + index + 1]) for index in range(len(tokens))][len(tokens) - rows :]
        )

    def extend(self, outputs: Logits, tokens: Ids, parents: Ids) -> HeadScores:
        base = len(self.own)
        for index, (parent, output) in enumerate(zip(parents.tolist(), outputs, strict=True)):
            if not -1 <= parent < base + index:
                raise InvalidValue("parents", parent, "an entry added before")
            assert output.tolist() == [self._above(parent)], "an output is the parent's"
        if self.length + base + len(tokens) > self.engine.max_context:
            raise ContextFull("too much for this head")
        self.own += tokens.tolist()
        self.parents += parents.tolist()
        nodes = range(base, len(self.own))
        return self._scores([(*self.text, *(self.own[at] for at in path_to(self.parents, node))) for node in nodes])

    def _above(self, parent: int) -> float:
        return float(self.own[parent] if parent >= 0 else self.text[-1])

    def _scores(self, texts: Iterable[tuple[int, ...]]) -> HeadScores:
        texts = list(texts)
        rows = [self.engine.table(text)[list(self.engine.ids)] for text in texts]
        logits = np.array(rows, np.float32).reshape(len(texts), len(self.engine.ids))
        return HeadScores(logits, np.array([[text[-1]] for text in texts], np.float32).reshape(len(texts), 1))

    def forget(self) -> None:
        self.own, self.parents = [], []

    def rewind(self, length: int) -> None:
        self.forget()
        self.text = self.text[: length + 1] if length else []

    def close(self) -> None:
        """Nothing to free."""


class FedHead(HeadDrafter):
    """A head drafter that is shown the states of all tokens but the last whenever it is asked."""

    def __init__(self, engine: HeadEngine, *, barred: Iterable[int] = ()) -> None:
        super().__init__(engine, barred=barred)
        self._shown = 0

    def begin(self, prompt: Sequence[int]) -> None:
        super().begin(prompt)
        self._shown = 0
        self._show(prompt)

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        self._show(context.tokens)
        return super().propose(context, budget, sampler)

    def _show(self, text: Sequence[int]) -> None:
        count = len(text) - 1
        if count > self._shown:
            self.read_states(self._shown, states_of(text[self._shown : count]), text)
            self._shown = count
