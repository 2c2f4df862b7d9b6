"""Whatever a drafter does, the answer is that of plain decoding: it raises, breaks the rules, or knows too little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from foredraft.control import OFF, Fixed
from foredraft.decode import PREFILL, Limits, Parts, decode
from foredraft.drafters.base import Drafter
from foredraft.drafters.chain import ChainDrafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramConfig, NgramDrafter
from foredraft.drafters.null import NullDrafter
from foredraft.engines.scripted import ScriptedEngine, ScriptedSession, markov_table
from foredraft.errors import EngineFailure
from foredraft.pipeline import Pipeline, Request
from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft, Ids, SamplingParams, Scores, Step
from tests.support.toy_tokenizer import ToyTokenizer

VOCAB = 30
TARGET = ScriptedEngine(markov_table(VOCAB, order=2, seed=1), VOCAB)
PROMPT = [2, 4, 6, 2, 4, 6, 2]


def run(drafter: Drafter, budget: Budget | None = None, count: int = 60, target: ScriptedEngine = TARGET) -> list[Step]:
    """The rounds of one request at temperature 1."""
    sampler = Sampler(SamplingParams(temperature=1.0, seed=4))
    controller = Fixed(Budget(8, 4, 2) if budget is None else budget)
    parts = Parts(target.open(), target.info, sampler, drafter, controller)
    return [step for step in decode(parts, PROMPT, Limits(count)) if step.drafter != PREFILL]


def text(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.ids]


def plain(count: int = 60, target: ScriptedEngine = TARGET) -> list[int]:
    return text(run(NullDrafter(), OFF, count, target))


def self_draft() -> ModelDrafter:
    """Guesses everything right."""
    return ModelDrafter(TARGET)


@dataclass
class Faulty:
    """A good drafter that raises in its ``nth`` call of one method, with the context pushed."""

    where: str
    nth: int
    inner: Drafter = field(default_factory=self_draft)
    name: str = "faulty"
    calls: int = 0

    def _count(self, where: str) -> None:
        if where == self.where:
            self.calls += 1
            if self.calls == self.nth:
                raise ZeroDivisionError("planted")

    def begin(self, prompt: Sequence[int]) -> None:
        self._count("begin")
        self.inner.begin(prompt)

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        context.push(1)
        self._count("propose")
        context.pop()
        return self.inner.propose(context, budget, sampler)

    def observe(self, accepted: Sequence[int]) -> None:
        self._count("observe")
        self.inner.observe(accepted)

    def close(self) -> None:
        self.inner.close()


@dataclass
class Rogue:
    """Says ``draft`` every time."""

    draft: Draft
    name: str = "rogue"

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing."""

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        return self.draft

    def observe(self, accepted: Sequence[int]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


FAULTS = [("begin", 1), ("propose", 1), ("propose", 4), ("observe", 1), ("observe", 4)]


@pytest.mark.parametrize(("where", "nth"), FAULTS)
def test_a_drafter_that_raises_is_off_for_the_request(where: str, nth: int) -> None:
    steps = run(Faulty(where, nth))
    assert text(steps) == plain()
    good = nth if where == "observe" else nth - 1
    assert [step.drafted > 0 for step in steps] == [True] * good + [False] * (len(steps) - good)
    for step in steps[good:]:
        assert step.reason == "faulty failed, drafting is off for this request: planted"


@pytest.mark.parametrize(("where", "nth"), FAULTS)
def test_it_is_on_again_in_the_next_request(where: str, nth: int) -> None:
    drafter = Faulty(where, nth)
    run(drafter)
    steps = run(drafter)
    assert text(steps) == plain()
    assert all(step.drafted for step in steps[:-1])


@pytest.mark.parametrize(("where", "nth"), FAULTS)
def test_the_others_of_a_chain_go_on(where: str, nth: int) -> None:
    chain = ChainDrafter([Faulty(where, nth), NgramDrafter(NgramConfig(min_n=1))])
    steps = run(chain)
    assert text(steps) == plain()
    assert {step.drafter for step in steps if step.drafted} >= {"ngram"}
    again = run(chain)
    assert text(again) == plain()
    assert {step.drafter for step in again if step.drafted} == {"model"}


def test_a_chain_says_who_failed() -> None:
    chain = ChainDrafter([Faulty("propose", 1), NullDrafter("null: silent")])
    chain.begin([1])
    context = History([1])
    for _ in range(2):
        draft = chain.propose(context, Budget.chain(2), Sampler(SamplingParams()))
        assert list(context.tokens) == [1]
        assert draft.reason == "faulty failed: planted; null: silent"


def of(tokens: list[int], parents: list[int]) -> Draft:
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), None, "rogue")


