"""One suite for every drafter: it stays within its budget, leaves no traces, and starts every request anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.drafters.base import Drafter
from foredraft.drafters.chain import ChainDrafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramConfig, NgramDrafter
from foredraft.drafters.null import NullDrafter
from foredraft.engines.scripted import ScriptedEngine, ScriptedSession, markov_table
from foredraft.sampling import History, Sampler
from foredraft.trees import children, depths, is_tree, path_to, static_shape
from foredraft.types import Budget, Draft, Ids, Rule, SamplingParams, Scores
from tests.support.gates import Believing, Counting
from tests.support.scripted_head import FedHead, ScriptedHead

VOCAB, LIMIT = 30, 26
"""Ids from LIMIT on are padding, or unknown to the draft."""
BARRED = frozenset({3, 7})
ENDS = (1, 5)
PLAIN = NgramConfig(min_n=1, resume=0)
"""Without a memory of where the last copy stopped a proposal depends on the text alone."""


def model(tree: bool = True, order: int = 3) -> ModelDrafter:
    """Context 256; what it says depends on its last ``order`` tokens."""
    engine = ScriptedEngine(markov_table(VOCAB, order=order, seed=5), VOCAB, 256, tree)
    return ModelDrafter(engine, limit=LIMIT, barred=BARRED)


def ngram(config: NgramConfig = PLAIN) -> NgramDrafter:
    return NgramDrafter(config, barred=BARRED | set(range(LIMIT, VOCAB)))


def sampler(temperature: float = 0.0, rule: Rule = "coupled", seed: int = 0) -> Sampler:
    return Sampler(SamplingParams(temperature=temperature, seed=seed), rule=rule, eog_ids=ENDS)


def head(order: int = 3) -> FedHead:
    """Context 256; it cannot say every third token."""
    ids = tuple(token for token in range(LIMIT) if token % 3 != 1)
    return FedHead(ScriptedHead(markov_table(VOCAB, order=order, seed=5), VOCAB, ids, 256), barred=BARRED)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "null": lambda: NullDrafter("switched off"),
    "ngram": ngram,
    "ngram, resuming": lambda: ngram(NgramConfig()),
    "model": model,
    "model without trees": lambda: model(tree=False),
    "head": head,
    "chain": lambda: ChainDrafter([ngram(NgramConfig(resume=0)), model()]),
}
TALKATIVE = [name for name in DRAFTERS if name != "null"]
over_drafters = pytest.mark.parametrize("name", DRAFTERS)

texts = st.one_of(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    st.builds(lambda part: part * 5, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8)),
)
gates = st.one_of(
    st.builds(Counting, st.integers(1, 6), st.integers(0, 6)),
    st.builds(Believing, st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 0.1, 0.5])),
)


@st.composite
def asked(draw: st.DrawFn) -> Budget:
    """All that a controller may ask for: trees with and without a shape, dynamic and merged ones, gates."""
    gate = draw(st.none() | gates)
    if draw(st.booleans()):
        return Budget(draw(st.integers(1, 14)), draw(st.integers(1, 6)), 1, gate=gate)
    flags = draw(st.booleans()), draw(st.booleans())
    found = Budget(draw(st.integers(1, 14)), draw(st.integers(1, 6)), draw(st.integers(2, 4)), (), *flags, gate)
    if draw(st.booleans()):
        return found
    shape = static_shape(replace(found, branches=draw(st.integers(1, found.branches))))
    return replace(found, shape=tuple(shape.tolist()))


budgets = st.one_of(
    st.builds(Budget.chain, st.integers(1, 8)),
    st.builds(Budget, st.integers(1, 14), st.integers(1, 6), st.integers(1, 4)),
    asked(),
)
rules: st.SearchStrategy[Rule] = st.sampled_from(["coupled", "residual"])
samplers = st.builds(
    sampler,
    st.sampled_from([0.0, 0.8, 5.0]),
    rules,
    st.integers(0, 9),
)


def begun(name: str, text: Sequence[int]) -> Drafter:
    drafter = DRAFTERS[name]()
    drafter.begin(list(text))
    return drafter


def listed(draft: Draft) -> tuple[list[int], list[int]]:
    return draft.tokens.tolist(), draft.parents.tolist()


# --- one proposal ------------------------------------------------------------------------------------------


def check_shape(draft: Draft, budget: Budget) -> None:
    """Within the budget; parents before children."""
    assert draft.tokens.dtype == draft.parents.dtype == np.int32
    assert len(draft) == len(draft.parents) <= budget.nodes
    assert is_tree(draft.parents)
    assert max(depths(draft.parents), default=0) <= budget.depth
    for siblings in children(draft.parents).values():
        assert len(siblings) <= budget.branches * (2 if budget.merge else 1), "of each drafter"
        tokens = draft.tokens[siblings].tolist()
        assert len(set(tokens)) == len(tokens), "siblings are different tokens"


def check_tokens(draft: Draft) -> None:
    """Nothing that the target may not say, nothing behind the end of the text."""
    for token, parent in zip(*listed(draft), strict=True):
        assert 0 <= token < LIMIT
        assert token not in BARRED
        assert parent < 0 or draft.tokens[parent] not in ENDS


def check_effort(draft: Draft, budget: Budget) -> None:
    """Every token with a confidence; a pass of a draft model for each level at most."""
    assert draft.confidence is None or len(draft.confidence) == len(draft)
    assert all(0.0 <= sure <= 1.0 for sure in draft.confidence or ())
    assert 0 <= draft.passes <= budget.depth
    assert (draft.passes > 0) or "model" not in draft.source or not len(draft)


def check_laws(draft: Draft) -> None:
    """Every node was drawn from its law, and siblings from the same one."""
    if draft.laws is None:
        return
    assert len(draft.laws) == len(draft)
    for token, law in zip(draft.tokens.tolist(), draft.laws, strict=True):
        assert law.prob(token) > 0
    for siblings in children(draft.parents).values():
        assert len({id(draft.laws[node]) for node in siblings}) == 1


@over_drafters
@given(text=texts, budget=budgets, sampler=samplers)
def test_a_proposal_is_legal(name: str, text: list[int], budget: Budget, sampler: Sampler) -> None:
    drafter = begun(name, text)
    draft = drafter.propose(History(text), budget, sampler)
    check_shape(draft, budget)
    check_tokens(draft)
    check_laws(draft)
    check_effort(draft, budget)
    if not len(draft):
        assert draft.reason
        assert "\n" not in draft.reason
    drafter.close()


@over_drafters
@given(text=texts, output=texts, budget=budgets, sampler=samplers)
def test_the_context_is_left_as_found(
    name: str, text: list[int], output: list[int], budget: Budget, sampler: Sampler
) -> None:
    context = History(text, window=5)
    for token in output:
        context.push(token)
    before = (list(context.tokens), dict(context.seen), dict(context.output))
    begun(name, text).propose(context, budget, sampler)
    assert (list(context.tokens), dict(context.seen), dict(context.output)) == before


@pytest.mark.parametrize("name", TALKATIVE)
def test_it_says_something(name: str) -> None:
    """The other tests would hold for silence too."""
    text = [2, 4, 6, 8, 2, 4, 6, 8, 2, 4]
    chain = begun(name, text).propose(History(text), Budget.chain(4), sampler())
    assert len(chain) >= 2
    tree = begun(name, text).propose(History(text), Budget(10, 4, 3), sampler(2.0, "residual"))
    assert len(tree) >= 2
    assert tree.source == chain.source != "none"


def test_a_model_fills_its_tree() -> None:
    text = [2, 4]
    endless = Sampler(SamplingParams(temperature=2.0))
    draft = begun("model", text).propose(History(text), Budget(12, 4, 3), endless)
    assert len(draft) == 12
    assert max(len(siblings) for siblings in children(draft.parents).values()) == 3


TREES = {
    "static": Budget(12, 4, 3),
    "shape": Budget(6, 4, 3, shape=(-1, -1, 0, 0, 2, 4)),
    "dynamic": Budget(12, 4, 3, dynamic=True),
    "merged": Budget(12, 4, 3, merge=True),
}


@pytest.mark.parametrize("budget", TREES)
def test_a_draft_engine_without_trees_drafts_a_chain(budget: str) -> None:
    text = [2, 4]
    chain = begun("model", text).propose(History(text), Budget.chain(4), sampler())
    draft = begun("model without trees", text).propose(History(text), TREES[budget], sampler())
    assert listed(draft) == listed(chain)


@pytest.mark.parametrize("name", ["model", "model without trees"])
def test_a_gate_stops_a_model_of_either_kind(name: str) -> None:
    text, gate, endless = [2, 4], Counting(3, 2), Sampler(SamplingParams())
    draft = begun(name, text).propose(History(text), Budget(8, 8, 1, gate=gate), endless)
    assert (len(draft), draft.passes) == (2, 3)
    if name == "model without trees":
        tree = begun(name, text).propose(History(text), Budget(8, 8, 3, gate=gate), endless)
        assert listed(tree) == listed(draft), "a tree's gate is a chain's gate where only a chain is possible"


def test_a_lookup_and_a_model_in_one_tree() -> None:
    """All that either of them says alone stands in it, the lookup's children first."""
    text, budget = [2, 4, 6, 8, 2, 4, 6, 8, 2, 4], Budget(14, 4, 2, merge=True)
    merged = begun("chain", text).propose(History(text), budget, sampler())
    copied = begun("ngram", text).propose(History(text), budget, sampler())
    rest = replace(budget, nodes=budget.nodes - len(copied))
    guessed = begun("model", text).propose(History(text), rest, sampler())
    assert merged.source == "ngram+model"
    assert merged.tokens[: len(copied)].tolist() == copied.tokens.tolist()
    spelt = [
        {tuple(draft.tokens[path_to(draft.parents, node)].tolist()) for node in range(len(draft))}
        for draft in (merged, copied, guessed)
    ]
    assert spelt[0] == spelt[1] | spelt[2]
    assert spelt[1] - spelt[2] and spelt[2] - spelt[1], "neither says all of it"


