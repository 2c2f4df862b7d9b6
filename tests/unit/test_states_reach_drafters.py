"""Which hidden states a drafter is shown: those of every token that is kept, once, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.control import fixed
from foredraft.control.fixed import Fixed
from foredraft.decode import Limits, Parts, decode
from foredraft.drafters.base import Drafter, ReadsStates
from foredraft.drafters.chain import ChainDrafter
from foredraft.drafters.droppable import DroppableDrafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.null import NullDrafter
from foredraft.engines.scripted import ScriptedEngine, ScriptedSession, markov_table
from foredraft.sampling import History, Sampler
from foredraft.trees import path_to
from foredraft.types import Budget, Draft, Ids, Logits, SamplingParams, Scores, Step

VOCAB = 12
PROMPT = [1, 2, 3, 4, 5, 6, 7]


class Session(ScriptedSession):
    """A token's states are its id and its position."""

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        first = len(self.pending)
        scores = super().extend(tokens, parents, rows)
        depths = [len(path_to(self.parents, first + index)) for index in range(len(tokens))]
        hidden = np.stack([tokens, self.length + np.array(depths) - 1], axis=1).astype(np.float32)
        return replace(scores, hidden=hidden)


class Engine(ScriptedEngine):
    def open(self) -> ScriptedSession:
        return Session(self)


@dataclass
class Reader:
    """Says nothing and remembers what it is shown."""

    name: str = "reader"
    seen: list[list[float]] = field(default_factory=list)
    fails: int = -1

    def begin(self, prompt: Sequence[int]) -> None:
        self.seen = []

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        return Draft.empty(self.name, "only reads")

    def observe(self, accepted: Sequence[int]) -> None:
        """Never told: it proposes nothing."""

    def close(self) -> None:
        """Nothing to free."""

    def read_states(self, first: int, states: Logits, text: Sequence[int]) -> None:
        assert first == len(self.seen), "in order, without a gap"
        self.seen += states.tolist()
        assert [int(token) for token, _ in self.seen] == list(text[: len(self.seen)])
        if len(self.seen) > self.fails >= 0:
            raise RuntimeError("no more")


def run(drafter: Drafter, budget: Budget, temperature: float = 0.0, chunk: int = 3) -> list[Step]:
    engine = Engine(markov_table(VOCAB, seed=4), VOCAB, 256)
    sampler = Sampler(SamplingParams(temperature=temperature, seed=1))
    parts = Parts(engine.open(), engine.info, sampler, drafter, Fixed(budget))
    return list(decode(parts, PROMPT, Limits(30, chunk=chunk)))


def model() -> ModelDrafter:
    """Right most of the time."""
    return ModelDrafter(ScriptedEngine(markov_table(VOCAB, seed=4), VOCAB, 256))


def text_of(steps: Sequence[Step]) -> list[int]:
    return [*PROMPT, *(id for step in steps for id in step.ids)]


budgets = st.sampled_from([Budget(0, 0, 0), Budget.chain(4), Budget(8, 3, 3), Budget(8, 4, 2, dynamic=True)])


@settings(max_examples=30, deadline=None)
@given(budget=budgets, temperature=st.sampled_from([0.0, 1.0]), chunk=st.integers(1, 8))
def test_every_kept_token_once(budget: Budget, temperature: float, chunk: int) -> None:
    """Whoever drafts, whatever is rejected."""
    reader = Reader()
    steps = run(ChainDrafter([reader, NgramDrafter(), model()]), budget, temperature, chunk)
    text = text_of(steps)
    assert len(reader.seen) == len(text) - 1, "all but the last token, which nobody read yet"
    assert reader.seen == [[token, place] for place, token in enumerate(text[:-1])]
    if budget.nodes:
        assert sum(step.accepted for step in steps) > 5


def test_a_reader_that_fails_is_left_out_and_the_others_go_on() -> None:
    reader = Reader(fails=12)
    drafter = ChainDrafter([reader, model()])
    steps = run(drafter, Budget.chain(4))
    assert 12 < len(reader.seen) < 30
    assert text_of(steps) == text_of(run(NullDrafter(), Budget(0, 0, 0)))
    assert sum(step.accepted for step in steps[-4:]) > 0, "the model still drafts"


def test_a_single_reader_that_fails_ends_drafting() -> None:
    @dataclass
    class Failing(Reader):
        fails: int = 2

    steps = run(Failing(), Budget.chain(4))
    assert "reader failed, drafting is off for this request: no more" in {step.reason for step in steps}
    assert text_of(steps) == text_of(run(NullDrafter(), Budget(0, 0, 0)))


def test_under_memory_pressure_nothing_is_shown_any_more() -> None:
    reader, short = Reader(), [False]
    drafter = DroppableDrafter(reader, lambda: short[0], lambda: None)
    assert isinstance(drafter, ReadsStates)
    run(drafter, Budget.chain(2))
    count = len(reader.seen)
    assert count > len(PROMPT)
    short[0] = True
    run(drafter, Budget.chain(2))
    assert len(reader.seen) == count


@pytest.mark.parametrize("drafter", [NullDrafter(), NgramDrafter(), model()])
def test_others_want_none(drafter: Drafter) -> None:
    assert not isinstance(drafter, ReadsStates)
    assert text_of(run(drafter, fixed(3).what)) == text_of(run(NullDrafter(), Budget(0, 0, 0)))
