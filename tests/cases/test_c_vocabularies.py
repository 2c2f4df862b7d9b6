"""Cases C: pairs whose vocabularies differ, and what the user is told when nothing is drafted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foredraft.drafters.chain import ChainDrafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.null import NullDrafter
from foredraft.engines.scripted import ScriptedEngine, Table, blended, markov_table
from foredraft.errors import PairMismatch
from foredraft.noise import GumbelNoise
from foredraft.pair import check_pair
from foredraft.sampling import History, Sampler
from foredraft.trees import depths
from foredraft.types import Budget, Draft, Ids, Law, Logits, Rule, SamplingParams
from foredraft.verify import verify
from tests.support.scripted import TOY, VOCAB, Breaks, RecordingEngine, Run, generate, toy_engine, writes
from tests.support.toy_tokenizer import ToyToken

FOUR = Budget.chain(4)
TABLE = markov_table(VOCAB, seed=9)
RUN = Run(toy_engine(TABLE))
WARM = SamplingParams(temperature=0.8, seed=5)
QWEN_WORDS = 151665


def sized(rows: int) -> object:
    """A vocabulary of Qwen's real size, padded to ``rows``."""
    words = tuple(ToyToken(b"w%d" % id) for id in range(QWEN_WORDS))
    return replace(TOY, table=words + tuple(ToyToken(b"[PAD%d]" % id, "unused") for id in range(QWEN_WORDS, rows)))


@pytest.mark.parametrize(("rows", "fits"), [(151936, True), (151935, False)])
def test_c1_sizes_may_differ_by_128_rows_of_padding(rows: int, fits: bool) -> None:
    """Case C1: 152064 and 151936 fit; one row less does not, and the message says by how much."""
    report = check_pair(sized(152064), sized(rows))  # type: ignore[arg-type]
    assert report.ok == fits
    if not fits:
        assert str(report.problems[0]) == ("vocab_size_differs target=152064 draft=151935 difference=129 allowed=128")
    assert report.shared_size == QWEN_WORDS, "padding is no token"


# --- padded embeddings ------------------------------------------------------------------------------------------------


def loves_padding(table: Table, rows: int, vocab: int) -> Table:
    """``table`` with ``rows`` more ids, all of them likelier than any real one."""
    return lambda text: np.concatenate([table(text)[:vocab], np.full(rows, 99.0, np.float32)])


@pytest.mark.parametrize("budget", [FOUR, Budget(12, 4, 3)], ids=["chain", "tree"])
@pytest.mark.parametrize("rule", ["coupled", "residual"])
@pytest.mark.parametrize("params", [SamplingParams(), WARM, replace(WARM, top_p=0.9)], ids=["greedy", "warm", "top-p"])
def test_c2_padding_is_never_proposed(budget: Budget, rule: Rule, params: SamplingParams) -> None:
    """Case C2: the draft's padding rows, however likely, are no proposals; the target may be longer or shorter."""
    engine = RecordingEngine(ScriptedEngine(loves_padding(TABLE, 40, VOCAB), VOCAB + 40))
    run = replace(RUN.sampled(params), rule=rule)
    answer = generate(run.drafting(ModelDrafter(engine, limit=VOCAB), budget))
    assert max(id for one in answer.session.passes for id in one.tokens) < VOCAB
    assert max(id for session in engine.sessions for one in session.passes for id in one.tokens) < VOCAB
    assert {step.reason for step in answer.rounds} <= {None, "budget 0"}
    if rule == "coupled":
        assert answer.ids == generate(run).ids
        assert answer.summary.alpha == 1.0


class WatchingNoise(GumbelNoise):
    """Rejects everything and remembers the law of the last draw."""

    law: Law | None = None

    def pick(self, law: Law, position: int, stream: int = 0) -> int:
        self.law = law
        return super().pick(law, position, stream)

    def accept(self, probability: float, position: int, index: int) -> bool:
        return False


