"""Several drafters in a row or in one tree: who is asked, what becomes one tree, and what each is told afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.drafters.base import Drafter
from foredraft.drafters.chain import ChainDrafter, merge_drafts
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramConfig, NgramDrafter
from foredraft.drafters.null import NullDrafter
from foredraft.engines.scripted import ScriptedEngine, blended, markov_table
from foredraft.sampling import History, Sampler
from foredraft.trees import children, depths, is_tree, path_to
from foredraft.types import Budget, Draft, Rule, SamplingParams
from tests.support.gates import Believing, Counting
from tests.support.scripted import Run, Says, generate

VOCAB = 24
TRUTH = markov_table(VOCAB, order=1, seed=4)
GREEDY = Sampler(SamplingParams())
TEN = History([1, 2, 3])


def draft(tokens: Sequence[int], parents: Sequence[int], source: str, *sure: float, passes: int = 0) -> Draft:
    ids = np.array(tokens, np.int32), np.array(parents, np.int32)
    return Draft(*ids, None, source, None, sure or None, passes)


def says(found: Draft, name: str | None = None) -> Says:
    return Says(lambda context, budget, sampler: found, name or found.source)


@dataclass
class Witness:
    """Passes everything on, and notes budgets, proposals and what was accepted."""

    inner: Drafter
    name: str = ""
    budgets: list[Budget] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    told: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.name or self.inner.name

    def begin(self, prompt: Sequence[int]) -> None:
        self.inner.begin(prompt)

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        self.budgets.append(budget)
        self.drafts.append(self.inner.propose(context, budget, sampler))
        return self.drafts[-1]

    def observe(self, accepted: Sequence[int]) -> None:
        self.told.append(list(accepted))
        self.inner.observe(accepted)

    def close(self) -> None:
        self.inner.close()


# --- who is asked -----------------------------------------------------------------------------------------------------

A = draft([5, 6], [-1, 0], "a", 0.9, 0.8, passes=2)
B = draft([5, 7], [-1, 0], "b", 0.7, 0.6, passes=1)
QUIET = Draft.empty("quiet", "quiet: nothing", 3)


def asked(budget: Budget, *found: Draft, rule: Rule = "coupled") -> tuple[Draft, list[Witness]]:
    witnesses = [Witness(says(one)) for one in found]
    chain = ChainDrafter(witnesses)
    chain.begin([1])
    sampler = Sampler(SamplingParams(temperature=1.0), rule=rule)
    return chain.propose(TEN, budget, sampler), witnesses


def test_the_first_with_something_to_say() -> None:
    got, (quiet, a, b) = asked(Budget.chain(4), QUIET, A, B)
    assert (got.source, got.tokens.tolist(), got.confidence) == ("a", [5, 6], (0.9, 0.8))
    assert got.passes == 5, "the passes of the silent one were spent too"
    assert (len(quiet.drafts), len(a.drafts), len(b.drafts)) == (1, 1, 0)


def test_all_reasons_if_nobody_says_anything() -> None:
    got, _ = asked(Budget.chain(4), QUIET, Draft.empty("mute"))
    assert (len(got), got.reason, got.passes) == (0, "quiet: nothing; mute: nothing to propose", 3)
    assert got.source == "quiet+mute"


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_the_budget_s_order(order: tuple[str, str]) -> None:
    budget = Budget(4, 4, 1, sources=dict.fromkeys(order, Budget.chain(4)))
    got, witnesses = asked(budget, A, B)
    assert got.source == order[0]
    assert [len(each.drafts) for each in witnesses] == [int(each.name == order[0]) for each in witnesses]


def test_who_is_not_named_or_has_no_budget_is_not_asked() -> None:
    only, (a, b) = asked(Budget(4, 4, 1, sources={"b": Budget.chain(2)}), A, B)
    assert (only.source, a.drafts, b.budgets) == ("b", [], [Budget.chain(2)])
    none, (a, b) = asked(Budget(4, 4, 1, sources={"a": Budget(0, 0, 0), "x": Budget.chain(2)}), A, B)
    assert (len(none), none.reason, a.drafts, b.drafts) == (0, "a+b: budget 0", [], [])


def test_each_is_asked_within_its_own_budget() -> None:
    gate = Believing()
    parts = {"a": Budget(3, 3, 1, gate=gate), "b": Budget(9, 4, 3, shape=(-1, -1, 0, 2), dynamic=True)}
    _, (quiet, b) = asked(Budget(9, 4, 3, sources=parts), replace(QUIET, source="a"), B)
    assert quiet.budgets == [Budget.chain(3)] and quiet.budgets[0].gate is gate
    assert b.budgets == [parts["b"]]


# --- one tree of several ----------------------------------------------------------------------------------------------


def test_a_merged_tree_by_hand() -> None:
    got, _ = asked(Budget(8, 4, 2, merge=True), A, B)
    assert (got.tokens.tolist(), got.parents.tolist()) == ([5, 6, 7], [-1, 0, 0])
    assert (got.source, got.confidence, got.passes, got.laws) == ("a+b", (0.9, 0.8, 0.6), 3, None)


def test_merging_needs_a_rule_that_does_not_ask_where_a_token_came_from() -> None:
    """Accept-reject would need one law for all siblings."""
    for rule in ("residual", "relaxed"):
        got, (_, b) = asked(Budget(8, 4, 2, merge=True), A, B, rule=rule)
        assert (got.source, b.drafts) == ("a", [])


def test_the_first_has_all_the_room_and_the_others_the_rest() -> None:
    _, (a, b) = asked(Budget(5, 4, 2, merge=True), A, B)
    assert [one.nodes for one in (*a.budgets, *b.budgets)] == [5, 3]
    got, (a, b) = asked(Budget(2, 2, 2, merge=True), A, B)
    assert (got.source, b.budgets) == ("a", []), "no room is left"


def test_one_that_says_something_stays_what_it_is() -> None:
    got, _ = asked(Budget(8, 4, 2, merge=True), QUIET, A)
    assert (got.source, got.tokens.tolist(), got.passes) == ("a", [5, 6], 5)


def test_a_drafter_without_confidence_counts_as_sure() -> None:
    merged = merge_drafts([draft([5], [-1], "a"), draft([6], [-1], "b", 0.25)]).draft
    assert merged.confidence == (1.0, 0.25)


@st.composite
def random_drafts(draw: st.DrawFn) -> Draft:
    """Few tokens, so that drafts have much in common; siblings differ."""
    found: dict[tuple[int, ...], float] = {}
    for _ in range(draw(st.integers(1, 8))):
        above = draw(st.sampled_from([(), *found]))
        found.setdefault((*above, draw(st.integers(0, 2))), draw(st.floats(0.0, 1.0)))
    paths = list(found)
    index = {(): -1} | {path: node for node, path in enumerate(paths)}
    tokens, parents = [path[-1] for path in paths], [index[path[:-1]] for path in paths]
    return draft(tokens, parents, draw(st.sampled_from("xyz")), *found.values())


def spelt(tree: Draft, node: int) -> tuple[int, ...]:
    return tuple(tree.tokens[path_to(tree.parents, node)].tolist())


@given(drafts=st.lists(random_drafts(), min_size=1, max_size=4))
def test_a_merged_tree_holds_every_path_once(drafts: list[Draft]) -> None:
    merged = merge_drafts(drafts)
    tree = merged.draft
    assert is_tree(tree.parents)
    paths = [spelt(tree, node) for node in range(len(tree))]
    assert len(set(paths)) == len(paths), "siblings differ"
    assert set(paths) == {spelt(one, node) for one in drafts for node in range(len(one))}
    for one, numbers in zip(drafts, merged.numbers, strict=True):
        assert [paths[number] for number in numbers] == [spelt(one, node) for node in range(len(one))]
    first = merged.numbers[0]
    assert first == tuple(range(len(drafts[0]))), "the first draft's own numbers are kept"
    for kids in children(tree.parents).values():
        own = [kid in first for kid in kids]
        assert own == sorted(own, reverse=True), "earlier drafts' children are tried first"
    assert tree.source.split("+") == list(dict.fromkeys(one.source for one in drafts))


# --- what each is told ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accepted", "a", "b"),
    [([], [], []), ([0], [0], [0]), ([0, 1], [0, 1], [0]), ([0, 2], [0], [0, 1]), ([0, 2, 3], [0], [0, 1, 2])],
)
def test_each_is_told_its_own_accepted_tokens(accepted: list[int], a: list[int], b: list[int]) -> None:
    """Tree: 5 of both, below it 6 of a and 7 of b, below that 8 of b."""
    longer = draft([5, 7, 8], [-1, 0, 1], "b")
    witnesses = [Witness(says(A)), Witness(says(longer)), Witness(NullDrafter("none"), "null")]
    chain = ChainDrafter(witnesses)
    chain.begin([1])
    got = chain.propose(TEN, Budget(8, 4, 2, merge=True), GREEDY)
    assert (got.tokens.tolist(), got.parents.tolist()) == ([5, 6, 7, 8], [-1, 0, 0, 2])
    chain.observe(accepted)
    for witness, own in zip(witnesses, (a, b), strict=False):
        assert witness.told == [own]
    assert witnesses[2].told == [], "who said nothing is told nothing"


def test_a_verdict_is_told_once_and_to_those_who_proposed() -> None:
    chain = ChainDrafter([a := Witness(says(A)), b := Witness(says(B))])
    chain.begin([1])
    chain.propose(TEN, Budget(8, 4, 2, merge=True), GREEDY)
    chain.observe([0])
    chain.propose(TEN, Budget.chain(4), GREEDY)
    chain.observe([0, 1])
    assert a.told == [[0], [0, 1]]
    assert b.told == [[0]]
    chain.begin([1])
    chain.observe([0])
    assert len(a.told) == 2, "nothing is left of the last request"


def walk(tree: Draft, context: History) -> list[int]:
    """Verify greedily against the truth; the context grows by what is emitted."""
    path: list[int] = []
    below = children(tree.parents)
    while True:
        token = int(TRUTH(tuple(context.tokens)).argmax())
        context.push(token)
        hit = [node for node in below.get(path[-1] if path else -1, []) if tree.tokens[node] == token]
        if not hit:
            return path
        path.append(hit[0])


def own_path(one: Draft, emitted: Sequence[int]) -> list[int]:
    """The longest path of a draft's own tree along what was emitted."""
    path: list[int] = []
    for token in emitted:
        kids = children(one.parents).get(path[-1] if path else -1, [])
        hit = [kid for kid in kids if one.tokens[kid] == token]
        if not hit:
            break
        path.append(hit[0])
    return path


