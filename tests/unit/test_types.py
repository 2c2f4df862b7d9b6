"""Frozen value types: laws, drafts, budgets, sampling parameters."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import InvalidValue, UsageError
from foredraft.trees import depths, is_tree
from foredraft.types import RULES, Budget, Draft, Emitted, Law, SamplingParams, Seconds, Step, Trial, Verdict

LAW = Law(np.array([2, 5, 9], np.int32), np.log([0.2, 0.5, 0.3]) + 7.0)


class TestLaw:
    def test_probabilities_ignore_the_constant(self) -> None:
        assert LAW.probs().tolist() == pytest.approx([0.2, 0.5, 0.3], abs=1e-15)
        assert LAW.probs().dtype == np.float64

    def test_one_token(self) -> None:
        assert [LAW.prob(token) for token in (2, 5, 9)] == pytest.approx([0.2, 0.5, 0.3], abs=1e-15)
        assert [LAW.prob(token) for token in (-1, 0, 3, 10)] == [0.0] * 4

    def test_point_mass(self) -> None:
        law = Law.point(7)
        assert (law.ids.tolist(), law.probs().tolist()) == ([7], [1.0])
        assert law.ids.dtype == np.int32
        assert (law.prob(7), law.prob(6)) == (1.0, 0.0)

    @pytest.mark.parametrize("scores", [[0.0, -2000.0], [1e4, 1e4 - 1], [-1e4, -1e4 - 1]])
    def test_extreme_scores(self, scores: list[float]) -> None:
        probs = Law(np.array([0, 1], np.int32), np.array(scores)).probs()
        assert probs.sum() == pytest.approx(1.0, abs=1e-15) and probs[0] > probs[1]


class TestDraft:
    def test_empty(self) -> None:
        draft = Draft.empty("ngram", "no earlier occurrence")
        assert (len(draft), draft.source, draft.reason, draft.laws) == (0, "ngram", "no earlier occurrence", None)
        assert draft.tokens.dtype == draft.parents.dtype == np.int32
        assert (Draft.empty().source, Draft.empty().reason, Draft.empty().passes) == ("none", None, 0)
        assert Draft.empty("model", "not sure enough", 3).passes == 3

    def test_chain(self) -> None:
        draft = Draft.chain([4, 4, 6], "model", (LAW, LAW, LAW))
        assert (draft.tokens.tolist(), draft.parents.tolist()) == ([4, 4, 6], [-1, 0, 1])
        assert (len(draft), draft.source, len(draft.laws or ())) == (3, "model", 3)
        assert draft.tokens.dtype == draft.parents.dtype == np.int32
        assert len(Draft.chain([], "model")) == 0


@pytest.mark.parametrize("name", ["seed", "top_k", "min_tokens", "penalty_window"])
def test_integers_beyond_every_float_are_no_overflow(name: str) -> None:
    huge: dict[str, Any] = {name: 10**400}
    if name == "seed":
        with pytest.raises(InvalidValue, match="seed is"):
            SamplingParams(**huge)
    else:
        assert getattr(SamplingParams(**huge), name) == 10**400


def test_seconds_add_up() -> None:
    total = Seconds(1.0, 2.0, 3.0, 4.0) + Seconds(0.5, 0.0, 0.25, 0.125)
    assert total == Seconds(1.5, 2.0, 3.25, 4.125)
    assert total.total == 10.875
    assert Seconds().total == 0.0


def test_step_ids() -> None:
    step = Step((Emitted(4, True), Emitted(9, False)), 2, 2, 1, 2, 3, Seconds(), "model")
    assert step.ids == (4, 9)
    assert (step.finish_reason, step.bias, step.hidden_bytes, step.reason) == (None, 0.0, 0, None)
    assert (step.rung, step.why, step.trials, step.passes) == ("off", None, (), 0)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Budget.chain(1), "nodes"),
        (SamplingParams(), "temperature"),
        (Verdict((), 0, 0), "token"),
        (Draft.empty(), "tokens"),
        (Trial(2, 0), "rank"),
        (LAW, "ids"),
        (Seconds(), "draft"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_values_are_frozen(value: object, name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(value, name, 1)


def test_rules() -> None:
    assert RULES == ("coupled", "residual", "relaxed")


# --- budgets ----------------------------------------------------------------------------------------------------------


def trees_of(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Parents of a random tree of 1..most nodes."""
    return st.integers(1, most).flatmap(lambda size: st.tuples(*(st.integers(-1, node - 1) for node in range(size))))


