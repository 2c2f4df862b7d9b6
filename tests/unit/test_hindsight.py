"""What drafters tell a gate about text that was written without them."""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.scripted import ScriptedEngine
from foredraft.sampling import History, Sampler
from foredraft.speed import LONGEST_READ, RECENT
from foredraft.types import Budget, Logits, SamplingParams, Trial
from tests.support.gates import Believing, Counting
from tests.support.scripted import RecordingEngine

VOCAB = 12
PROMPT = [1, 2, 3]
SAMPLED = SamplingParams(temperature=0.9, seed=3)
PENALISED = SamplingParams(temperature=0.9, presence_penalty=1.5, repetition_penalty=1.3, seed=3)


def table(text: tuple[int, ...]) -> Logits:
    """Another row after every text."""
    return (np.random.default_rng([len(text), *text]).standard_normal(VOCAB) * 2).astype(np.float32)


def written(count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(count).integers(0, VOCAB, count)]


def context_of(text: list[int]) -> History:
    context = History(PROMPT)
    for token in text:
        context.push(token)
    return context


def guesses(text: list[int], params: SamplingParams, count: int) -> list[Trial]:
    """From the definition: what the draft draws after every beginning of the text, of which it may have left out the
    middle."""
    found = []
    whole = [*PROMPT, *text]
    if len(text) > LONGEST_READ:
        whole = [*PROMPT[:-1], *whole[-RECENT - 1 :]]
    for at in range(len(text) - count, len(text)):
        beginning = whole[: len(whole) - len(text) + at]
        guess = Sampler(params).children(table(tuple(beginning)), context_of(text[:at]), 1)
        found.append(Trial(1, 0 if guess.ids[0] == text[at] else -1, guess.confidence[0]))
    return found


def drafted(drafter: ModelDrafter, text: list[int], budget: Budget, params: SamplingParams) -> History:
    context = context_of(text)
    drafter.begin(PROMPT)
    drafter.propose(context, budget, Sampler(params))
    context.shrink(len(PROMPT) + len(text))
    return context


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
@pytest.mark.parametrize("length", [2, 5, 16, LONGEST_READ, LONGEST_READ + 1, 100])
def test_a_model_is_compared_with_what_it_missed(length: int, params: SamplingParams) -> None:
    gate, text = Believing(), written(length)
    context = drafted(ModelDrafter(ScriptedEngine(table, VOCAB)), text, Budget(3, 3, 1, gate=gate), params)
    expected = guesses(text, params, min(length, 16))
    assert [(one.tried, one.rank) for one in gate.learned] == [(one.tried, one.rank) for one in expected]
    assert [one.confidence for one in gate.learned] == pytest.approx([one.confidence for one in expected])
    assert {trial.rank for trial in guesses(written(40), params, 40)} == {0, -1}, "both kinds occur"
    assert list(context.tokens) == [*PROMPT, *text]
    assert context.output == context_of(text).output


def test_the_draft_itself_is_the_same() -> None:
    text = written(9)
    drafts = []
    for gate in (None, Counting(99, 99)):
        drafter = ModelDrafter(ScriptedEngine(table, VOCAB))
        drafter.begin(PROMPT)
        drafts.append(drafter.propose(context_of(text), Budget(4, 4, 1, gate=gate), Sampler(SAMPLED)).tokens.tolist())
    assert drafts[0] == drafts[1] and len(drafts[0]) == 4


@pytest.mark.parametrize(("length", "gated", "rows"), [(1, True, 1), (2, True, 3), (9, True, 10), (9, False, 1)])
def test_rows_are_scored_only_where_somebody_listens(length: int, gated: bool, rows: int) -> None:
    engine = RecordingEngine(ScriptedEngine(table, VOCAB))
    budget = Budget(1, 1, 1, gate=Believing() if gated else None)
    drafted(ModelDrafter(engine), written(length), budget, SamplingParams())
    assert engine.sessions[0].passes[-1].rows == rows


def test_a_text_that_the_draft_cannot_read_is_not_judged() -> None:
    gate = Believing()
    text = [1, 2, VOCAB - 1, 2, 1]
    drafter = ModelDrafter(ScriptedEngine(table, VOCAB), limit=VOCAB - 1)
    drafted(drafter, text, Budget(2, 2, 1, gate=gate), SamplingParams())
    assert gate.learned == []


@pytest.mark.parametrize(("came", "rank"), [(7, 0), (8, -1)])
def test_a_copy_that_was_held_back_is_judged_by_what_came(came: int, rank: int) -> None:
    drafter, held, next_gate = NgramDrafter(), Counting(99, 0), Believing()
    text = [5, 6, 7, 9, 5, 6]
    assert len(drafter.propose(History(text), Budget(4, 4, 1, gate=held), Sampler(SamplingParams()))) == 0
    drafter.propose(History([*text, came]), Budget(4, 4, 1, gate=next_gate), Sampler(SamplingParams()))
    assert [trial.rank for trial in next_gate.learned] == [rank]
    again = Believing()
    drafter.propose(History([*text, came, 1]), Budget(4, 4, 1, gate=again), Sampler(SamplingParams()))
    assert again.learned == [], "once"
