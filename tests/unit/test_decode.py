"""The loop: prompts, limits, prefill, cancelling, log-probabilities, reasons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from foredraft.control import OFF, fixed
from foredraft.decode import PREFILL, Limits, Parts, decode
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.null import NullDrafter
from foredraft.engines.scripted import ScriptedEngine, markov_table
from foredraft.errors import ContextFull, InvalidValue, PromptError
from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft, SamplingParams, Step
from tests.support.scripted import (
    EOG,
    VOCAB,
    Answer,
    Forced,
    RecordingEngine,
    RecordingSession,
    Run,
    Says,
    always_right,
    always_wrong,
    begin,
    generate,
    oracle,
    repeats,
    toy_engine,
    writes,
)

TABLE = markov_table(VOCAB, seed=9)
ENGINE = toy_engine(TABLE)
RUN = Run(ENGINE)
WARM = SamplingParams(temperature=0.8, top_p=0.95, seed=7)
FOUR = Budget.chain(4)


# --- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ((), "the prompt is empty; give at least one token"),
        ((5, VOCAB), f"token id {VOCAB} is outside the model's vocabulary of {VOCAB}"),
        ((5, -1), f"token id -1 is outside the model's vocabulary of {VOCAB}"),
        ((5,) * 4096, "the prompt has 4096 tokens, the context holds 4096 including at least one new token"),
        ((5,) * 5000, "the prompt has 5000 tokens"),
    ],
)
def test_unusable_prompts_are_refused_before_the_first_step(prompt: Sequence[int], words: str) -> None:
    session = RecordingSession(ENGINE.open())
    with pytest.raises(PromptError) as caught:
        begin(replace(RUN, prompt=prompt), session)
    assert str(caught.value).startswith(words)
    assert session.passes == []


def test_prompt_that_leaves_room_for_one_token() -> None:
    answer = generate(replace(RUN, prompt=(9,) * 4095).drafting(always_right(TABLE), FOUR))
    assert (len(answer.ids), answer.finish) == (1, "length")


@pytest.mark.parametrize("kind", [list, tuple, lambda ids: np.array(ids, np.int32)])
def test_prompt_may_be_any_sequence(kind: type) -> None:
    assert generate(replace(RUN, prompt=kind([1, 60, 70]))).ids == generate(RUN).ids


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_tokens", -1, "max_tokens is -1; allowed: 0 or a positive integer"),
        ("logprobs", -1, "logprobs is -1; allowed: 0 to 100 alternatives"),
        ("logprobs", 101, "logprobs is 101; allowed: 0 to 100 alternatives"),
        ("chunk", 0, "chunk is 0; allowed: a positive integer"),
    ],
)
def test_limits_outside_their_range_are_named(name: str, value: int, words: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Limits(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value) == words


def test_max_tokens_0_runs_nothing() -> None:
    answer = generate(RUN.upto(0).drafting(always_right(TABLE), FOUR))
    assert (answer.ids, answer.finish, answer.session.passes) == ([], "length", [])


@pytest.mark.parametrize("max_tokens", [1, 2, 4, 5, 6, 11])
@pytest.mark.parametrize("drafter", [NullDrafter(), always_right(TABLE), always_wrong(TABLE)], ids=lambda d: d.name)
def test_exactly_max_tokens(max_tokens: int, drafter: Forced | NullDrafter) -> None:
    answer = generate(RUN.upto(max_tokens).drafting(drafter, FOUR))
    assert (len(answer.ids), answer.finish) == (max_tokens, "length")
    assert answer.ids == generate(RUN).ids[:max_tokens]


def test_draft_is_cut_by_max_tokens() -> None:
    """The bonus token always comes too, so the last round drafts one token less than is left."""
    answer = generate(RUN.upto(12).drafting(always_right(TABLE), Budget.chain(8)))
    assert [(step.drafted, step.generated) for step in answer.rounds] == [(8, 9), (2, 3)]
    last = generate(RUN.upto(10).drafting(always_right(TABLE), Budget.chain(8))).rounds[-1]
    assert (last.drafted, last.generated, last.reason) == (0, 1, "budget 0")


def test_tree_is_cut_by_max_tokens_in_depth() -> None:
    asked: list[Budget] = []

    def nothing(context: History, budget: Budget, sampler: Sampler) -> Draft:
        asked.append(budget)
        return Draft.empty()

    generate(RUN.upto(5).drafting(Says(nothing), Budget(12, 4, 3)))
    assert asked == [Budget(12, 4, 3), Budget(12, 3, 3), Budget(12, 2, 3), Budget(12, 1, 3)]


def test_tree_is_cut_by_the_context_in_nodes() -> None:
    asked: list[Budget] = []

    def nothing(context: History, budget: Budget, sampler: Sampler) -> Draft:
        asked.append(budget)
        return Draft.empty()

    run = replace(RUN, engine=toy_engine(TABLE, 10), prompt=(8,) * 5)
    answer = generate(run.drafting(Says(nothing), Budget(12, 4, 3)))
    assert asked == [Budget(5, 4, 3), Budget(4, 3, 3), Budget(3, 2, 3), Budget(2, 1, 3)]
    assert (len(answer.ids), answer.finish) == (5, "length")


def test_engine_without_trees_is_asked_for_chains_only() -> None:
    engine = replace(ENGINE, tree=False)
    run = replace(RUN, engine=engine).drafting(ModelDrafter(ENGINE), Budget(8, 3, 3))
    answer = generate(run)
    assert answer.ids == generate(RUN).ids
    assert {step.drafted for step in answer.rounds} == {3}


# --- prefill ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 512])
@pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "warm"])
def test_prompt_in_chunks_gives_the_same_text(chunk: int, params: SamplingParams) -> None:
    run = replace(RUN.sampled(params), prompt=tuple(range(10, 21)))
    answer = generate(replace(run, limits=replace(run.limits, chunk=chunk)))
    assert answer.ids == generate(run).ids
    prefill = [step for step in answer.steps if step.drafter == PREFILL]
    assert [step.width for step in prefill] == [min(chunk, 10 - start) for start in range(0, 10, chunk)]
    assert all(step.ids == () and step.generated == 0 and step.finish_reason is None for step in prefill)
    assert [one.rows for one in answer.session.passes[: len(prefill)]] == [0] * len(prefill)


@pytest.mark.parametrize("held", [1, 4, 9, 10, 11])
def test_session_that_already_holds_a_prefix_of_the_prompt(held: int) -> None:
    """The whole prompt is a prefix too: then its last token is fed again to be scored."""
    run = replace(RUN, prompt=tuple(range(10, 21))).drafting(always_right(TABLE), FOUR)
    session = RecordingSession(ENGINE.open())
    session.extend(np.array(run.prompt[:held], np.int32), np.arange(-1, held - 1, dtype=np.int32), 0)
    session.keep(range(held))
    session.passes.clear()
    steps = list(begin(run, session))
    assert [id for step in steps for id in step.ids] == generate(run).ids
    fed = [id for one in session.passes for id in one.tokens]
    assert fed[: 11 - held] == list(run.prompt[held:])
    assert session.text[:11] == list(run.prompt)


def test_session_that_cannot_be_cut_reads_the_prompt_again() -> None:
    engine = replace(ENGINE, rollback="none")
    session = RecordingSession(engine.open())
    session.extend(np.array(RUN.prompt, np.int32), np.arange(-1, 2, dtype=np.int32), 0)
    session.keep(range(3))
    run = replace(RUN, engine=engine)
    steps = list(begin(run, session))
    assert [id for step in steps for id in step.ids] == generate(RUN).ids


def test_a_second_request_goes_on_in_the_same_session() -> None:
    """A conversation: the next prompt starts with the last prompt and answer."""
    session = RecordingSession(ENGINE.open())
    run = RUN.upto(10).drafting(always_right(TABLE), FOUR)
    first = [id for step in begin(run, session) for id in step.ids]
    longer = replace(run, prompt=(*run.prompt, *first, 33, 44))
    session.passes.clear()
    second = [id for step in begin(longer, session) for id in step.ids]
    assert second == generate(longer.plain).ids
    assert sum(len(one.tokens) for one in session.passes[:1]) <= 3, "what is cached is not read again"


# --- cancelling -------------------------------------------------------------------------------------------------------


def test_closing_the_iterator_cancels_and_leaves_a_clean_session() -> None:
    run = RUN.drafting(always_right(TABLE), FOUR)
    session = RecordingSession(ENGINE.open())
    steps = begin(run, session)
    seen = [next(steps), next(steps), next(steps)]
    steps.close()
    passes = len(session.passes)
    assert list(steps) == []
    assert len(session.passes) == passes == 3
    shown = [*run.prompt, *(id for step in seen for id in step.ids)]
    assert session.text == shown[:-1], "the bonus token is not fed yet"
    assert session.pending == []
    again = replace(run, prompt=tuple(shown))
    assert [id for step in begin(again, session) for id in step.ids] == generate(again.plain).ids


def test_nothing_runs_before_the_first_step_is_asked_for() -> None:
    session = RecordingSession(ENGINE.open())
    begin(RUN, session)
    assert session.passes == []


# --- log-probabilities ------------------------------------------------------------------------------------------------


def expected_logprobs(text: Sequence[int]) -> list[float]:
    row = TABLE(tuple(text)).astype(np.float64)
    return [float(value) for value in row - math.log(np.exp(row).sum())]


@pytest.mark.parametrize("params", [SamplingParams(), WARM, SamplingParams(frequency_penalty=1.5)])
@pytest.mark.parametrize("budget", [OFF, FOUR])
def test_logprobs_are_the_unprocessed_law_of_the_row_that_scored_the_token(
    params: SamplingParams, budget: Budget
) -> None:
    run = replace(RUN.sampled(params), limits=Limits(12, EOG, logprobs=3)).drafting(always_right(TABLE), budget)
    text = list(run.prompt)
    for token in (token for step in generate(run).steps for token in step.emitted):
        reference = expected_logprobs(text)
        assert token.logprob == pytest.approx(reference[token.id], abs=1e-5)
        assert token.top is not None
        best = sorted(range(VOCAB), key=lambda id: -reference[id])[:3]
        assert [id for id, _ in token.top] == best
        assert [value for _, value in token.top] == pytest.approx([reference[id] for id in best], abs=1e-5)
        text.append(token.id)


def test_logprobs_0_gives_the_token_s_own_only() -> None:
    tokens = [token for step in generate(replace(RUN, limits=Limits(5, logprobs=0))).steps for token in step.emitted]
    assert [token.top for token in tokens] == [()] * 5
    assert all(token.logprob is not None and token.logprob < 0 for token in tokens)


def test_no_logprobs_unless_asked_for() -> None:
    tokens = [token for step in generate(RUN).steps for token in step.emitted]
    assert {(token.logprob, token.top) for token in tokens} == {(None, None)}


def test_emitted_tokens_say_whether_they_were_drafted() -> None:
    run = RUN.upto(10).drafting(Forced(oracle(TABLE), (2, 0, 4)), FOUR)
    drafted = [[token.drafted for token in step.emitted] for step in generate(run).rounds]
    assert drafted == [[True, True, False], [False], [True] * 4 + [False], [False]]


# --- reasons ----------------------------------------------------------------------------------------------------------


def test_steps_say_why_nothing_was_drafted() -> None:
    def reasons(run: Run) -> set[str | None]:
        return set(generate(run).reasons)

    assert reasons(RUN) == {"budget 0"}
    assert reasons(RUN.drafting(NullDrafter("no draft was given"), FOUR)) == {"no draft was given", "budget 0"}
    silent = Says(lambda context, budget, sampler: Draft.empty("silent", "nothing to say"))
    assert reasons(RUN.drafting(silent, FOUR)) == {"nothing to say", "budget 0"}
    engine = replace(ENGINE, rollback="none")
    run = replace(RUN, engine=engine).drafting(always_right(TABLE), FOUR)
    assert reasons(run) == {"rollback: none, plain decoding (this engine cannot forget tokens)"}
    assert generate(run).ids == generate(RUN).ids


def test_budget_0_never_asks_the_drafter() -> None:
    drafter = repeats(9)
    generate(RUN.drafting(drafter, OFF))
    assert drafter.calls == 0


def test_the_prompt_is_given_to_the_drafter_once() -> None:
    drafter = repeats(9)
    generate(RUN.drafting(drafter, FOUR))
    assert drafter.prompts == [list(RUN.prompt)]


def test_controller_sees_every_round_and_its_length() -> None:
    class Watching:
        def __init__(self) -> None:
            self.begun: list[int] = []
            self.lengths: list[int] = []
            self.steps: list[Step] = []

        def begin(self) -> None:
            self.begun.append(len(self.lengths))

        def budget(self, length: int) -> Budget:
            self.lengths.append(length)
            return Budget.chain(len(self.lengths) % 3)

        def observe(self, step: Step) -> None:
            self.steps.append(step)

    watching = Watching()
    answer = generate(replace(RUN, controller=watching, drafter=always_right(TABLE)).upto(12))
    assert watching.begun == [0], "once, before the first round"
    assert watching.steps == answer.rounds
    generated = np.cumsum([0, *(step.generated for step in answer.rounds)]).tolist()
    assert watching.lengths == [3 + count for count in generated[:-1]]
    assert [step.drafted for step in answer.rounds] == [1, 2, 0, 1, 2, 0]


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tv", [0.0, 1.0, -0.1, math.nan])
def test_relaxed_needs_a_bound(max_tv: float) -> None:
    run = replace(RUN.sampled(WARM), rule="relaxed", limits=Limits(5, EOG, max_tv=max_tv))
    session = RecordingSession(ENGINE.open())
    with pytest.raises(InvalidValue, match=r"max_tv is .*; allowed: a number in \(0, 1\)"):
        begin(run, session)
    assert session.passes == []


def test_relaxed_states_the_bias_it_spent() -> None:
    limits = Limits(40, EOG, max_tv=0.02)
    run = replace(RUN.sampled(WARM), rule="relaxed", limits=limits).drafting(always_wrong(TABLE), FOUR)
    spent = [step.bias for step in generate(run).rounds]
    assert spent[0] == pytest.approx(0.02)
    assert all(
        0 <= bias <= 0.02 * step.generated + 1e-12 for bias, step in zip(spent, generate(run).rounds, strict=True)
    )
    assert {step.bias for step in generate(replace(run, rule="residual")).rounds} == {0.0}


def test_time_is_split_into_four_parts() -> None:
    answer = generate(RUN.drafting(always_right(TABLE), FOUR))
    for step in answer.rounds[:-1]:
        parts = (step.seconds.draft, step.seconds.verify, step.seconds.keep, step.seconds.other)
        assert all(part > 0 for part in parts)
        assert step.seconds.total == pytest.approx(sum(parts))


def test_parts_default_to_plain_decoding() -> None:
    parts = Parts(ENGINE.open(), ENGINE.info, Sampler(SamplingParams()))
    assert [id for step in decode(parts, RUN.prompt, Limits(40, EOG)) for id in step.ids] == generate(RUN).ids


def test_fixed_controller_gives_chains_and_trees() -> None:
    run = replace(RUN, drafter=ModelDrafter(ENGINE))
    tree = generate(replace(run, controller=fixed(3, tree=7)))
    assert {step.drafted for step in tree.rounds[:-2]} == {7}
    assert {step.drafted for step in generate(replace(run, controller=fixed(3))).rounds[:-2]} == {3}
    assert tree.ids == generate(RUN).ids


def test_full_context_of_the_session_is_the_caller_s_error() -> None:
    """EngineInfo promised more room than the session has."""
    small = ScriptedEngine(TABLE, VOCAB, 16)
    run = replace(RUN, engine=small)
    info = replace(small.info, max_context=64)
    parts = Parts(small.open(), info, Sampler(SamplingParams()))
    with pytest.raises(ContextFull):
        list(decode(parts, run.prompt, run.limits))


def test_recording_engine_notes_sessions() -> None:
    engine = RecordingEngine(ENGINE)
    answer: Answer = generate(replace(RUN, engine=engine).upto(3))
    assert [one.rows for one in engine.sessions[0].passes] == [0, 1, 1, 1]
    assert answer.session.widths == [2, 1, 1, 1]


def test_stop_ids_end_the_text_inside_a_draft() -> None:
    """More in tests/cases/test_f_stops.py."""
    table = writes([60, 61, 4, 62, 63], 3)
    answer = generate(replace(RUN, engine=toy_engine(table)).drafting(always_right(table), FOUR))
    assert (answer.ids, answer.finish) == ([60, 61, 4], "stop")