@st.composite
def budgets(draw: st.DrawFn, *, inner: bool = True) -> Budget:
    """Chains, trees with and without a shape, dynamic and merged ones, and budgets by drafter."""
    branches = draw(st.integers(1, 4))
    nodes, depth = draw(st.integers(0, 12)), draw(st.integers(0, 8))
    shape = draw(st.just(()) | trees_of(12))
    sources = draw(st.dictionaries(st.sampled_from(["ngram", "model"]), budgets(inner=False))) if inner else {}
    return Budget(nodes, depth, branches, shape, draw(st.booleans()), draw(st.booleans()), None, sources, "why")


def levels(shape: tuple[int, ...]) -> list[int]:
    found: list[int] = depths(np.array(shape, np.int32)).tolist()
    return found


def check_cut(cut: Budget, wish: Budget, nodes: int, depth: int, tree: bool) -> None:
    assert 0 <= cut.nodes <= max(0, min(wish.nodes, nodes))
    assert 0 <= cut.depth <= max(0, min(wish.depth, depth, cut.nodes))
    assert (cut.nodes == 0) == (cut.depth == 0) == (min(wish.nodes, wish.depth, nodes, depth) <= 0)
    assert is_tree(np.array(cut.shape, np.int32)) and len(cut.shape) <= cut.nodes
    assert max(levels(cut.shape), default=0) <= cut.depth
    if cut.nodes and (not tree or wish.branches == 1):
        assert cut == Budget.chain(cut.nodes)
        assert cut.nodes == min(wish.nodes, wish.depth, nodes, depth), "no shorter than it has to be"
    elif cut.nodes:
        kept = (cut.branches, cut.dynamic, cut.merge, bool(cut.shape))
        assert kept == (wish.branches, wish.dynamic, wish.merge, bool(wish.shape))
        assert cut.nodes == min(wish.nodes, nodes)
    else:
        assert cut == Budget(0, 0, 0)
    assert (cut.gate, cut.why) == (wish.gate, wish.why)


class TestBudget:
    def test_chain(self) -> None:
        assert Budget.chain(5) == Budget(nodes=5, depth=5, branches=1)

    @given(wish=budgets(), nodes=st.integers(-2, 12), depth=st.integers(-2, 9), tree=st.booleans())
    def test_within(self, wish: Budget, nodes: int, depth: int, tree: bool) -> None:
        cut = wish.within(nodes, depth, tree=tree)
        check_cut(cut, wish, nodes, depth, tree)
        assert list(cut.sources) == list(wish.sources), "their order is the order of asking"
        for name, budget in cut.sources.items():
            most, deepest = min(wish.nodes, nodes), min(wish.depth, depth)
            check_cut(budget, wish.sources[name], most, min(deepest, most), tree)

    @given(wish=budgets(), nodes=st.integers(0, 12), depth=st.integers(0, 9), tree=st.booleans())
    def test_within_twice_is_within_once(self, wish: Budget, nodes: int, depth: int, tree: bool) -> None:
        once = wish.within(nodes, depth, tree=tree)
        twice = once.within(nodes, depth, tree=tree)
        assert (twice, dict(twice.sources)) == (once, dict(once.sources))

    @given(shape=trees_of(12), nodes=st.integers(1, 12), depth=st.integers(1, 8))
    def test_a_cut_shape_is_the_first_nodes_that_lie_within_the_depth(
        self, shape: tuple[int, ...], nodes: int, depth: int
    ) -> None:
        """Written as paths of ranks, so that the nodes' numbers do not matter."""
        cut = Budget(12, 8, 12, shape).within(nodes, depth, tree=True).shape
        fits = [node for node, level in enumerate(levels(shape)) if level <= depth][: min(nodes, 12)]
        numbers = {-1: -1} | {node: number for number, node in enumerate(fits)}
        assert cut == tuple(numbers[shape[node]] for node in fits)

    def test_cut_shapes_by_hand(self) -> None:
        wish = Budget(6, 3, 2, shape=(-1, -1, 0, 0, 2, 4))
        assert wish.within(6, 3, tree=True).shape == (-1, -1, 0, 0, 2)
        assert wish.within(6, 2, tree=True).shape == (-1, -1, 0, 0)
        assert wish.within(3, 3, tree=True).shape == (-1, -1, 0)
        assert wish.within(6, 3, tree=False) == Budget.chain(3)

    def test_a_chain_s_shape_is_its_length(self) -> None:
        assert Budget(3, 3, 1, shape=(-1, 0, 1), dynamic=True, merge=True).within(2, 9, tree=True) == Budget.chain(2)

    def test_of(self) -> None:
        chain, tree = Budget.chain(3), Budget(8, 4, 2)
        joint = Budget(8, 4, 2, sources={"ngram": chain, "model": tree})
        assert (joint.of("ngram"), joint.of("model")) == (chain, tree)
        assert joint.of("head").nodes == 0, "who is not named is not asked"
        assert tree.of("model") is tree, "no names: it holds for all"

    def test_gates_reasons_and_sources_are_no_part_of_equality(self) -> None:
        """Two budgets that ask for the same are the same."""
        assert Budget(3, 3, 1, why="a", sources={"model": Budget.chain(1)}) == Budget.chain(3)
        assert hash(Budget(3, 3, 1, why="a")) == hash(Budget.chain(3))


