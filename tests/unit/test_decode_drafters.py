"""The loop and drafters that break its rules: drafting goes off with a reason, the text stays plain decoding's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from foredraft.engines.scripted import markov_table
from foredraft.errors import EngineFailure
from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft, Ids, Law, Rule, SamplingParams
from tests.support.scripted import VOCAB, Breaks, RecordingSession, Run, Says, always_right, begin, generate, toy_engine

TABLE = markov_table(VOCAB, seed=9)
ENGINE = toy_engine(TABLE)
RUN = Run(ENGINE)
WARM = SamplingParams(temperature=0.8, top_p=0.95, seed=7)
FOUR = Budget.chain(4)


def chain(tokens: Sequence[int]) -> Draft:
    return Draft.chain(list(tokens), "third-party")


def shaped(tokens: object, parents: object, laws: tuple[Law, ...] | None = None) -> Draft:
    return Draft(tokens, parents, laws, "third-party")  # type: ignore[arg-type]


def ints(*values: int) -> Ids:
    return np.array(values, np.int32)


HALF = Law(ints(7, 9), np.zeros(2))
OTHER = Law(ints(7, 9), np.zeros(2))
BROKEN: dict[str, tuple[Draft | None, str]] = {
    "no draft": (None, "has no len()"),
    "too many nodes": (chain([7] * 5), "draft is 5; allowed: a tree of at most 4 nodes"),
    "cycle": (shaped(ints(7, 8, 9), ints(1, 0, 1)), "parents before children"),
    "own parent": (shaped(ints(7, 8), ints(-1, 1)), "parents before children"),
    "parent -2": (shaped(ints(7, 8), ints(-2, 0)), "parents before children"),
    "a tree where a chain was asked for": (shaped(ints(7, 8), ints(-1, -1)), "allowed: a chain"),
    "id beyond the vocabulary": (chain([7, VOCAB]), f"drafted token is {VOCAB}; allowed: 0 to {VOCAB - 1}"),
    "negative id": (chain([7, -1]), "drafted token is -1; allowed: 0 to"),
    "float ids": (shaped(np.array([7.0, 8.0]), ints(-1, 0)), "draft tokens is 'float64[2]'; allowed: int32[2]"),
    "int64 ids": (shaped(np.array([7, 8]), ints(-1, 0)), "draft tokens is 'int64[2]'"),
    "float parents": (shaped(ints(7, 8), np.array([-1.0, 0.0])), "draft parents is 'float64[2]'"),
    "fewer parents": (shaped(ints(7, 8), ints(-1)), "draft parents is 'int32[1]'; allowed: int32[2]"),
    "more parents": (shaped(ints(7), ints(-1, 0)), "draft parents is 'int32[2]'; allowed: int32[1]"),
    "lists": (shaped([7, 8], [-1, 0]), "'list' object has no attribute 'dtype'"),
    "a matrix": (shaped(ints(7, 8).reshape(1, 2), ints(-1).reshape(1, 1)), "draft tokens is 'int32[1, 2]'"),
    "fewer laws": (shaped(ints(7, 9), ints(-1, 0), (HALF,)), "draft laws is 1; allowed: one for each of the 2"),
    "confidence of one of two": (
        Draft(ints(7, 8), ints(-1, 0), None, "third-party", None, (0.5,)),
        "draft confidence is 1; allowed: one for each of the 2 tokens",
    ),
    "token outside its law": (shaped(ints(8), ints(-1), (HALF,)), "drafted siblings is [8]; allowed: tokens in"),
    "token behind its law": (shaped(ints(20), ints(-1), (HALF,)), "drafted siblings is [20]; allowed: tokens in"),
    "no law at all": (shaped(ints(7), ints(-1), (None,)), "'NoneType' object has no attribute 'ids'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("rule", ["coupled", "residual"])
@pytest.mark.parametrize("what", BROKEN)
def test_invalid_draft_turns_drafting_off_with_a_reason(what: str, rule: Rule) -> None:
    draft, words = BROKEN[what]
    drafter = Says(lambda context, budget, sampler: draft)  # type: ignore[arg-type,return-value]
    answer = generate(replace(RUN.sampled(WARM), rule=rule).drafting(drafter, FOUR))
    assert answer.ids == generate(replace(RUN.sampled(WARM), rule=rule)).ids
    assert drafter.calls == 1, "off for the rest of the request"
    reason = answer.reasons[0]
    assert reason is not None and words in reason
    assert reason.startswith("third-party failed, drafting is off for this request: ")
    assert answer.reasons == [reason] * 40
    assert {(step.drafter, step.drafted) for step in answer.rounds} == {("none", 0)}


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (shaped(ints(7, 7), ints(-1, -1)), "allowed: siblings that differ"),
        (shaped(ints(7, 9), ints(-1, -1), (HALF, OTHER)), "allowed: one object shared by siblings"),
        (shaped(ints(7, 8, 9, 10), ints(-1, 0, 1, 2)), "draft depth is 4; allowed: at most 2"),
        (shaped(ints(*range(7, 14)), ints(*[-1] * 7)), "draft is 7; allowed: a tree of at most 6 nodes"),
    ],
)
def test_invalid_tree_turns_drafting_off_with_a_reason(draft: Draft, words: str) -> None:
    answer = generate(RUN.drafting(Says(lambda context, budget, sampler: draft), Budget(6, 2, 7)))
    assert answer.ids == generate(RUN).ids
    assert answer.reasons[0] is not None and words in answer.reasons[0]
    assert sum(step.drafted for step in answer.rounds) == 0


@pytest.mark.parametrize("where", ["begin", "propose", "observe"])
@pytest.mark.parametrize("error", [RuntimeError("boom"), EngineFailure("boom"), MemoryError("boom"), KeyError("boom")])
def test_raising_drafter_turns_drafting_off_with_a_reason(where: str, error: Exception) -> None:
    answer = generate(RUN.drafting(Breaks(TABLE, where, 2, error), FOUR))
    assert answer.ids == generate(RUN).ids
    assert answer.reasons[-1] == f"breaks failed, drafting is off for this request: {error}"
    rounds = {"begin": 0, "propose": 2, "observe": 3}[where]
    assert [step.drafted for step in answer.rounds[: rounds + 1]] == [4] * rounds + [0]


def test_interrupt_inside_the_drafter_is_not_swallowed() -> None:
    def interrupted(context: History, budget: Budget, sampler: Sampler) -> Draft:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(RUN.drafting(Says(interrupted), FOUR))


def test_drafter_that_leaves_tokens_in_the_history_does_not_change_the_text() -> None:
    def sloppy(context: History, budget: Budget, sampler: Sampler) -> Draft:
        context.push(9)
        return Draft.chain([9], "sloppy")

    assert generate(RUN.drafting(Says(sloppy), FOUR)).ids == generate(RUN).ids


def test_failure_of_the_target_is_the_caller_s() -> None:
    session = RecordingSession(ENGINE.open(), fails_at=3, failure=EngineFailure("native code failed"))
    with pytest.raises(EngineFailure, match="native code failed"):
        list(begin(RUN.drafting(always_right(TABLE), FOUR), session))