@pytest.mark.parametrize(
    "draft",
    [
        of([1] * 9, [-1, *range(8)]),
        of([1] * 5, [-1, 0, 1, 2, 3]),
        of([1, 2], [-1, 1]),
        of([1, 2], [1, -1]),
        of([1, 2], [-1, -2]),
        of([1, 2], [-1]),
        of([VOCAB], [-1]),
        of([-1], [-1]),
    ],
    ids=[
        "too many nodes",
        "too deep",
        "its own parent",
        "child first",
        "no such parent",
        "missing parent",
        "id V",
        "id -1",
    ],
)
def test_a_drafter_that_breaks_the_rules_is_off(draft: Draft) -> None:
    steps = run(Rogue(draft))
    assert text(steps) == plain()
    assert not any(step.drafted for step in steps)
    assert "rogue failed" in str(steps[0].reason)


def test_a_tree_where_a_chain_was_asked_for() -> None:
    steps = run(Rogue(of([1, 2], [-1, -1])), Budget.chain(4))
    assert text(steps) == plain()
    assert not any(step.drafted for step in steps)


class FailingSession(ScriptedSession):
    """Fails for good in its fifth pass, as native code may."""

    passes = 0

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        self.passes += 1
        if self.passes >= 5:
            raise EngineFailure("llama_decode returned -3")
        return super().extend(tokens, parents, rows)

    def rewind(self, length: int) -> int:
        if self.passes >= 5:
            raise EngineFailure("the session has failed")
        return super().rewind(length)


class FailingEngine(ScriptedEngine):
    """Its sessions fail."""

    def open(self) -> ScriptedSession:
        return FailingSession(self)


def test_a_draft_whose_engine_failed_opens_a_new_session_for_the_next_request() -> None:
    """Case H13."""
    drafter = ModelDrafter(FailingEngine(TARGET.table, VOCAB))
    for _ in range(2):
        steps = run(drafter, Budget.chain(2))
        assert text(steps) == plain()
        assert steps[0].drafted == 2
        assert "llama_decode returned -3" in str(steps[-1].reason)


def test_a_target_whose_engine_failed_serves_the_next_request() -> None:
    """Case H13: the pipeline opens a new session instead of failing for ever."""
    with Pipeline(FailingEngine(TARGET.table, VOCAB), ToyTokenizer()) as pipeline:
        for _ in range(2):
            with pytest.raises(EngineFailure, match="llama_decode returned -3"):
                pipeline.run(Request(PROMPT, SamplingParams(min_tokens=50)))


@pytest.mark.parametrize("budget", [Budget.chain(4), Budget(8, 4, 2)])
def test_a_draft_engine_that_cannot_forget(budget: Budget) -> None:
    steps = run(ModelDrafter(ScriptedEngine(TARGET.table, VOCAB, rollback="none")), budget)
    assert text(steps) == plain()


def test_a_target_that_says_ids_the_draft_does_not_know() -> None:
    """Case C12: the draft pauses after such an id and goes on behind it."""
    drafter = ModelDrafter(ScriptedEngine(TARGET.table, VOCAB), limit=20)
    steps = run(drafter, count=120)
    assert text(steps) == plain(120)
    assert max(text(steps)) >= 20
    silent = [step for step in steps if step.reason is not None and "unknown to the draft" in step.reason]
    assert 0 < len(silent) < len(steps)
    last = max(index for index, step in enumerate(steps[:-2]) if step in silent)
    assert any(step.accepted for step in steps[: last + 1])


@pytest.mark.parametrize("budget", [Budget.chain(4), Budget(12, 4, 3)])
def test_a_draft_context_smaller_than_the_text(budget: Budget) -> None:
    """Case F7: 600 tokens with a draft context of 256: every proposal is right up to the end."""
    drafter = ModelDrafter(ScriptedEngine(TARGET.table, VOCAB, 256))
    steps = run(drafter, budget, 600)
    assert text(steps) == plain(600)
    assert all(step.accepted == 4 for step in steps[:-1])
    assert len(steps) == 120


def test_a_budget_larger_than_the_draft_context() -> None:
    steps = run(ModelDrafter(ScriptedEngine(TARGET.table, VOCAB, 6)), Budget.chain(8))
    assert text(steps) == plain()
    assert "draft context is 6" in str(steps[0].reason)