def test_null_gives_its_reason() -> None:
    draft = begun("null", [1]).propose(History([1]), Budget.chain(4), sampler())
    assert (len(draft), draft.reason) == (0, "switched off")


@over_drafters
def test_a_budget_of_nothing(name: str) -> None:
    text = [2, 4, 6, 8, 2, 4, 6, 8, 2, 4]
    drafter, context = begun(name, text), History(text)
    assert len(drafter.propose(context, Budget(0, 0, 0), sampler())) == 0
    fresh = begun(name, text).propose(context, Budget.chain(4), sampler())
    assert listed(drafter.propose(context, Budget.chain(4), sampler())) == listed(fresh)


# --- after a verdict ---------------------------------------------------------------------------------------


@over_drafters
@settings(max_examples=40)
@given(text=texts, budget=budgets, bonus=st.integers(0, VOCAB - 1), sampler=samplers)
def test_whatever_was_accepted_the_next_proposal_is_that_of_a_fresh_drafter(
    name: str, text: list[int], budget: Budget, bonus: int, sampler: Sampler
) -> None:
    first = begun(name, text).propose(History(text), budget, sampler)
    for node in range(-1, len(first)):
        drafter = begun(name, text)
        context = History(text)
        drafter.propose(context, budget, sampler)
        path = path_to(first.parents, node)
        for token in [*first.tokens[path].tolist(), bonus]:
            context.push(token)
        if len(first):
            drafter.observe(path)
        again = drafter.propose(context, budget, sampler)
        check_shape(again, budget)
        check_tokens(again)
        if name != "ngram, resuming":
            fresh = begun(name, context.tokens)
            assert listed(again) == listed(fresh.propose(context, budget, sampler))


