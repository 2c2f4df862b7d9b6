"""Budgets in the hands of the real drafters: whatever is cut, gated or shaped, the proposal is one that the loop takes,
and the draft model's cache is right afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.decode import Limits, _check_draft
from foredraft.drafters.base import Drafter
from foredraft.drafters.chain import ChainDrafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramConfig, NgramDrafter
from foredraft.engines.scripted import ScriptedEngine, ScriptedSession, blended, markov_table
from foredraft.errors import InvalidValue
from foredraft.sampling import History, Sampler
from foredraft.trees import path_to
from foredraft.types import Budget, Draft, Gate, Ids, Rule, SamplingParams, Scores
from tests.support.gates import Believing, Counting
from tests.support.scripted import Run, generate

VOCAB = 20
TARGET = markov_table(VOCAB, seed=8, sharpness=8.0)
DRAFT = blended(TARGET, markov_table(VOCAB, seed=11, sharpness=8.0), 0.2)
ENGINE = ScriptedEngine(DRAFT, VOCAB)
TEXT = [3, 4, 5, 6, 7, 3, 4, 5, 8, 3, 4, 5]
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "model": lambda: ModelDrafter(ENGINE),
    "model without trees": lambda: ModelDrafter(replace(ENGINE, tree=False)),
    "ngram": lambda: NgramDrafter(NgramConfig(min_n=1)),
    "ngram, then model": lambda: ChainDrafter([NgramDrafter(NgramConfig(min_n=1)), ModelDrafter(ENGINE)]),
}
over_drafters = pytest.mark.parametrize("name", DRAFTERS)

gates: st.SearchStrategy[Gate | None] = st.none() | st.one_of(
    st.builds(Counting, st.integers(1, 6), st.integers(0, 6)),
    st.builds(Believing, st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 0.2, 0.6])),
)
samplers = st.builds(
    lambda temperature, seed, rule: Sampler(SamplingParams(temperature=temperature, seed=seed), rule=rule),
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 5),
    st.sampled_from(["coupled", "residual"]),
)


@st.composite
def budgets(draw: st.DrawFn, *, inner: bool = True) -> Budget:
    """What a controller may ask for, by source or for all."""
    branches, gate = draw(st.integers(1, 3)), draw(gates)
    nodes, depth = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    if draw(st.booleans()):
        shape = draw(st.integers(1, 9).flatmap(lambda n: st.tuples(*(st.integers(-1, at - 1) for at in range(n)))))
        return Budget(12, 12, 12, shape, merge=draw(st.booleans()), gate=gate)
    found = Budget(nodes, depth, branches, (), draw(st.booleans()), draw(st.booleans()), gate)
    if inner and draw(st.booleans()):
        parts = draw(st.dictionaries(st.sampled_from(["ngram", "model"]), budgets(inner=False), min_size=1))
        return replace(found, nodes=12, depth=12, branches=12, sources=parts)
    return found


def begun(name: str) -> Drafter:
    drafter = DRAFTERS[name]()
    drafter.begin(TEXT)
    return drafter


@over_drafters
@settings(deadline=None)
@given(wish=budgets(), limits=st.tuples(st.integers(0, 12), st.integers(0, 6)), tree=st.booleans(), sampler=samplers)
def test_a_draft_of_a_cut_budget_is_legal(
    name: str, wish: Budget, limits: tuple[int, int], tree: bool, sampler: Sampler
) -> None:
    """The loop's own check, within the limits that the budget was cut to."""
    nodes, depth = limits
    cut = wish.within(nodes, depth, tree=tree)
    draft = begun(name).propose(History(TEXT), cut, sampler)
    assert len(draft) <= nodes
    _check_draft(draft, replace(cut, nodes=min(cut.nodes, nodes), depth=min(cut.depth, depth)), VOCAB)
    if not tree:
        assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    if not len(draft):
        assert draft.reason
    else:
        assert draft.confidence is not None
        assert all(0.0 <= sure <= 1.0 for sure in draft.confidence)


@over_drafters
def test_the_budgets_of_these_tests_draft_something(name: str) -> None:
    for budget in (Budget.chain(4), Budget(8, 3, 2), Budget(4, 3, 2, shape=(-1, -1, 0, 1))):
        assert len(begun(name).propose(History(TEXT), budget, Sampler(SamplingParams()))) >= 2


