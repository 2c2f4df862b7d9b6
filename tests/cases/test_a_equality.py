"""Cases A: speculative text is plain decoding's text, on scripted and on real models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foredraft import certify
from foredraft.chat import encode_prompt
from foredraft.drafters.base import Drafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.base import Engine
from foredraft.engines.llama_cpp import LlamaEngine
from foredraft.engines.scripted import markov_table
from foredraft.sampling import Sampler
from foredraft.tokens import Tokenizer
from foredraft.types import Budget, SamplingParams
from tests.support.real import PROMPTS, PROSE, asks, difference
from tests.support.scripted import (
    TOY,
    VOCAB,
    Answer,
    Forced,
    RecordingEngine,
    Run,
    always_right,
    always_wrong,
    generate,
    recalled,
    toy_engine,
)

FOUR = Budget.chain(4)
TABLE = markov_table(VOCAB, seed=9)
RUN = Run(toy_engine(TABLE))
WARM = SamplingParams(temperature=0.8, seed=11)


def compare(run: Run, accepts: tuple[int | None, ...]) -> tuple[Answer, Answer]:
    """Plain, and drafted with four tokens a round of which a forced number is right."""
    reference = generate(run)
    text = [*run.prompt, *reference.ids]
    return reference, generate(run.drafting(Forced(recalled(text), accepts), FOUR))


# --- real models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a1_a3_smollm2_is_bit_for_bit_plain(smollm2_engine: LlamaEngine, prompt: str) -> None:
    """Cases A1 and A3: 8 prompts × 96 tokens, passes of 5 positions, accepted lengths of every kind: 0/8 differ."""
    reference, answer = compare(asks(smollm2_engine, prompt, 96), (None, 2, 0, 3, 1))
    assert max(answer.session.widths[1:]) == 5 and answer.summary.accepted > 0
    assert certify.first_difference(reference.ids, answer.ids) is None


@pytest.mark.parametrize("prompt", PROMPTS[:2])
def test_a1_a3_gemma_is_bit_for_bit_plain(gemma3_engine: LlamaEngine, prompt: str) -> None:
    """Cases A1 and A3 on a model with a sliding window."""
    reference, answer = compare(asks(gemma3_engine, prompt, 48), (None, 2, 0))
    assert max(answer.session.widths[1:]) == 5 and answer.summary.accepted > 0
    assert certify.first_difference(reference.ids, answer.ids) is None


@pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("budget", [Budget.chain(8), Budget(8, 4, 3)], ids=["chain of 8", "tree of 8"])
def test_a1_wide_passes_differ_in_near_ties_at_most(
    smollm2_engine: LlamaEngine, params: SamplingParams, budget: Budget
) -> None:
    """Case A1: wider passes and trees may round differently; then the gap is below the measured noise."""
    run = asks(smollm2_engine, PROMPTS[2], 48).sampled(params)
    reference = generate(run)
    answer = generate(run.drafting(ModelDrafter(smollm2_engine), budget))
    assert max(answer.session.widths[1:]) == 9
    found = difference(run, reference.ids, answer.ids)
    if found is not None:
        assert found.gap <= found.noise < 3.0, found


def test_a1_a_real_difference_is_no_near_tie(smollm2_engine: LlamaEngine) -> None:
    """Case A1: a text that leaves the plain one at a clear choice is a bug, and is called one."""
    run = asks(smollm2_engine, PROMPTS[0], 12)
    reference = generate(run).ids
    wrong = [*reference[:5], reference[5] + 1, *reference[6:]]
    found = difference(run, reference, wrong)
    assert found is not None
    assert (found.index, found.plain, found.other) == (5, reference[5], wrong[5])
    assert found.gap > found.noise and not found.near_tie
    shorter = difference(run, reference, reference[:-1])
    assert shorter is not None and shorter.index == 11 and not shorter.near_tie


def test_a3_strict_mode_is_bit_for_bit_at_any_width(smollm2_strict: LlamaEngine) -> None:
    """Case A3: ``strict`` never scores more positions at once than give the bits of width 1."""
    assert smollm2_strict.info.exact_width is not None
    assert smollm2_strict.info.exact_width >= 1
    assert not smollm2_strict.info.tree
    run = asks(smollm2_strict, PROMPTS[2], 48)
    for params in (SamplingParams(), WARM):
        reference = generate(run.sampled(params))
        text = [*run.prompt, *reference.ids]
        answer = generate(run.sampled(params).drafting(Forced(recalled(text)), Budget.chain(12)))
        assert answer.ids == reference.ids
        assert max(answer.session.widths) == 13 and answer.summary.alpha == 1.0
    assert certify.numeric_noise(smollm2_strict, [*run.prompt] * 3, (2, 4, 8, 12)) == 0.0


def test_a4_numeric_noise_is_measured_by_width(smollm2_engine: LlamaEngine, gemma3_engine: LlamaEngine) -> None:
    """Case A4: passes of up to 5 positions give the bits of width 1; the noise of wider ones is a number."""
    for engine in (smollm2_engine, gemma3_engine):
        text = engine.tokenizer.encode(PROSE, add_special=True, parse_special=False)[:17]
        assert engine.exact_width() >= 5
        assert certify.numeric_noise(engine, text, (2, 5)) == 0.0
        assert 0.0 <= certify.numeric_noise(engine, text, (16,)) < 3.0, "rounding, not another model"


@pytest.mark.parametrize("k", range(1, 9))
def test_a7_self_draft_of_smollm2_is_always_accepted(smollm2_strict: LlamaEngine, k: int) -> None:
    """Case A7: draft file = target file: α = 1 at every depth, K = 1..8."""
    run = asks(smollm2_strict, PROMPTS[2], 20)
    answer = generate(run.drafting(ModelDrafter(smollm2_strict), Budget.chain(k)))
    assert answer.ids == generate(run).ids
    assert answer.summary.alpha_by_depth == [1.0] * k


@pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "warm"])
def test_a7_self_draft_of_gemma_is_always_accepted(gemma3_engine: LlamaEngine, params: SamplingParams) -> None:
    """Case A7 on a model with a sliding window."""
    run = asks(gemma3_engine, PROMPTS[0], 24).sampled(params)
    answer = generate(run.drafting(ModelDrafter(gemma3_engine), FOUR))
    assert answer.ids == generate(run).ids
    assert answer.summary.alpha_by_depth == [1.0] * 4


@pytest.mark.bench
@pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "warm"])
def test_a1_qwen_pair(qwen_target: LlamaEngine, qwen_draft: LlamaEngine, params: SamplingParams) -> None:
    """Cases A1 and A3 on the pair people use."""
    for prompt in PROMPTS[:3]:
        run = asks(qwen_target, prompt, 64).sampled(params)
        reference = generate(run)
        answer = generate(run.drafting(ModelDrafter(qwen_draft), FOUR))
        assert answer.summary.accepted > 0
        found = difference(run, reference.ids, answer.ids)
        assert found is None or found.near_tie, found


# --- prefill and prompts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 7, 512, 513, 514, 1300])
@pytest.mark.parametrize("draft", ["ngram", "model", "wrong"])
def test_a5_prompt_is_read_in_the_same_passes_with_and_without_a_draft(length: int, draft: str) -> None:
    """Case A5: the passes up to the first sampled token are equal but for the drafted tail of the last one."""
    run = replace(RUN, prompt=tuple(5 + index % 7 for index in range(length))).upto(8)
    drafters: dict[str, Drafter] = {
        "ngram": NgramDrafter(),
        "model": ModelDrafter(run.engine),
        "wrong": always_wrong(TABLE),
    }
    reference, answer = generate(run).session, generate(run.drafting(drafters[draft], FOUR)).session
    first = next(index for index, one in enumerate(reference.passes) if one.rows)
    assert reference.passes[:first] == answer.passes[:first]
    assert [len(one.tokens) for one in reference.passes[: first + 1]][-1] == 1, "the last prompt token stands alone"
    assert answer.passes[first].tokens[0] == run.prompt[-1]
    assert len(answer.passes[first].tokens) == (1 if draft == "ngram" and length < 9 else 5)
    assert sum(reference.widths[:first]) == length - 1


@pytest.mark.parametrize("prompt", [(10,), (0,), (VOCAB - 1,)])
@pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "warm"])
def test_a6_prompt_of_one_token(prompt: tuple[int, ...], params: SamplingParams) -> None:
    """Case A6: positions start right without any prefill."""
    run = replace(RUN, prompt=prompt).sampled(params)
    for drafter in (ModelDrafter(run.engine), NgramDrafter(), always_right(TABLE), always_wrong(TABLE)):
        answer = generate(run.drafting(drafter, FOUR))
        assert answer.ids == generate(run).ids
        assert answer.session.passes[0].tokens[0] == prompt[0], "no pass without a scored row"


def test_a6_prompt_of_one_token_on_a_real_model(smollm2_engine: LlamaEngine) -> None:
    """Case A6: also a draft model starts from nothing."""
    run = asks(smollm2_engine, [504], 16)
    answer = generate(run.drafting(ModelDrafter(smollm2_engine), FOUR))
    assert answer.ids == generate(run).ids
    assert answer.summary.alpha == 1.0


@pytest.mark.parametrize("add_bos", [True, False])
def test_a13_target_and_draft_read_the_same_ids(add_bos: bool) -> None:
    """Case A13: text is tokenized once, control tokens included; plain, target and draft get those ids."""
    tokenizer = replace(TOY, add_bos=add_bos)
    ids = encode_prompt(tokenizer, "<|turn|>user\nab the cat<|end|>", raw=True).ids
    assert (ids[0] == TOY.bos_id) == add_bos
    assert ids.count(3) == 1 and ids.count(4) == 1, "parsed, not spelt"
    read = _texts_read(toy_engine(TABLE), list(ids))
    assert read == [list(ids)] * 3


@pytest.mark.parametrize("name", ["smollm2_engine", "gemma3_engine"])
def test_a13_real_tokenizers_with_and_without_bos(name: str, request: pytest.FixtureRequest) -> None:
    """Case A13: SmolLM2 adds no BOS and has ``<|im_start|>``, Gemma adds BOS once."""
    engine: LlamaEngine = request.getfixturevalue(name)
    tokenizer: Tokenizer = engine.tokenizer
    marker = "<|im_start|>" if name == "smollm2_engine" else "<start_of_turn>"
    ids = list(encode_prompt(tokenizer, f"{marker}user\nHi", raw=True).ids)
    control = next(id for id in ids if tokenizer.text_of(id).decode() == marker)
    assert (ids[0] == tokenizer.bos_id) == (tokenizer.add_bos or control == tokenizer.bos_id)
    assert ids.count(control) == 1
    assert _texts_read(engine, ids) == [ids] * 3


def _texts_read(engine: Engine, ids: list[int]) -> list[list[int]]:
    """What the session of a plain run, of a target and of its draft model hold of the prompt."""
    run = replace(RUN, engine=engine, prompt=ids).upto(3)
    draft = RecordingEngine(engine)
    sessions = [generate(run).session]
    sessions.append(generate(run.drafting(ModelDrafter(draft), FOUR)).session)
    return [session.text[: len(ids)] for session in (*sessions, *draft.sessions)]


def test_a1_gap_of_a_scripted_choice_is_exact() -> None:
    """The classifier's own numbers: gap by hand, noise 0 on an engine that cannot round."""
    run = RUN.upto(6)
    reference = generate(run).ids
    row = TABLE((*run.prompt, *reference[:3]))
    second = int(np.argsort(-row, kind="stable")[1])
    found = certify.explain(
        run.engine,
        Sampler(run.params),
        certify.Texts(run.prompt, reference, [*reference[:3], second, *reference[4:]]),
    )
    assert found is not None and found.noise == 0.0
    assert found.gap == pytest.approx(float(np.sort(row)[-1] - np.sort(row)[-2]), abs=2e-4)
    assert not found.near_tie


def test_a1_a_difference_at_the_very_end_of_the_context_is_explained() -> None:
    """Measuring the noise of trees needs room for wrong siblings, which a full context does not have."""
    engine = toy_engine(TABLE, max_context=80)
    plain = generate(replace(RUN, engine=engine).upto(80)).ids
    text = certify.Texts(RUN.prompt, plain, [*plain[:-1], (plain[-1] + 1) % engine.info.vocab_size])
    found = certify.explain(engine, Sampler(RUN.params), text)
    assert found is not None and found.index == len(plain) - 1 == 79 - len(RUN.prompt)
