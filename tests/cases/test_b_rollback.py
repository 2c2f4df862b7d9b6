"""Cases B: what a rejected draft leaves behind in caches and states, which is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foredraft import certify
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.base import Session
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.engines.llama_native import NativeContext
from foredraft.engines.scripted import blended, markov_table
from foredraft.types import Budget, SamplingParams, Step
from tests.support import tiny_models
from tests.support.real import PROSE, asks, same
from tests.support.scripted import (
    END,
    VOCAB,
    Forced,
    RecordingEngine,
    RecordingSession,
    Run,
    always_right,
    begin,
    generate,
    oracle,
    recalled,
    repeats,
    toy_engine,
    writes,
)

FOUR = Budget.chain(4)
TABLE = markov_table(VOCAB, seed=9)
RUN = Run(toy_engine(TABLE))
GREEDY, WARM = SamplingParams(), SamplingParams(temperature=0.8, seed=11)
PATTERN = (None, 0, 2, 1)


def tiny_ids(length: int) -> list[int]:
    """Any text over the tiny models' vocabulary, without its special ids."""
    return [int(id) for id in np.random.default_rng(2).integers(3, tiny_models.VOCAB, length)]


def endless(engine: LlamaEngine, length: int, max_tokens: int) -> Run:
    """A request to a tiny model that only its cap ends."""
    run = asks(engine, tiny_ids(length), max_tokens)
    return replace(run, limits=replace(run.limits, eog_ids=frozenset()))


def forced(run: Run) -> tuple[list[int], list[int]]:
    """Ids of plain decoding and of drafts of 4 with every kind of accepted length."""
    reference = generate(run).ids
    answer = generate(run.drafting(Forced(recalled([*run.prompt, *reference]), PATTERN), FOUR))
    assert answer.summary.accepted > 0 and answer.summary.evaluated > answer.summary.accepted
    return reference, answer.ids


# --- sliding windows --------------------------------------------------------------------------------------------------


def test_b1_gemma_past_its_window_is_plain(gemma3_engine: LlamaEngine) -> None:
    """Case B1: the text crosses 512 tokens, the window, with accepted and rejected drafts on both sides."""
    tokens = gemma3_engine.tokenizer.encode(PROSE * 14, add_special=True, parse_special=False)[:488]
    run = asks(gemma3_engine, tokens, 48)
    reference, ids = forced(run)
    assert len(tokens) + len(ids) > 512
    assert certify.first_difference(reference, ids) is None
    copied = generate(run.drafting(NgramDrafter(), FOUR))
    assert copied.ids == reference and copied.summary.accepted > 0


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
def test_b1_small_window_is_passed_many_times(tiny_gemma3: LlamaEngine, params: SamplingParams) -> None:
    """Case B1: a window of 8 tokens, 120 generated."""
    run = endless(tiny_gemma3, 5, 120).sampled(params)
    reference, ids = forced(run)
    assert len(ids) == 120
    assert same(run, reference, ids)
    draft = generate(run.drafting(ModelDrafter(tiny_gemma3), FOUR))
    assert same(run, reference, draft.ids) and draft.summary.alpha == 1.0


def test_b4_a_request_that_crosses_1024_tokens_on_a_sliding_window(tiny_gemma3: LlamaEngine) -> None:
    """Case B4: prompt 1000 + 100 new tokens: the full answer, drafting on."""
    run = endless(tiny_gemma3, 1000, 100)
    reference, ids = forced(run)
    assert len(ids) == 100 and same(run, reference, ids)


# --- recurrent states -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny_mamba", "tiny_jamba"])
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
def test_b6_recurrent_models_are_rolled_back_by_replay(
    name: str, params: SamplingParams, request: pytest.FixtureRequest
) -> None:
    """Case B6: probed, not assumed; checkpoint and replay give the plain text."""
    engine: LlamaEngine = request.getfixturevalue(name)
    assert (engine.info.rollback, engine.info.tree) == ("replay", False)
    assert engine.info.reason is not None and "recurrent" in engine.info.reason
    run = endless(engine, 9, 60).sampled(params)
    reference, ids = forced(run)
    assert len(ids) == 60 and same(run, reference, ids)