TRUTH = markov_table(LIMIT, order=2, seed=5)


def answer(
    drafter: Drafter, prompt: Sequence[int], rounds: int = 12, budget: Budget = TREES["static"]
) -> list[tuple[list[int], list[int]]]:
    """All proposals of one request, verified greedily against ``TRUTH``."""
    context, greedy, proposals = History(prompt), sampler(), []
    drafter.begin(prompt)
    for _ in range(rounds):
        draft = drafter.propose(context, budget, greedy)
        proposals.append(listed(draft))
        path, below = list[int](), children(draft.parents)
        while True:
            token = int(TRUTH(tuple(context.tokens)).argmax())
            context.push(token)
            hit = [node for node in below.get(path[-1] if path else -1, []) if draft.tokens[node] == token]
            if not hit:
                break
            path.append(hit[0])
        if len(draft):
            drafter.observe(path)
    return proposals


@over_drafters
@pytest.mark.parametrize("budget", TREES)
def test_nothing_leaks_into_the_next_request(name: str, budget: str) -> None:
    """Cases G7, G8: a long request, a short unrelated one, the first one again."""
    random = np.random.default_rng(2)
    long = random.integers(0, LIMIT, 150).tolist()
    short = [LIMIT - 1 - token for token in long[:9]]
    drafter = DRAFTERS[name]()
    got = [answer(drafter, prompt, budget=TREES[budget]) for prompt in (long, short, long)]
    alone = [answer(DRAFTERS[name](), prompt, budget=TREES[budget]) for prompt in (long, short)]
    assert got == [alone[0], alone[1], alone[0]]