class TestSamplingParams:
    def test_defaults_are_greedy_and_change_nothing(self) -> None:
        params = SamplingParams()
        assert params.greedy and not params.penalised
        assert (params.top_k, params.top_p, params.min_p, params.seed, dict(params.logit_bias)) == (0, 1.0, 0.0, 0, {})
        assert not replace(params, temperature=0.1).greedy

    @pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
    def test_penalised(self, name: str) -> None:
        assert replace(SamplingParams(), **{name: 0.5}).penalised  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("name", "allowed"),
        [
            ("temperature", "0 (greedy) or a positive number"),
            ("top_k", "0 (off) or a positive integer"),
            ("top_p", "a number in (0, 1]"),
            ("min_p", "a number in [0, 1]"),
            ("repetition_penalty", "a positive number (1 = off)"),
            ("penalty_window", "0 (all) or a positive integer"),
            ("min_tokens", "0 or a positive integer"),
            ("seed", "an integer in [0, 2**64)"),
        ],
    )
    @pytest.mark.parametrize("value", [-1, math.nan])
    def test_negative_and_nan(self, value: float, name: str, allowed: str) -> None:
        with pytest.raises(InvalidValue) as caught:
            SamplingParams(**{name: value})  # type: ignore[arg-type]
        assert str(caught.value) == f"{name} is {value!r}; allowed: {allowed}"
        assert (caught.value.name, caught.value.allowed) == (name, allowed)
        assert isinstance(caught.value, UsageError)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("temperature", math.inf),
            ("top_p", 0.0),
            ("top_p", 1.0001),
            ("top_p", math.inf),
            ("min_p", 1.5),
            ("repetition_penalty", 0.0),
            ("repetition_penalty", math.inf),
            ("presence_penalty", math.nan),
            ("presence_penalty", math.inf),
            ("frequency_penalty", -math.inf),
            ("seed", 2**64),
        ],
    )
    def test_other_values_out_of_range(self, name: str, value: float) -> None:
        with pytest.raises(InvalidValue, match=rf"^{name} is {value!r}; allowed: "):
            SamplingParams(**{name: value})  # type: ignore[arg-type]

    @pytest.mark.parametrize("bias", [math.nan, math.inf])
    def test_bias(self, bias: float) -> None:
        with pytest.raises(InvalidValue, match=r"^logit_bias\[7\] is (nan|inf); allowed: a finite number, or -inf"):
            SamplingParams(logit_bias={3: 1.0, 7: bias})

    def test_ends_of_the_ranges(self) -> None:
        params = SamplingParams(
            temperature=1e300,
            top_k=10**9,
            top_p=1e-9,
            min_p=1.0,
            repetition_penalty=1e-9,
            presence_penalty=-2.0,
            frequency_penalty=1e9,
            seed=2**64 - 1,
            logit_bias={0: -math.inf, 10**9: -5.0},
        )
        assert (params.top_p, params.seed) == (1e-9, 2**64 - 1)