def test_b6_a_recurrent_draft_is_rolled_back_too(tiny_mamba: LlamaEngine, tiny_llama: LlamaEngine) -> None:
    """Case B6: the draft's own state follows the accepted tokens; then its proposals are always right."""
    run = endless(tiny_mamba, 9, 40)
    answer = generate(run.drafting(ModelDrafter(tiny_mamba), FOUR))
    assert answer.summary.alpha == 1.0
    other = generate(run.drafting(ModelDrafter(tiny_llama), FOUR))
    assert same(run, generate(run).ids, answer.ids) and same(run, generate(run).ids, other.ids)
    assert other.summary.alpha is not None and other.summary.alpha < 1.0


@pytest.fixture
def forgetless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LlamaEngine]:
    """A recurrent model whose state llama.cpp does not hand out."""
    monkeypatch.setattr(NativeContext, "checkpoint", lambda self: None)
    engine = LlamaEngine(tiny_models.write_mamba(tmp_path / "mamba.gguf"), LlamaConfig(context=256, threads=1))
    yield engine
    engine.close()


def test_b5_a_model_that_cannot_be_rolled_back_answers_plainly_and_says_so(forgetless: LlamaEngine) -> None:
    """Case B5: no error, the full answer, and the reason in every round."""
    assert forgetless.info.rollback == "none"
    run = endless(forgetless, 9, 20)
    for drafter in (ModelDrafter(forgetless), NgramDrafter(), repeats(5)):
        answer = generate(run.drafting(drafter, FOUR))
        assert answer.ids == generate(run).ids and len(answer.ids) == 20
        reasons = {"rollback: none, plain decoding (llama.cpp can neither trim nor restore this model's state)"}
        assert set(answer.reasons) == reasons
        assert answer.summary.drafted == 0


def test_b5_a_draft_that_cannot_be_rolled_back_is_left_out_and_says_so(
    forgetless: LlamaEngine, tiny_llama: LlamaEngine
) -> None:
    """Case B5, the other way round: the target is fine, its draft is not."""
    run = endless(tiny_llama, 9, 20)
    answer = generate(run.drafting(ModelDrafter(forgetless), FOUR))
    assert answer.ids == generate(run).ids and len(answer.ids) == 20
    last = answer.reasons[-2]
    assert last is not None and "drafting is off for this request" in last and "cannot forget" in last


# --- what lies behind the end of the text -----------------------------------------------------------------------------


def test_b7_nothing_behind_the_end_is_kept_or_counted() -> None:
    """Case B7: a draft of 48 copies of an end token, the first of which ends the text."""
    table = writes([60, 61, END], prompt_length=3)
    run = Run(toy_engine(table)).upto(200)
    answer = generate(run.drafting(repeats(END), Budget.chain(48)))
    assert (answer.ids, answer.finish) == ([60, 61, END], "stop")
    last = answer.rounds[-1]
    assert (last.drafted, last.evaluated, last.accepted, last.generated) == (48, 1, 1, 1)
    assert answer.summary.accepted == 1, "only one of the 48 belongs to the text"
    assert answer.session.text == [*run.prompt, 60, 61, END]


@pytest.mark.parametrize("budget", [FOUR, Budget(9, 3, 3)], ids=["chain", "tree"])
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
def test_b7_the_next_turn_reuses_exactly_the_tokens_shown(budget: Budget, params: SamplingParams) -> None:
    """Case B7: the cache holds a prefix of prompt + shown tokens, so a second turn reads only what is new."""
    run = RUN.upto(17).sampled(params)
    session = RecordingSession(run.engine.open())
    shown = [*run.prompt, *_ids(run.drafting(ModelDrafter(run.engine), budget), session)]
    assert session.text == shown[: session.length]
    assert len(shown) - session.length <= 1, "only a bonus token is not fed yet"
    following = replace(run, prompt=(*shown, 8, 12))
    session.passes.clear()
    held = session.length
    ids = _ids(following.drafting(ModelDrafter(run.engine), budget), session)
    assert ids == generate(following).ids
    assert session.passes[0].tokens == following.prompt[held:-1]


def _ids(run: Run, session: Session) -> list[int]:
    return [id for step in begin(run, session) for id in step.ids]


# --- several sequences ------------------------------------------------------------------------------------------------


def test_b9_parallel_requests_with_different_accepted_lengths_equal_their_lone_runs() -> None:
    """Case B9: three requests of different length in turns, accepting 0, 2 and all tokens a round."""
    runs = [replace(RUN, prompt=tuple(range(20, 20 + length))).upto(30) for length in (2, 5, 11)]
    runs = [
        run.drafting(Forced(oracle(TABLE), (accepted,)), FOUR) for run, accepted in zip(runs, (0, 2, 4), strict=True)
    ]
    assert _in_turns(runs) == [generate(run.plain).ids for run in runs]