# --- gates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model", "model without trees", "ngram"])
@settings(deadline=None)
@given(length=st.integers(1, 8), gate=gates, seed=st.integers(0, 20), temperature=st.sampled_from([0.0, 1.0]))
def test_a_gated_chain_is_no_longer_than_what_the_gate_keeps(
    name: str, length: int, gate: Gate | None, seed: int, temperature: float
) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature, seed=seed))
    whole = begun(name).propose(History(TEXT), Budget.chain(length), sampler)
    draft = begun(name).propose(History(TEXT), Budget(length, length, 1, gate=gate), sampler)
    most = max(len(whole), length if name == "ngram" else 0)  # a gate replaces the lookup's own caution
    assert len(draft) <= most
    assert draft.tokens[: len(whole)].tolist() == whole.tokens[: len(draft)].tolist()
    if isinstance(gate, Counting):
        assert len(draft) <= gate.keeps
        assert name == "ngram" or len(draft) == min(gate.keeps, gate.grows, len(whole))
    elif isinstance(gate, Believing):
        assert draft.confidence is not None or not len(draft)
        assert float(np.prod(draft.confidence or ())) > gate.keeps or not len(draft)


@dataclass(frozen=True)
class CountingEngine(ScriptedEngine):
    """Notes every pass of its sessions."""

    opened: list[NotingSession] = field(default_factory=list, compare=False)

    def open(self) -> ScriptedSession:
        self.opened.append(NotingSession(self))
        return self.opened[-1]


@dataclass
class NotingSession(ScriptedSession):
    """``fed``: tokens of each pass since the last ``clear``."""

    fed: list[list[int]] = field(default_factory=list)

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        self.fed.append(tokens.tolist())
        return super().extend(tokens, parents, rows)


def noting(tree: bool = True) -> tuple[ModelDrafter, NotingSession]:
    engine = CountingEngine(DRAFT, VOCAB, tree=tree)
    drafter = ModelDrafter(engine)
    drafter.begin(TEXT)
    session = engine.opened[0]
    session.fed.clear()
    return drafter, session


@settings(deadline=None)
@given(wish=budgets(inner=False), sampler=samplers, tree=st.booleans())
def test_one_pass_a_level_and_every_node_at_most_once(wish: Budget, sampler: Sampler, tree: bool) -> None:
    """Also for nodes that are dropped again."""
    drafter, session = noting(tree)
    draft = drafter.propose(History(TEXT), wish, sampler)
    assert draft.passes == len(session.fed)
    assert session.fed[0] == TEXT[-1:], "the prompt was read when the request began"
    pending = [tuple(session.pending[up] for up in path_to(session.parents, at)) for at in range(len(session.pending))]
    assert len(set(pending)) == len(pending), "no node is fed twice"
    assert draft.passes <= (wish.depth if wish.branches > 1 and tree else min(wish.nodes, wish.depth))


trees = st.builds(
    lambda nodes, depth, branches, gate: Budget(nodes, depth, branches, dynamic=True, gate=gate),
    st.integers(3, 12),
    st.integers(2, 5),
    st.integers(2, 3),
    gates,
)


@settings(deadline=None)
@given(
    wishes=st.lists(budgets(inner=False) | trees, min_size=2, max_size=4),
    sampler=samplers,
    right=st.lists(st.integers(0, 11), min_size=4, max_size=4),
)
def test_whatever_a_gate_dropped_the_cache_holds_the_text(
    wishes: list[Budget], sampler: Sampler, right: list[int]
) -> None:
    """Several rounds of different budgets; of each proposal the path to one node is accepted. The cache never holds
    anything but the text, and the next proposal is that of a fresh drafter."""
    drafter, session = noting()
    context = History(TEXT)
    for wish, node in zip(wishes, right, strict=False):
        draft = drafter.propose(context, wish, sampler)
        fresh = ModelDrafter(ENGINE)
        fresh.begin(list(context.tokens))
        again = fresh.propose(context, wish, sampler)
        assert (draft.tokens.tolist(), draft.parents.tolist()) == (again.tokens.tolist(), again.parents.tolist())
        assert draft.confidence == again.confidence
        path = path_to(draft.parents, min(node, len(draft) - 1))
        for token in draft.tokens[path].tolist():
            context.push(token)
        context.push(node)
        if len(draft):
            drafter.observe(path)
        assert session.pending == []
        assert session.kept == list(context.tokens)[: session.length]
        assert session.length >= len(context) - 2, "what was accepted is not read again"


