"""Drafts under construction: planned shapes, gated chains, trees that grow where the draft is sure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.drafters.growth import DynamicGrowth, Finished, Growth, Nodes, StaticGrowth, growth
from foredraft.engines.scripted import Table, markov_table
from foredraft.sampling import History, Sampler
from foredraft.trees import children, depths, is_tree, path_to, static_shape
from foredraft.types import Budget, Draft, Gate, Rule, SamplingParams
from tests.support.gates import Believing, Counting

VOCAB = 12
TABLE = markov_table(VOCAB, seed=3)
PROMPT = (1, 2)
END = 5
SOFT = SamplingParams(temperature=1.0, seed=2)


def sampler(params: SamplingParams = SOFT, rule: Rule = "coupled", ends: Sequence[int] = ()) -> Sampler:
    return Sampler(params, rule=rule, eog_ids=ends)


def grow(grown: Growth, table: Table = TABLE) -> list[list[int]]:
    """Feed it as a drafter does; the levels that it asked for. Each node is fed once and after its parent."""
    grown.put(-1, table(PROMPT))
    levels, fed = [], {-1}
    while level := grown.next_level():
        for node in level:
            assert node not in fed and grown.parents[node] in fed
        for node in level:
            path = [grown.tokens[up] for up in path_to(grown.parents, node)]
            fed.add(node)
            grown.put(node, table((*PROMPT, *path)))
        levels.append(level)
    assert sum(map(len, levels)) <= grown.most_fed
    return levels


def drafted(grown: Growth) -> Draft:
    grow(grown)
    return grown.finish().draft("model", 1)


def nodes(params: SamplingParams = SOFT, rule: Rule = "coupled", ends: Sequence[int] = ()) -> Nodes:
    return Nodes(sampler(params, rule, ends), History(PROMPT))


PARAMS = st.sampled_from([SamplingParams(), SOFT, SamplingParams(temperature=0.6, top_k=4, seed=5)])
GATES: st.SearchStrategy[Gate | None] = st.none() | st.builds(
    Believing, st.sampled_from([0.0, 0.2, 0.5]), st.sampled_from([0.0, 0.1, 0.4])
)


# --- planned shapes ---------------------------------------------------------------------------------------------------


class TestStatic:
    @given(
        params=PARAMS,
        shape=st.integers(1, 9).flatmap(lambda n: st.tuples(*(st.integers(-1, node - 1) for node in range(n)))),
    )
    def test_draws_the_shape_in_its_own_order(self, params: SamplingParams, shape: tuple[int, ...]) -> None:
        """Every place's children are the sampler's, as many as planned (or as there are)."""
        draft = drafted(StaticGrowth(Budget(9, 9, 9, shape), nodes(params)))
        tokens, below = draft.tokens.tolist(), children(draft.parents)
        planned = {parent: len(kids) for parent, kids in children(np.array(shape, np.int32)).items()}
        for parent, kids in below.items():
            history = History(PROMPT)
            for node in path_to(draft.parents, parent):
                history.push(tokens[node])
            best = sampler(params).children(TABLE(tuple(history.tokens)), history, len(kids))
            assert [tokens[kid] for kid in kids] == best.ids.tolist()
            assert draft.confidence is not None
            assert [draft.confidence[kid] for kid in kids] == list(best.confidence)
        assert len(below[-1]) == min(planned[-1], params.top_k or VOCAB)

    @pytest.mark.parametrize("budget", [Budget(9, 4, 3), Budget(5, 5, 1), Budget(6, 2, 2)])
    def test_without_a_shape_the_best_one_for_its_size(self, budget: Budget) -> None:
        draft = drafted(StaticGrowth(budget, nodes()))
        assert draft.parents.tolist() == static_shape(budget).tolist()

    def test_one_pass_a_level(self) -> None:
        shape = (-1, -1, 0, 0, 1, 2, 4)
        levels = grow(StaticGrowth(Budget(7, 3, 2, shape), nodes()))
        assert levels == [[0, 1], [2, 4]], "only nodes that are to have children"

    def test_nothing_follows_the_end_of_the_text(self) -> None:
        def ends_second(text: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
            row = np.zeros(VOCAB, np.float32)
            row[END if len(text) == 3 else 7] = 9.0
            return row

        draft = drafted(StaticGrowth(Budget.chain(5), nodes(SamplingParams(), ends=[END])))
        assert len(draft) == 5, "the table never says it"
        grown = StaticGrowth(Budget.chain(5), nodes(SamplingParams(), ends=[END]))
        grow(grown, ends_second)
        assert grown.finish().draft("model", 2).tokens.tolist() == [7, END]

    def test_laws_come_with_the_rule_that_needs_them(self) -> None:
        shape = (-1, -1, 0)
        soft = drafted(StaticGrowth(Budget(3, 2, 2, shape), nodes(rule="residual")))
        assert soft.laws is not None and len(soft.laws) == 3
        assert soft.laws[0] is soft.laws[1] is not soft.laws[2]
        assert drafted(StaticGrowth(Budget(3, 2, 2, shape), nodes())).laws is None
        assert drafted(StaticGrowth(Budget(3, 2, 2, shape), nodes(SamplingParams(), "residual"))).laws is None


# --- gated chains -----------------------------------------------------------------------------------------------------


class TestGatedChain:
    @given(params=PARAMS, length=st.integers(1, 8), gate=GATES)
    def test_is_a_prefix_of_the_open_chain_as_long_as_the_gate_keeps(
        self, params: SamplingParams, length: int, gate: Gate | None
    ) -> None:
        whole = drafted(StaticGrowth(Budget.chain(length), nodes(params)))
        draft = drafted(StaticGrowth(Budget(length, length, 1, gate=gate), nodes(params)))
        assert whole.confidence is not None and draft.confidence is not None
        assert draft.tokens.tolist() == whole.tokens[: len(draft)].tolist()
        assert draft.confidence == whole.confidence[: len(draft)]
        if isinstance(gate, Believing):
            values = list(accumulate(whole.confidence, mul))
            grown = 1 + next((at for at, value in enumerate(values) if not value > gate.more_than), length)
            assert len(draft) == gate.kept(values[: min(grown, length)])

    @pytest.mark.parametrize(("grows", "keeps"), [(1, 1), (3, 2), (3, 0), (4, 9), (9, 9)])
    def test_passes_stop_where_the_gate_says(self, grows: int, keeps: int) -> None:
        grown = StaticGrowth(Budget(6, 6, 1, gate=Counting(grows, keeps)), nodes())
        levels = grow(grown)
        assert len(levels) == min(grows, 6) - 1, "the first token comes with the pass that reads the text"
        assert len(grown.finish().nodes) == min(grows, keeps, 6)

    def test_the_gate_is_asked_for_every_token_once_and_in_order(self) -> None:
        gate = Believing()
        grown = StaticGrowth(Budget(4, 4, 1, gate=gate), nodes())
        grow(grown)
        confidence = grown.finish().confidence
        assert gate.asked == [(depth, 0, sure) for depth, sure in enumerate(confidence, 1)]

    @pytest.mark.parametrize("rule", ["residual", "relaxed"])
    def test_what_was_drawn_is_proposed_where_the_rule_needs_it(self, rule: Rule) -> None:
        """A draft that keeps back unlikely tokens is no longer drawn from its law: see tests/law."""
        gate = Believing(more_than=0.05, keeps=1.0)
        for seed in range(20):
            params = SamplingParams(temperature=1.0, seed=seed)
            draft = drafted(StaticGrowth(Budget(6, 6, 1, gate=gate), nodes(params, rule)))
            assert draft.confidence is not None
            values = list(accumulate(draft.confidence, mul))
            assert all(value > 0.05 for value in values[:-1]), "it stops before a draw, not after it"
            assert len(draft) == 6 or values[-1] <= 0.05
            assert len(drafted(StaticGrowth(Budget(6, 6, 1, gate=gate), nodes(params)))) == 0
            assert len(drafted(StaticGrowth(Budget(6, 6, 1, gate=gate), nodes(SamplingParams(), rule)))) == 0


# --- dynamic trees ----------------------------------------------------------------------------------------------------


def values(draft: Draft) -> list[float]:
    """The product of the confidence along each node's path."""
    found: list[float] = []
    assert draft.confidence is not None
    for sure, parent in zip(draft.confidence, draft.parents.tolist(), strict=True):
        found.append(sure * (found[parent] if parent >= 0 else 1.0))
    return found