def mixed_prompt(seed: int) -> list[int]:
    """The truth's own words, some of them exchanged, so that lookups are sometimes right."""
    random = np.random.default_rng(seed)
    text = History([int(random.integers(VOCAB))])
    for _ in range(40):
        text.push(int(TRUTH(tuple(text.tokens)).argmax() if random.random() < 0.8 else random.integers(VOCAB)))
    return list(text.tokens)


BUDGETS = {
    "tree": Budget(12, 4, 3, merge=True),
    "dynamic": Budget(10, 4, 2, dynamic=True, merge=True),
    "gates": Budget(
        12,
        6,
        2,
        merge=True,
        sources={
            "ngram": Budget(6, 6, 1, gate=Believing(keeps=0.3)),
            "model": Budget(8, 4, 2, dynamic=True, gate=Counting(3, 4)),
        },
    ),
    "model first": Budget(10, 4, 2, merge=True, sources={"model": Budget(4, 2, 2), "ngram": Budget(6, 4, 2)}),
}


@pytest.mark.parametrize("budget", BUDGETS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000))
def test_every_drafter_of_a_merged_tree_goes_on_as_if_it_had_drafted_alone(budget: str, seed: int) -> None:
    """Both are told their own accepted prefix; the lookup's copy point and the model's cache end up where they would
    have without the other."""
    prompt, wish = mixed_prompt(seed), BUDGETS[budget]
    config = NgramConfig(min_n=1)
    engine = ScriptedEngine(blended(TRUTH, markov_table(VOCAB, seed=9), 0.4), VOCAB)
    inner, alone = NgramDrafter(config), NgramDrafter(config)
    copies, model = Witness(inner), Witness(ModelDrafter(engine))
    chain = ChainDrafter([copies, model])
    context = History(prompt)
    chain.begin(prompt)
    alone.begin(prompt)
    for _ in range(8):
        start, before = len(context), {id(each): (len(each.drafts), len(each.told)) for each in (copies, model)}
        tree = chain.propose(context, wish, GREEDY)
        assert len(tree) <= wish.nodes and depths(tree.parents).max(initial=0) <= wish.depth
        fresh = ModelDrafter(engine)
        fresh.begin(list(context.tokens))
        single = Draft.empty()
        for witness, other in ((copies, alone), (model, fresh)):
            if len(witness.drafts) > before[id(witness)][0]:  # else the other left no room
                again = other.propose(context, witness.budgets[-1], GREEDY)
                assert again.tokens.tolist() == witness.drafts[-1].tokens.tolist()
                assert again.parents.tolist() == witness.drafts[-1].parents.tolist()
                single = again if other is alone else single
        accepted = walk(tree, context)
        if len(tree):
            chain.observe(accepted)
        emitted = list(context.tokens)[start:]
        for witness in (copies, model):
            drafts, told = before[id(witness)]
            found = [own_path(one, emitted) for one in witness.drafts[drafts:] if len(one)]
            assert witness.told[told:] == found
        if len(single):
            alone.observe(own_path(single, emitted))
        assert (inner._copy_point, inner._copied) == (alone._copy_point, alone._copied)