@pytest.mark.parametrize(("target", "draft"), [(152064, 151936), (151936, 152064), (152064, 152064)])
def test_c2_residual_over_vocabularies_of_different_size_sums_to_1(target: int, draft: int) -> None:
    """Case C2: q counts as 0 where the draft has no id; max(p - q, 0), normalised, is a law over the target's ids."""
    random = np.random.default_rng(1)
    p_row, q_row = (random.standard_normal(rows).astype(np.float32) * 3 for rows in (target, draft))
    noise = WatchingNoise(1)
    sampler = Sampler(SamplingParams(temperature=1.0), rule="residual", noise=noise)
    history = History([1])
    limit = min(target, draft)
    ids, law, _ = sampler.children(q_row[:limit], history, 1)
    assert law is not None
    proposal = Draft.chain(ids.tolist(), "q", (law,))
    rows: Logits = np.stack([p_row, p_row])
    verdict = verify(proposal, rows, sampler, history)
    assert verdict.path == () and noise.law is not None
    p = _softmax(p_row)
    q = np.zeros(target)
    q[:limit] = _softmax(q_row[:limit])
    expected = np.maximum(p - q, 0)
    assert noise.law.probs().sum() == pytest.approx(1.0, abs=1e-12)
    dense = np.zeros(target)
    dense[noise.law.ids] = noise.law.probs()
    assert np.abs(dense - expected / expected.sum()).max() < 1e-12


def _softmax(row: Logits) -> np.ndarray:
    weights = np.exp(row.astype(np.float64) - row.max())
    return np.asarray(weights / weights.sum())


# --- messages and odd tokens ------------------------------------------------------------------------------------------


def test_c4_every_broken_rule_has_its_own_code_and_values() -> None:
    """Case C4: not one message for all; the text that differs is shown."""
    word = TOY.id_of(" cat")
    drafts = {
        "vocab_type_differs": replace(TOY, kind="other"),
        "add_bos_differs": replace(TOY, add_bos=False),
        "bos_differs": replace(TOY, bos_id=3),
        "add_eos_differs": replace(TOY, add_eos=True),
        "vocab_size_differs": TOY.with_padding(200),
        "token_text_differs": TOY.with_token(word, b" dog"),
    }
    assert {code: check_pair(TOY, draft).problems[0].code for code, draft in drafts.items()} == {
        code: code for code in drafts
    }
    report = check_pair(TOY, drafts["token_text_differs"])
    assert f"id={word} target=' cat' draft=' dog'" in str(report.problems[0])
    with pytest.raises(PairMismatch, match="draft d does not fit target t: token_text_differs id="):
        report.raise_if_bad("t", "d")


@pytest.mark.parametrize("budget", [FOUR, Budget(12, 4, 3)], ids=["chain", "tree"])
def test_c5_one_odd_token_is_named_and_barred_from_drafts(budget: Budget) -> None:
    """Case C5: "1 of N differs"; allowed if it is a control token in both, and then never drafted."""
    target = TOY.with_token(200, b"<|x|>", "control")
    draft = target.with_token(200, b"<|y|>", "control")
    refused = check_pair(target, draft)
    assert not refused.ok and "(1 of" in str(refused.problems[0]) and "id=200" in str(refused.problems[0])
    report = check_pair(target, draft, allow_differing=True)
    assert report.ok and 200 in report.barred and 201 not in report.barred
    table = writes([60, 200, 61, 200, 200, 62], prompt_length=3)
    run = Run(toy_engine(table)).upto(6)
    drafter = ModelDrafter(toy_engine(table), limit=report.shared_size, barred=report.barred)
    answer = generate(run.drafting(drafter, budget))
    assert answer.ids == [60, 200, 61, 200, 200, 62]
    drafted = [token.id for step in answer.steps for token in step.emitted if token.drafted]
    assert 200 not in drafted and drafted != []


# --- never silent -----------------------------------------------------------------------------------------------------


