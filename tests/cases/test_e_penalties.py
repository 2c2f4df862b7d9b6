"""Cases E: penalties over each path's own history, every setting honoured, log-probabilities of the target's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from foredraft.decode import Limits
from foredraft.drafters.base import Drafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.llama_cpp import LlamaEngine
from foredraft.engines.scripted import ScriptedEngine, blended, markov_table
from foredraft.sampling import log_softmax_at, top_logprobs
from foredraft.types import Budget, Emitted, SamplingParams
from tests.support.real import asks
from tests.support.scripted import (
    EOG,
    VOCAB,
    Forced,
    RecordingSampler,
    Run,
    always_right,
    constant,
    generate,
    oracle,
    recalled,
    repeats,
    toy_engine,
    writes,
)

FOUR = Budget.chain(4)
TREE = Budget(9, 4, 3)
TABLE = markov_table(VOCAB, seed=9)
RUN = Run(toy_engine(TABLE))


# --- E1 ---------------------------------------------------------------------------------------------------------------


def test_e1_every_token_of_a_round_counts() -> None:
    """Case E1: four accepted tokens of one round shift the logit by 4 × 0.5 = 2.0, not by 0.5."""
    engine = ScriptedEngine(constant(0.0, 10.0, 8.3), 3)
    sampler = RecordingSampler(SamplingParams(frequency_penalty=0.5), frozenset())
    run = Run(engine, (0,), repeats(1), FOUR, sampler.params, limits=Limits(6), sampler=sampler)
    answer = generate(run)
    assert answer.rounds[0].accepted == 4, "forced"
    assert answer.ids[:5] == [1, 1, 1, 1, 2], "10 - 2.0 < 8.3: the fifth is another token"
    shifts = [10.0 - float(sampler.rows[position][1]) for position in range(1, 6)]
    assert shifts == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert answer.ids == generate(run.plain).ids


@pytest.mark.parametrize("accepts", [(0,), (2,), (4,), (None, 0, 3)])
@pytest.mark.parametrize("min_tokens", [1, 8, 40])
def test_e1_min_tokens_counts_tokens_not_rounds(accepts: tuple[int | None, ...], min_tokens: int) -> None:
    """Case E1: the target wants to end at once; it may after exactly ``min_tokens`` tokens."""
    table = writes([4], prompt_length=3)  # an end token, wherever
    run = Run(toy_engine(table)).sampled(SamplingParams(min_tokens=min_tokens))
    answer = generate(run.drafting(Forced(oracle(table), accepts), FOUR))
    assert answer.ids == generate(run).ids
    assert len(answer.ids) == min(min_tokens + 1, 40)
    assert not EOG & set(answer.ids[:min_tokens])


# --- E3 ---------------------------------------------------------------------------------------------------------------

SETTINGS = {
    "temperature": SamplingParams(temperature=1.5),
    "top_k": SamplingParams(temperature=0.8, top_k=2),
    "top_p": SamplingParams(temperature=0.8, top_p=0.3),
    "min_p": SamplingParams(temperature=0.8, min_p=0.6),
    "repetition_penalty": SamplingParams(repetition_penalty=1.6),
    "presence_penalty": SamplingParams(presence_penalty=1.5),
    "frequency_penalty": SamplingParams(frequency_penalty=1.5),
    "penalty_window": SamplingParams(presence_penalty=1.5, penalty_window=3),
    "min_tokens": SamplingParams(min_tokens=30),
    "logit_bias": SamplingParams(logit_bias={60: 4.0}),
    "seed": SamplingParams(temperature=0.8, seed=123),
}
BASES = {
    "top_k": SamplingParams(temperature=0.8),
    "top_p": SamplingParams(temperature=0.8),
    "min_p": SamplingParams(temperature=0.8),
    "penalty_window": SamplingParams(presence_penalty=1.5),
    "seed": SamplingParams(temperature=0.8),
}


@pytest.mark.parametrize("budget", [FOUR, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("name", SETTINGS)
def test_e3_every_setting_changes_the_text_with_a_draft_as_without(name: str, budget: Budget) -> None:
    """Case E3: no setting is dropped under speculation; each one's effect is plain decoding's."""
    table = markov_table(24, order=1, seed=1)  # a small vocabulary repeats itself: penalties have work to do
    run = Run(ScriptedEngine(table, 24), (9, 10, 11), limits=Limits(40, frozenset({2, 4})))
    if name == "logit_bias":
        run = RUN
    if name == "min_tokens":
        run = Run(toy_engine(writes([60, 61, 4], 3)))
    draft = ModelDrafter(run.engine)
    with_setting = generate(run.sampled(SETTINGS[name]).drafting(draft, budget)).ids
    without = generate(run.sampled(BASES.get(name, SamplingParams())).drafting(draft, budget)).ids
    assert with_setting == generate(run.sampled(SETTINGS[name])).ids
    assert with_setting != without, "the setting does something here"


def test_e3_every_field_is_covered() -> None:
    """Case E3: a new sampling setting needs a line above."""
    assert set(SETTINGS) == set(SamplingParams.__dataclass_fields__)


# --- E4 ---------------------------------------------------------------------------------------------------------------

PENALTIES = {
    "repetition 1.3": SamplingParams(repetition_penalty=1.3),
    "repetition 1.3, window": SamplingParams(repetition_penalty=1.3, penalty_window=5),
    "presence": SamplingParams(presence_penalty=0.7),
    "frequency": SamplingParams(frequency_penalty=0.7),
    "all": SamplingParams(
        repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.3, penalty_window=9, logit_bias={20: -1.0}
    ),
    "all, warm": SamplingParams(
        temperature=0.8, repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.3, seed=4
    ),
}


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("budget", [FOUR, TREE], ids=["chain", "tree"])
def test_e4_processed_logits_are_the_same_at_every_verified_position(name: str, budget: Budget) -> None:
    """Case E4: bit for bit the rows of plain decoding, for accepted and rejected drafts: nothing counts twice."""
    table = markov_table(24, order=2, seed=3)
    run = Run(ScriptedEngine(table, 24), (9, 10, 11, 9), limits=Limits(40)).sampled(PENALTIES[name])
    reference = RecordingSampler(run.params, frozenset())
    plain = generate(replace(run, sampler=reference))
    for source in (table, blended(table, markov_table(24, seed=8), 0.3)):
        sampler = RecordingSampler(run.params, frozenset())
        drafter = ModelDrafter(ScriptedEngine(source, 24))
        answer = generate(replace(run, sampler=sampler).drafting(drafter, budget))
        assert answer.ids == plain.ids and answer.summary.accepted > 0
        assert sampler.rows.keys() == reference.rows.keys()
        for position, row in reference.rows.items():
            assert np.array_equal(sampler.rows[position], row), position


def test_e4_penalties_by_hand() -> None:
    """Case E4: what the rows should be, computed from the definition."""
    params = SamplingParams(repetition_penalty=1.3)
    sampler = RecordingSampler(params, frozenset())
    engine = ScriptedEngine(constant(2.0, 1.9, -1.0, 1.8), 4)
    answer = generate(Run(engine, (2,), params=params, limits=Limits(4), sampler=sampler).drafting(repeats(0), FOUR))
    assert answer.ids == [0, 1, 3, 0]
    first, second = sampler.rows[1].tolist(), sampler.rows[2].tolist()
    assert first == pytest.approx([2.0, 1.9, -1.3, 1.8], abs=1e-6)
    assert second == pytest.approx([2.0 / 1.3, 1.9, -1.3, 1.8], abs=1e-6), "once, not twice"


# --- E5 ---------------------------------------------------------------------------------------------------------------


def emitted(run: Run) -> list[Emitted]:
    return [token for step in generate(run).steps for token in step.emitted]


def reference_logprobs(engine: LlamaEngine, text: Sequence[int], new: int) -> list[tuple[float, tuple[int, ...]]]:
    """Log-probability and best three ids of each of the last ``new`` tokens, scored one at a time."""
    session = engine.open()
    found = []
    for index, id in enumerate(text[:-1]):
        row = session.extend(np.array([id], np.int32), np.array([-1], np.int32), 1).logits[0]
        if index >= len(text) - new - 1:
            top = tuple(best for best, _ in top_logprobs(row, 3))
            found.append((float(log_softmax_at(row, [text[index + 1]])[0]), top))
        session.keep([0])
    session.close()
    return found


@pytest.mark.parametrize("draft", ["ngram", "model", "right"])
def test_e5_logprobs_of_a_real_model_are_those_of_plain_decoding(smollm2_engine: LlamaEngine, draft: str) -> None:
    """Case E5: "The capital of France is", 10 tokens, 3 alternatives: within 1e-3 of the reference, and below 0."""
    run = asks(smollm2_engine, "The capital of France is", 10)
    run = replace(run, limits=replace(run.limits, logprobs=3))
    plain = emitted(run)
    text = [*run.prompt, *(token.id for token in plain)]
    drafters: dict[str, Drafter] = {
        "ngram": NgramDrafter(),
        "model": ModelDrafter(smollm2_engine),
        "right": Forced(recalled(text), (None, 1)),
    }
    tokens = emitted(run.drafting(drafters[draft], FOUR))
    assert [token.id for token in tokens] == [token.id for token in plain]
    for token, ref, (logprob, best) in zip(tokens, plain, reference_logprobs(smollm2_engine, text, 10), strict=True):
        assert token.logprob is not None and ref.logprob is not None and token.top is not None
        assert token.logprob < 0.0
        assert token.logprob == pytest.approx(ref.logprob, abs=1e-3)
        assert token.logprob == pytest.approx(logprob, abs=1e-3)
        assert tuple(id for id, _ in token.top) == best
        assert len(token.top) == 3 and token.top[0][1] >= token.logprob


def test_e5_a_sure_token_has_a_logprob_below_0_too() -> None:
    """Case E5: 0.0 would mean that the number was never taken."""
    run = replace(Run(toy_engine(writes([60, 61, 62, 63, 64], 3))), limits=Limits(5, EOG, logprobs=1))
    for token in emitted(run.drafting(always_right(writes([60, 61, 62, 63, 64], 3)), FOUR)):
        assert token.logprob is not None
        assert token.logprob == pytest.approx(-np.log1p((VOCAB - 1) * np.exp(-8.0)), rel=1e-4)