def test_whole_requests_with_merged_trees() -> None:
    """Through the loop: the plain text, trees of both, and rounds in which only one had something to say."""
    target = ScriptedEngine(TRUTH, VOCAB)
    prompt = mixed_prompt(3)
    run = Run(target, prompt=prompt)
    model = ModelDrafter(ScriptedEngine(blended(TRUTH, markov_table(VOCAB, seed=9), 0.4), VOCAB))
    for budget in BUDGETS.values():
        chain = ChainDrafter([NgramDrafter(NgramConfig(min_n=1)), model])
        answer = generate(run.drafting(chain, budget))
        assert answer.ids == generate(run).ids
        sources = {step.drafter for step in answer.rounds if step.drafted}
        assert sources & {"ngram+model", "model+ngram"}
        assert {step.rung for step in answer.rounds} & {"tree"}
        assert max(step.accepted for step in answer.rounds) > 1
        assert all(step.passes > 0 for step in answer.rounds if "model" in step.drafter)


def test_every_path_of_a_merged_tree_is_one_drafter_s() -> None:
    """Tokens of two drafters follow each other only where one of them had both."""
    merged = merge_drafts([draft([1, 2], [-1, 0], "a"), draft([1, 3, 4], [-1, 0, 1], "b")])
    for node in range(len(merged.draft)):
        path = path_to(merged.draft.parents, node)
        assert any(set(path) <= set(numbers) for numbers in merged.numbers)
        assert all(above < below for above, below in pairwise(path))