@st.composite
def dynamic(draw: st.DrawFn, gate: st.SearchStrategy[Gate | None] = GATES) -> Budget:
    size, depth, branches = draw(st.integers(1, 12)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    return Budget(size, depth, branches, dynamic=True, gate=draw(gate))


class TestDynamic:
    @given(params=PARAMS, budget=dynamic())
    def test_is_a_tree_within_its_budget(self, params: SamplingParams, budget: Budget) -> None:
        grown = DynamicGrowth(budget, nodes(params))
        levels = grow(grown)
        draft = grown.finish().draft("model", 1)
        assert len(draft) <= budget.nodes and is_tree(draft.parents)
        assert depths(draft.parents).max(initial=0) <= budget.depth
        assert len(levels) < budget.depth, "one pass for each level but the last"
        assert all(len(level) <= budget.branches for level in levels)
        for kids in children(draft.parents).values():
            tokens = draft.tokens[kids].tolist()
            assert len(set(tokens)) == len(tokens) <= budget.branches
            assert draft.confidence is not None
            sure = [draft.confidence[kid] for kid in kids]
            assert sure == sorted(sure, reverse=True), "the likeliest is tried first"

    @given(params=PARAMS, budget=dynamic(st.none()))
    def test_takes_the_most_valuable_nodes_drafted(self, params: SamplingParams, budget: Budget) -> None:
        grown = DynamicGrowth(budget, nodes(params))
        grow(grown)
        finished = grown.finish()
        every = Finished(list(range(len(grown.tokens))), finished.tokens, finished.parents, [], finished.confidence)
        every.laws.extend([None] * len(grown.tokens))
        best = sorted(values(every.draft("model", 1)), reverse=True)
        taken = sorted(values(finished.draft("model", 1)), reverse=True)
        assert taken == best[: budget.nodes]

    @given(params=PARAMS, size=st.integers(1, 8), depth=st.integers(1, 8), gate=GATES)
    def test_with_one_branch_it_is_a_chain(
        self, params: SamplingParams, size: int, depth: int, gate: Gate | None
    ) -> None:
        """The same tokens after the same passes, with and without a gate."""
        length = min(size, depth)
        tree = DynamicGrowth(Budget(size, depth, 1, dynamic=True, gate=gate), nodes(params))
        chain = StaticGrowth(Budget(length, length, 1, gate=gate), nodes(params))
        assert grow(tree) == grow(chain)
        one, other = tree.finish().draft("model", 1), chain.finish().draft("model", 1)
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.parents.tolist() == other.parents.tolist()
        assert one.confidence == other.confidence

    @settings(max_examples=30)
    @given(params=PARAMS, size=st.integers(1, 10), branches=st.integers(2, 3))
    def test_no_pass_is_spent_where_nothing_better_can_be_found(
        self, params: SamplingParams, size: int, branches: int
    ) -> None:
        """Every node fed was worth more than the last one proposed at that time, so that a child could displace it."""
        budget = Budget(size, 6, branches, dynamic=True)
        grown = DynamicGrowth(budget, nodes(params))
        grown.put(-1, TABLE(PROMPT))
        while level := grown.next_level():
            now = grown.finish()
            shown = values(now.draft("model", 1))
            worth = dict(zip(now.nodes, shown, strict=True))
            for node in level:
                assert node in worth
                assert len(shown) < size or worth[node] > min(shown) or node < max(now.nodes)
            for node in level:
                path = [grown.tokens[up] for up in path_to(grown.parents, node)]
                grown.put(node, TABLE((*PROMPT, *path)))

    def test_grows_where_the_draft_is_sure(self) -> None:
        """Certain: a chain. Undecided: wide. By hand: row of the first level .5/.5, certain below the second."""

        def sure(text: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
            row = np.full(VOCAB, -20.0, np.float32)
            row[[3, 4]] = 0.0
            if len(text) > len(PROMPT):
                row[3 if text[len(PROMPT)] == 4 else 4] = 0.0 if text[len(PROMPT)] == 3 else 20.0
            return row

        grown = DynamicGrowth(Budget(5, 4, 2, dynamic=True), nodes(SamplingParams()))
        grow(grown, sure)
        draft = grown.finish().draft("model", 1)
        second = [draft.tokens[path_to(draft.parents, node)[0]] for node in range(len(draft))]
        assert second.count(4) == 4 and second.count(3) == 1, "four deep below the sure one, one of the other"
        assert depths(draft.parents).max() == 4

    def test_the_gate_s_estimates_replace_the_confidence(self) -> None:
        """All tokens alike to the gate (.9, siblings .45): values by hand, whatever the draft believes."""
        draft = drafted(DynamicGrowth(Budget(4, 3, 2, dynamic=True, gate=Counting(9, 9)), nodes()))
        assert depths(draft.parents).tolist() == [1, 1, 2, 3] or depths(draft.parents).tolist() == [1, 2, 3, 1]
        short = drafted(DynamicGrowth(Budget(4, 3, 2, dynamic=True, gate=Counting(2, 3)), nodes()))
        assert len(short) == 3 and depths(short.parents).max() == 2, "two deep, three kept"

    def test_nothing_follows_the_end_of_the_text(self) -> None:
        for seed in range(30):
            params = SamplingParams(temperature=3.0, seed=seed)
            draft = drafted(DynamicGrowth(Budget(12, 5, 3, dynamic=True), nodes(params, ends=range(6))))
            inner = {parent for parent in draft.parents.tolist() if parent >= 0}
            assert all(draft.tokens[node] >= 6 for node in inner)


# --- which one --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "rule", "params", "kind"),
    [
        (Budget(8, 4, 2, dynamic=True), "coupled", SOFT, DynamicGrowth),
        (Budget(8, 4, 2, dynamic=True), "residual", SamplingParams(), DynamicGrowth),
        (Budget(8, 4, 2, dynamic=True), "residual", SOFT, StaticGrowth),
        (Budget(8, 4, 2, dynamic=True), "relaxed", SOFT, StaticGrowth),
        (Budget(8, 4, 1, dynamic=True), "coupled", SOFT, StaticGrowth),
        (Budget(8, 4, 2), "coupled", SOFT, StaticGrowth),
    ],
)
def test_which_growth(budget: Budget, rule: Rule, params: SamplingParams, kind: type) -> None:
    """A dynamic tree leaves out nodes because of what was drawn: only where that cannot change the output."""
    assert type(growth(budget, sampler(params, rule), History(PROMPT))) is kind


def test_a_proposal_of_some_nodes_is_numbered_anew() -> None:
    finished = Finished([0, 2, 3], [7, 8, 9, 6], [-1, -1, 0, 2], [None] * 4, [0.5, 0.4, 0.3, 0.2])
    draft = finished.draft("model", 4)
    assert (draft.tokens.tolist(), draft.parents.tolist()) == ([7, 9, 6], [-1, 0, 1])
    assert (draft.confidence, draft.passes, draft.source, draft.laws) == ((0.5, 0.3, 0.2), 4, "model", None)
    assert draft.tokens.dtype == draft.parents.dtype == np.int32
