"""Cases F and G11, G12: where a text ends, what is counted, and that nothing runs on behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.chat import encode_prompt
from foredraft.decode import Limits
from foredraft.drafters.base import Drafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.engines.scripted import ScriptedEngine, blended, markov_table
from foredraft.errors import PromptError
from foredraft.types import Budget, SamplingParams
from tests.support import tiny_models
from tests.support.real import asks, same
from tests.support.scripted import (
    END,
    EOG,
    TOY,
    VOCAB,
    Answer,
    Forced,
    RecordingSession,
    Run,
    always_right,
    always_wrong,
    begin,
    generate,
    oracle,
    recalled,
    toy_engine,
    writes,
)

FOUR, EIGHT = Budget.chain(4), Budget.chain(8)
TABLE = markov_table(VOCAB, seed=9)
RUN = Run(toy_engine(TABLE))


def scripted(script: list[int], budget: Budget = EIGHT) -> Run:
    """The target writes ``script``, the draft knows it."""
    table = writes(script, prompt_length=3)
    return Run(toy_engine(table)).drafting(always_right(table), budget)


# --- end tokens and caps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", sorted(EOG))
@pytest.mark.parametrize("position", range(6))
def test_f1_nothing_behind_an_end_token_is_shown(end: int, position: int) -> None:
    """Case F1 (and F10: every end token): [a, b, END, c, d] all accepted -> text ab, reason stop."""
    letters = TOY.ids_of("a", "b", "ab", " cat", "ha", "é")
    run = scripted([*letters[:position], end, *letters[position:]])
    answer = generate(run)
    assert answer.ids == [*letters[:position], end]
    assert answer.text == b"".join(TOY.piece(id) for id in letters[:position]).decode()
    assert answer.finish == "stop"
    assert len(answer.rounds) == 1, "all within one round"


def test_f2_the_stop_comes_before_the_cap_when_it_comes_first() -> None:
    """Case F2: [10, 11, STOP, 20, 21, 22], cap 5, all accepted: ends at 3 with reason stop; cap 2: at 2, length."""
    run = scripted([10, 11, END, 20, 21, 22])
    for cap, ids, reason in ((5, [10, 11, END], "stop"), (3, [10, 11, END], "stop"), (2, [10, 11], "length")):
        answer = generate(run.upto(cap))
        assert (answer.ids, answer.finish) == (ids, reason)
        assert generate(run.upto(cap).plain).ids == ids


def test_f4_rejected_drafts_do_not_count_toward_the_cap() -> None:
    """Case F4: 128 tokens asked for, about a third of the drafts accepted: exactly 128."""
    run = replace(RUN, limits=Limits(128))
    answer = generate(run.drafting(Forced(oracle(TABLE), (0, 1, 1, 2, 0)), FOUR))
    assert (len(answer.ids), answer.finish) == (128, "length")
    alpha = answer.summary.alpha
    assert alpha is not None and 0.3 < alpha < 0.6
    assert answer.summary.drafted > 128


def test_f5_drafts_stay_within_the_context() -> None:
    """Case F5: context 64, prompt 60, K = 8: the draft is cut to 3, the reason is length."""
    run = replace(RUN, engine=toy_engine(TABLE, 64), prompt=tuple(range(20, 80)), limits=Limits(500))
    answer = generate(run.drafting(always_right(TABLE), EIGHT))
    assert (len(answer.ids), answer.finish) == (4, "length")
    assert [step.drafted for step in answer.rounds] == [3]
    wrong = generate(run.drafting(always_wrong(TABLE), EIGHT))
    assert [step.drafted for step in wrong.rounds] == [3, 2, 1, 0]
    assert wrong.ids == answer.ids


@pytest.mark.parametrize("budget", [EIGHT, Budget(9, 4, 3)], ids=["chain", "tree"])
def test_f5_trees_stay_within_the_context(budget: Budget) -> None:
    """Case F5: every node needs a place."""
    for length in range(50, 64):
        run = replace(RUN, engine=toy_engine(TABLE, 64), prompt=tuple(range(length)), limits=Limits(500))
        answer = generate(run.drafting(ModelDrafter(run.engine), budget))
        assert (len(answer.ids), answer.finish) == (64 - length, "length")
        assert answer.ids == generate(run).ids


# --- native contexts --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    """A tiny model with room for 256 tokens."""
    path: Path = tiny_models.write_llama(tmp_path_factory.mktemp("small") / "llama.gguf")
    engine = LlamaEngine(path, LlamaConfig(context=256, threads=1))
    yield engine
    engine.close()


@pytest.mark.parametrize("budget", [EIGHT, Budget(12, 4, 3)], ids=["chain", "tree"])
def test_f7_draft_with_a_smaller_context_goes_on(small: LlamaEngine, tiny_llama: LlamaEngine, budget: Budget) -> None:
    """Case F7: draft context 256, 600 tokens generated: no crash, and still drafting at the end."""
    run = replace(asks(tiny_llama, [5, 6, 7], 600), limits=Limits(600))
    answer = generate(run.drafting(ModelDrafter(small), budget))
    assert len(answer.ids) == 600
    late = answer.rounds[-20:-1]
    assert all(step.drafted > 0 for step in late)
    assert set(answer.reasons) <= {None, "budget 0"}
    assert same(run, generate(run).ids, answer.ids)


def test_f7_draft_with_a_smaller_context_stays_useful() -> None:
    """Case F7: the draft sees the end of the text; a model that needs only that is still always right."""
    draft = toy_engine(TABLE, 32)
    run = replace(RUN, limits=Limits(300))
    answer = generate(run.drafting(ModelDrafter(draft), EIGHT))
    assert answer.ids == generate(run).ids
    assert answer.summary.alpha == 1.0 and answer.summary.accepted > 200


def test_f7_prompt_longer_than_the_draft_s_context() -> None:
    """Case F7: also the prompt may be longer."""
    run = replace(RUN, prompt=tuple(5 + index % 90 for index in range(500)))
    answer = generate(run.drafting(ModelDrafter(toy_engine(TABLE, 32)), EIGHT))
    assert answer.ids == generate(run).ids
    assert answer.summary.alpha == 1.0


def test_f7_context_too_small_for_the_draft_length_is_off_with_a_reason() -> None:
    """Case F7: no room at all is said, not crashed on."""
    answer = generate(RUN.drafting(ModelDrafter(toy_engine(TABLE, 8)), EIGHT))
    assert answer.ids == generate(RUN).ids
    reason = answer.reasons[0]
    assert reason is not None and "draft context is 8; allowed: more than 8 drafted tokens" in reason


@pytest.mark.parametrize("drafted", [False, True])
def test_f9_a_full_context_ends_the_text(small: LlamaEngine, drafted: bool) -> None:
    """Case F9: 256 tokens are full: a clean end, no native abort."""
    run = replace(asks(small, [5 + index % 9 for index in range(200)], 500), limits=Limits(500))
    reference = generate(run)
    assert (len(reference.ids), reference.finish) == (56, "length")
    if drafted:
        text = [*run.prompt, *reference.ids]
        answer = generate(run.drafting(Forced(recalled(text), (None, 0, 3)), EIGHT))
        assert (len(answer.ids), answer.finish) == (56, "length")
        assert same(run, reference.ids, answer.ids)
        assert answer.session.length == len(answer.session.text) <= 256


def test_f9_prompt_longer_than_the_context_is_refused(small: LlamaEngine) -> None:
    """Case F9: before native code sees it."""
    for length in (256, 257, 5000):
        with pytest.raises(PromptError, match=f"the prompt has {length} tokens, the context holds 256"):
            generate(asks(small, [5] * length))
    assert len(generate(asks(small, [5] * 255)).ids) == 1


@pytest.mark.parametrize("drafted", [False, True])
def test_f10_a_chat_answer_ends_with_the_model_s_turn(smollm2_engine: LlamaEngine, drafted: bool) -> None:
    """Case F10: "Hi" is answered once; the end-of-turn token ends the text, with a draft as without."""
    tokenizer = smollm2_engine.tokenizer
    run = asks(smollm2_engine, list(encode_prompt(tokenizer, "Hi").ids), 80)
    if drafted:
        run = run.drafting(ModelDrafter(smollm2_engine), FOUR)
    answer = generate(run)
    assert answer.finish == "stop"
    assert answer.ids[-1] in tokenizer.eog_ids and not tokenizer.eog_ids & set(answer.ids[:-1])
    assert answer.text and "assistant" not in answer.text and "<|im" not in answer.text


# --- stop strings -----------------------------------------------------------------------------------------------------


def laughing(drafter: Drafter, budget: Budget) -> Answer:
    """The target laughs; the stop string is three laughs, which are three tokens."""
    ha, cat = TOY.id_of(" ha"), TOY.id_of(" cat")
    script = [cat, ha, ha, cat, *[ha] * 30]
    run = replace(Run(toy_engine(writes(script, 9))), prompt=(1, cat, ha, ha, ha, ha, ha, ha, cat))
    run = replace(run, stops=(" ha ha ha",), limits=Limits(30, EOG, logprobs=2))
    return generate(run.drafting(drafter, budget))


@pytest.mark.parametrize("budget", [Budget(0, 0), FOUR, EIGHT, Budget(12, 6, 2)])
def test_f3_text_ids_and_logprobs_are_cut_alike(budget: Budget) -> None:
    """Case F3: a stop string inside an accepted draft: ids and log-probabilities end where the text ends."""
    answer = laughing(NgramDrafter(), budget)
    tokens = [token for step in answer.steps for token in step.emitted]
    assert answer.text == " cat ha ha cat" == b"".join(TOY.piece(token.id) for token in tokens).decode()
    assert len(tokens) == len(answer.ids) == 4
    assert all(token.logprob is not None and token.top is not None and len(token.top) == 2 for token in tokens)
    assert answer.finish == "stop"
    assert sum(step.generated for step in answer.steps) == 7, "the three laughs were generated, not shown"


@pytest.mark.parametrize("stop", ["a", "ab", "bab", "b ", " cat", "cat", "STOP", "é", "日", "x"])
@pytest.mark.parametrize("k", [0, 1, 2, 3, 8])
def test_f3_any_stop_string_cuts_the_same_with_any_draft(stop: str, k: int) -> None:
    """Case F3: stop strings inside one token, over several, over rounds, or nowhere."""
    script = [*TOY.ids_of("ab", "abc", " cat", "b", "a", "b", " ", "a", "é", "日本", "STOP"), END]
    table = writes(script, 3)
    run = replace(Run(toy_engine(table)), stops=(stop,))
    reference = generate(run)
    answer = generate(run.drafting(Forced(oracle(table), (None, 1)), Budget.chain(k)))
    assert (answer.ids, answer.text, answer.finish) == (reference.ids, reference.text, reference.finish)
    whole = "ababc catbab aé日本STOP"
    assert answer.text == whole.split(stop, maxsplit=1)[0]
    shown = b"".join(TOY.piece(id) for id in answer.ids)
    hidden = answer.steps[-1].hidden_bytes
    assert shown[: len(shown) - hidden].decode() == answer.text


def test_f3_text_held_back_comes_out_at_the_end() -> None:
    """Case F3: what looked like the start of a stop string is text after all."""
    script = [*TOY.ids_of(" ha", " ha"), END]
    table = writes(script, 3)
    run = replace(Run(toy_engine(table)), stops=(" ha ha ha",))
    for drafter, budget in ((always_right(table), FOUR), (always_wrong(table), FOUR)):
        answer = generate(run.drafting(drafter, budget))
        assert (answer.ids, answer.text, answer.finish) == (script, " ha ha", "stop")
        capped = generate(run.upto(2).drafting(drafter, budget))
        assert (capped.ids, capped.text, capped.finish) == (script[:2], " ha ha", "length")


def test_ids_behind_a_stop_string_are_told_apart() -> None:
    """What a reader does not see is still the text that two runs are compared by."""
    script = TOY.ids_of(" ha", "a", " ha", " ha", " ha")
    run = replace(Run(toy_engine(writes(script, 3))), stops=(" ha ha ha",))
    summary = generate(run.drafting(always_right(writes(script, 3)), FOUR)).summary
    assert (summary.ids, list(summary.dropped), summary.written) == (script[:2], script[2:], script)


# --- cancelling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["end token", "stop string", "cap"])
def test_f11_the_engine_rests_after_the_end(kind: str) -> None:
    """Case F11: the pass that holds the end is the last one, though the cap is far away."""
    script = [*TOY.ids_of("a", "b", "a", "b"), END if kind == "end token" else TOY.id_of("STOP"), *TOY.ids_of("a") * 50]
    table = writes(script, 3)
    run = Run(toy_engine(table)).upto(5 if kind == "cap" else 2000).drafting(always_right(table), FOUR)
    if kind == "stop string":
        run = replace(run, stops=("STOP",))
    answer = generate(run)
    assert answer.finish == ("length" if kind == "cap" else "stop")
    assert answer.text.startswith("abab")
    assert answer.session.widths == [2, 5], "prefill, and one round of 4 drafted tokens"


@pytest.mark.parametrize("after", [1, 2, 5])
def test_f11_cancelling_is_honoured_within_one_round(after: int) -> None:
    """Case F11: after closing the iterator not one more pass runs."""
    session = RecordingSession(RUN.engine.open())
    steps = begin(RUN.drafting(always_right(TABLE), FOUR), session)
    for _ in range(after):
        next(steps)
    steps.close()
    assert len(session.passes) == after
    assert list(steps) == []
    assert len(session.passes) == after


# --- G11, G12: definitions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accepted", range(5))
def test_g11_mean_accepted_length_counts_the_bonus_token(accepted: int) -> None:
    """Case G11: accepted per round, and emitted per round = that + 1; both can be had from a summary."""
    run = replace(RUN, limits=Limits((accepted + 1) * 6 + 4))
    answer = generate(run.drafting(Forced(oracle(TABLE), (accepted,)), FOUR))
    full = [step for step in answer.rounds if step.drafted == 4]
    assert len(full) >= 6
    assert {step.accepted for step in full} == {accepted}
    assert {step.generated for step in full} == {accepted + 1}
    summary = answer.summary
    assert summary.mean_accepted_length == pytest.approx(summary.accepted / summary.rounds + 1)


def test_g12_what_lies_behind_the_end_is_not_emitted_and_not_counted() -> None:
    """Case G12: [d1, d2, END, d4, d5, bonus] counts 3 emitted tokens, not 6."""
    answer = generate(scripted([60, 61, END, 62, 63, 64], Budget.chain(5)))
    (step,) = answer.rounds
    assert (step.drafted, step.evaluated, step.accepted, step.generated) == (5, 3, 3, 3)
    assert answer.summary.mean_accepted_length == 3.0
    assert answer.summary.alpha == 1.0


def test_g12_an_end_chosen_by_the_target_is_counted_once() -> None:
    """Case G12: the end token as the round's own token."""
    table = writes([60, 61, END], 3)
    answer = generate(Run(toy_engine(table)).drafting(Forced(oracle(table), (2,)), FOUR))
    (step,) = answer.rounds
    assert (step.accepted, step.evaluated, step.generated) == (2, 3, 3)


def test_f4_acceptance_does_not_change_the_length() -> None:
    """Case F4: from no to full acceptance, greedy and warm: the same number of tokens."""
    for share in (0.0, 0.1, 0.3, 1.0):
        draft = ScriptedEngine(blended(TABLE, markov_table(VOCAB, seed=3), share), VOCAB)
        for params in (SamplingParams(), SamplingParams(temperature=0.8, seed=2)):
            run = replace(RUN.sampled(params), limits=Limits(128)).drafting(ModelDrafter(draft), FOUR)
            assert len(generate(run).ids) == 128