def test_b9_parallel_sessions_of_one_real_engine(tiny_llama: LlamaEngine) -> None:
    """Case B9 on llama.cpp: sessions share weights, not caches."""
    runs = []
    for length, accepted in ((3, 0), (6, 2), (12, 4)):
        run = endless(tiny_llama, length, 30)
        runs.append(run.drafting(Forced(recalled([*run.prompt, *generate(run).ids]), (accepted,)), FOUR))
    assert _in_turns(runs) == [generate(run).ids for run in runs]


def _in_turns(runs: list[Run]) -> list[list[int]]:
    """One step of each request at a time."""
    sessions = [run.engine.open() for run in runs]
    iterators: list[Iterator[Step] | None] = [begin(run, session) for run, session in zip(runs, sessions, strict=True)]
    ids: list[list[int]] = [[] for _ in runs]
    while any(iterators):
        for index, iterator in enumerate(iterators):
            step = next(iterator, None) if iterator else None
            if step is None:
                iterators[index] = None
            else:
                ids[index] += step.ids
    for session in sessions:
        session.close()
    return ids


def test_b7_a_conversation_of_three_turns_on_a_real_model(smollm2_engine: LlamaEngine) -> None:
    """Case B7: each turn continues in the same session, with and without a draft alike."""
    plain, drafted = (RecordingSession(smollm2_engine.open()) for _ in range(2))
    text = smollm2_engine.tokenizer.encode("Q: 2+2?\nA:", add_special=True, parse_special=True)
    more = smollm2_engine.tokenizer.encode("\nQ: 3+3?\nA:", add_special=False, parse_special=True)
    for _ in range(3):
        run = asks(smollm2_engine, text, 12)
        answer = _ids(run.drafting(NgramDrafter(), FOUR), drafted)
        assert answer == _ids(run, plain)
        assert drafted.text == [*text, *answer][: drafted.length]
        text = [*text, *answer, *more]
    assert sum(one.rows for one in drafted.passes) > len(drafted.passes), "something was drafted"
    plain.close()
    drafted.close()


def test_b7_rejected_tokens_are_gone_from_the_session() -> None:
    """A round that rejects everything leaves the cache at the committed tokens."""
    run = RUN.upto(12)
    answer = generate(run.drafting(Forced(oracle(TABLE), (0,)), FOUR))
    assert answer.session.text == [*run.prompt, *answer.ids][:-1]
    right = generate(run.drafting(always_right(TABLE), FOUR))
    assert right.session.text == [*run.prompt, *right.ids][: len(right.session.text)]


@pytest.mark.parametrize("budget", [FOUR, Budget(4, 4, 2)], ids=["chain", "tree"])
def test_b7_the_draft_keeps_what_was_accepted(budget: Budget) -> None:
    """The draft's cache is rolled back like the target's: with every proposal accepted no token is read twice."""
    engine = RecordingEngine(RUN.engine)
    answer = generate(RUN.drafting(ModelDrafter(engine), budget))
    assert answer.summary.alpha == 1.0
    (session,) = engine.sessions
    text = [*RUN.prompt, *answer.ids]
    assert session.text == text[: session.length]
    rejected_siblings = sum(step.drafted - step.accepted for step in answer.rounds)
    assert sum(session.widths) <= len(text) + rejected_siblings
    if budget == FOUR:
        assert [id for one in session.passes for id in one.tokens] == text[: sum(session.widths)]


def test_b7_the_draft_reads_only_the_bonus_token_after_a_partial_acceptance() -> None:
    """What was accepted is in the draft's cache already; only a fully accepted draft has a last token left to read."""
    engine = RecordingEngine(toy_engine(blended(TABLE, markov_table(VOCAB, seed=3), 0.02)))
    answer = generate(RUN.drafting(ModelDrafter(engine), FOUR))
    drafted = [step for step in answer.rounds if step.drafted]
    assert {step.accepted for step in drafted[:-1]} >= {0, 2, 4}
    wide = [len(one.tokens) for one in engine.sessions[0].passes[1:] if len(one.tokens) > 1]
    assert wide == [2] * sum(step.accepted == step.drafted for step in drafted[:-1])