@over_drafters
def test_a_request_that_was_cut_short(name: str) -> None:
    """A proposal without its verdict (the reader cancelled), then a new request."""
    drafter = begun(name, [2, 4, 2, 4, 2])
    drafter.propose(History([2, 4, 2, 4, 2]), Budget(8, 4, 2), sampler())
    assert answer(drafter, [4, 6, 8, 4, 6]) == answer(DRAFTERS[name](), [4, 6, 8, 4, 6])


@over_drafters
def test_close_is_idempotent(name: str) -> None:
    drafter = DRAFTERS[name]()
    drafter.close()
    drafter.begin([2, 4])
    drafter.close()
    drafter.close()


# --- what a draft model does not know ----------------------------------------------------------------------


@over_drafters
@pytest.mark.parametrize("prompt", [[VOCAB - 1], [2, LIMIT], [LIMIT, LIMIT + 1, LIMIT]])
def test_unknown_ids_at_the_end(name: str, prompt: list[int]) -> None:
    """Case C12: a pause, not a crash; then it goes on."""
    drafter = begun(name, prompt)
    context = History(prompt)
    draft = drafter.propose(context, Budget(8, 4, 2), sampler())
    if "model" in name:
        assert (len(draft), draft.reason) == (0, f"model: the last token, {prompt[-1]}, is unknown to the draft")
    context.push(4)
    again = drafter.propose(context, Budget(8, 4, 2), sampler())
    assert ("model" not in name and name not in ("chain", "head")) or len(again) > 0


def test_unknown_ids_are_left_out_of_what_a_model_reads() -> None:
    with_unknown, without = [2, LIMIT, 4, VOCAB - 1, 6], [2, 4, 6]
    drafts = [
        begun("model", text).propose(History(text), Budget(8, 4, 2), sampler()) for text in (with_unknown, without)
    ]
    assert listed(drafts[0]) == listed(drafts[1])
    assert len(drafts[0]) > 1


def test_a_text_longer_than_the_draft_context() -> None:
    """Case F7: context 256, text 600 and growing past 1000: it goes on, with the same proposals as a large one."""
    prompt = np.random.default_rng(0).integers(0, LIMIT, 600).tolist()
    large = ModelDrafter(ScriptedEngine(markov_table(VOCAB, order=3, seed=5), VOCAB), limit=LIMIT, barred=BARRED)
    got = answer(model(), prompt, rounds=400)
    assert got == answer(large, prompt, rounds=400)
    assert all(tokens for tokens, _ in got)


def test_a_long_text_is_not_read_again_and_again() -> None:
    """Past the draft's context a token costs a few tokens of reading on average, not half a context."""
    reads: list[int] = []

    class Counting(ScriptedSession):
        def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
            reads.append(len(tokens))
            return super().extend(tokens, parents, rows)

    class Engine(ScriptedEngine):
        def open(self) -> ScriptedSession:
            return Counting(self)

    drafter = ModelDrafter(Engine(markov_table(VOCAB, order=1), VOCAB, 256))
    context = History([2] * 200)
    drafter.begin(context.tokens)
    reads.clear()
    for _ in range(1000):
        context.push(4)
        assert len(drafter.propose(context, Budget.chain(4), sampler())) > 0
        drafter.observe([])
    assert max(reads) > 100
    assert sum(reads) <= 1000 * (1 + 3 + 1.5)