def test_c8_every_round_without_a_draft_says_why() -> None:
    """Case C8: no silent fallback, whatever the cause."""
    causes: dict[str, Run] = {
        "no draft was given": RUN.drafting(NullDrafter("no draft was given"), FOUR),
        "breaks failed, drafting is off for this request: the draft broke": RUN.drafting(Breaks(TABLE, "begin"), FOUR),
        "rollback: none, plain decoding (this engine cannot forget tokens)": replace(
            RUN, engine=replace(toy_engine(TABLE), rollback="none")
        ).drafting(ModelDrafter(RUN.engine), FOUR),
        "ngram: no earlier occurrence": RUN.drafting(NgramDrafter(), FOUR),
        "budget 0": RUN,
    }
    for reason, run in causes.items():
        answer = generate(run)
        assert answer.reasons[0] == reason
        assert all(step.reason for step in answer.rounds if step.drafted == 0)
        assert answer.ids == generate(run.plain).ids


def test_c8_the_summary_counts_the_reasons() -> None:
    """Case C8: what the command line and the server report."""
    broken = ChainDrafter([Breaks(TABLE, "propose", 1), NgramDrafter()])
    summary = generate(RUN.drafting(broken, FOUR)).summary
    assert summary.sources["breaks"] == 1
    assert any(reason.startswith("breaks failed: the draft broke; ngram:") for reason in summary.reasons)


@pytest.mark.parametrize("budget", [FOUR, Budget(9, 4, 3)], ids=["chain", "tree"])
@pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "warm"])
def test_c12_ids_that_the_draft_does_not_know_pause_it(budget: Budget, params: SamplingParams) -> None:
    """Case C12: the target emits an id beyond the draft's vocabulary: the draft waits for the next one it knows."""
    known = 250
    script = [60, 61, 270, 62, 63, 271, 272, 64, 65, 66, 67, 68]
    follows = dict(zip([70, *script], script, strict=False))  # the prompt ends with 70

    def table(text: tuple[int, ...]) -> Logits:
        row = np.zeros(VOCAB, np.float32)
        row[follows.get(text[-1], 0)] = 80.0
        return row

    run = Run(toy_engine(table)).sampled(params).upto(12)
    draft = RecordingEngine(ScriptedEngine(lambda text: table(text)[:known], known))
    answer = generate(run.drafting(ModelDrafter(draft), budget))
    assert answer.ids == script == generate(run).ids
    paused = [reason for reason in answer.reasons if reason and reason != "budget 0"]
    assert paused == [f"model: the last token, {id}, is unknown to the draft" for id in (270, 271, 272)]
    assert answer.summary.accepted >= 5, "it goes on afterwards"
    assert max(id for one in draft.sessions[0].passes for id in one.tokens) < known


def test_c12_a_prompt_of_unknown_ids_only() -> None:
    """Case C12: the draft knows nothing of the prompt; it starts with the first id that it knows."""
    draft = ScriptedEngine(lambda text: TABLE(text)[:100], 100)
    run = replace(RUN, prompt=(200, 201, 202))
    answer = generate(run.drafting(ModelDrafter(draft), FOUR))
    assert answer.ids == generate(run).ids
    assert answer.reasons[0] == "model: the last token, 202, is unknown to the draft"


@pytest.mark.parametrize("shared", [100, 200, VOCAB])
def test_c12_any_shared_part_of_a_vocabulary(shared: int) -> None:
    """Case C12 in general: whatever the draft knows, the text is plain decoding's."""
    draft_table = blended(TABLE, markov_table(VOCAB, seed=3), 0.1)
    draft = ScriptedEngine(lambda text: draft_table(text)[:shared], shared)
    for params in (SamplingParams(), WARM):
        for budget in (FOUR, Budget(9, 4, 3)):
            answer = generate(RUN.sampled(params).drafting(ModelDrafter(draft), budget))
            assert answer.ids == generate(RUN.sampled(params)).ids


def test_c12_siblings_of_a_tree_are_different_ids() -> None:
    """A tree never tries one id twice below the same parent."""

    def propose() -> tuple[Ids, Ids]:
        drafter = ModelDrafter(RUN.engine)
        drafter.begin([1, 60, 70])
        draft = drafter.propose(History([1, 60, 70]), Budget(12, 3, 4), Sampler(WARM))
        drafter.close()
        return draft.tokens, draft.parents

    tokens, parents = propose()
    assert len(set(zip(parents.tolist(), tokens.tolist(), strict=True))) == len(tokens) == 12
    assert int(depths(parents).max()) == 3