BUDGETS = {
    "gated chain": Budget(8, 8, 1, gate=Believing(more_than=0.2, keeps=0.1)),
    "nothing is ever kept": Budget(4, 4, 1, gate=Counting(3, 0)),
    "dynamic": Budget(10, 5, 3, dynamic=True),
    "dynamic, gated": Budget(10, 5, 3, dynamic=True, gate=Believing(more_than=0.2, keeps=0.05)),
    "shape": Budget(6, 3, 3, shape=(-1, -1, -1, 0, 0, 3)),
}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("rule", ["coupled", "residual"])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0, seed=3)], ids=["greedy", "warm"])
def test_whole_requests(budget: str, rule: Rule, params: SamplingParams) -> None:
    """Exact where the rule makes the text a function of the noise, within every limit anyhow."""
    run = replace(Run(ScriptedEngine(TARGET, VOCAB), prompt=TEXT, limits=Limits(40)).sampled(params), rule=rule)
    answer = generate(run.drafting(ModelDrafter(ENGINE), BUDGETS[budget]))
    if rule == "coupled" or params.greedy:
        assert answer.ids == generate(run.plain).ids
    drafted = sum(step.drafted for step in answer.rounds)
    dropped = budget == "nothing is ever kept" and (rule == "coupled" or params.greedy)
    assert (drafted == 0) == dropped
    if dropped:
        assert {step.passes for step in answer.rounds[:-3]} == {3}
        assert set(answer.reasons) <= {"model: not sure enough", "budget 0"}
    else:
        assert sum(step.accepted for step in answer.rounds) > 0


# --- the draft's temperature ------------------------------------------------------------------------------------------


class TestDraftTemperature:
    SOFT = Sampler(SamplingParams(temperature=1.0, seed=1))

    def drafts(self, temperature: float | None, sampler: Sampler, count: int = 40) -> list[Draft]:
        drafter = ModelDrafter(ENGINE, temperature=temperature)
        found = []
        for token in range(count):
            text = [*TEXT, token % VOCAB]
            drafter.begin(text)
            found.append(drafter.propose(History(text), Budget.chain(3), sampler))
        return found

    def test_none_is_the_target_s(self) -> None:
        for one, other in zip(self.drafts(None, self.SOFT), self.drafts(1.0, self.SOFT), strict=True):
            assert one.tokens.tolist() == other.tokens.tolist() and one.confidence == other.confidence

    def test_cold_is_greedy(self) -> None:
        greedy = self.drafts(None, Sampler(SamplingParams()))
        cold = self.drafts(1e-6, self.SOFT)
        warm = self.drafts(None, self.SOFT)
        assert [one.tokens.tolist() for one in cold] == [one.tokens.tolist() for one in greedy]
        assert [one.tokens.tolist() for one in warm] != [one.tokens.tolist() for one in greedy]

    def test_a_greedy_target_is_drafted_for_greedily(self) -> None:
        greedy = Sampler(SamplingParams())
        for one, other in zip(self.drafts(3.0, greedy), self.drafts(None, greedy), strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()

    def test_the_proposal_s_law_is_that_of_its_temperature(self) -> None:
        """Accept-reject divides by it."""
        residual = Sampler(SamplingParams(temperature=1.0), rule="residual")
        for temperature in (None, 0.5, 2.0):
            drafter = ModelDrafter(ENGINE, temperature=temperature)
            drafter.begin(TEXT)
            draft = drafter.propose(History(TEXT), Budget.chain(1), residual)
            row = DRAFT(tuple(TEXT)).astype(np.float64) / (temperature or 1.0)
            assert draft.laws is not None
            assert draft.laws[0].probs() == pytest.approx(np.exp(row) / np.exp(row).sum(), abs=1e-12)

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    @pytest.mark.parametrize("budget", [Budget.chain(3), Budget(8, 3, 3, dynamic=True)])
    def test_the_text_is_the_target_s_at_any(self, temperature: float, budget: Budget) -> None:
        run = Run(ScriptedEngine(TARGET, VOCAB), prompt=TEXT).sampled(SamplingParams(temperature=1.0, seed=5))
        answer = generate(run.drafting(ModelDrafter(ENGINE, temperature=temperature), budget))
        assert answer.ids == generate(run).ids
        assert sum(step.accepted for step in answer.rounds) > 0

    @pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
    def test_refused(self, temperature: float) -> None:
        with pytest.raises(InvalidValue, match=r"draft temperature is .*; allowed: a positive number, or none"):
            ModelDrafter(ENGINE, temperature=temperature)

    def test_bars_and_temperature_together(self) -> None:
        drafter = ModelDrafter(ENGINE, temperature=2.0, barred=range(10))
        for seed in range(20):
            sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
            drafter.begin(TEXT)
            draft = drafter.propose(History(TEXT), Budget(6, 3, 2), sampler)
            assert min(draft.tokens.tolist()) >= 10
