"""Cases D: the sampling law of speculative text, and its seeds. The exact law is proved by enumeration in tests/law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from foredraft.decode import Limits
from foredraft.drafters.base import Drafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.scripted import ScriptedEngine, blended, markov_table
from foredraft.noise import GumbelNoise
from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft, Law, Rule, SamplingParams
from foredraft.verify import verify
from tests.support.scripted import VOCAB, Run, begin, constant, generate, repeats, toy_engine

FOUR = Budget.chain(4)
TREE = Budget(9, 4, 3)
TABLE = markov_table(VOCAB, seed=9)
RUN = Run(toy_engine(TABLE))
ENDLESS = Limits(max_tokens=1000)
LOGITS = (2.0, 1.5, 1.0, 0.5)
SOFTMAX = (0.4551, 0.2760, 0.1674, 0.1015)


# --- D1 ---------------------------------------------------------------------------------------------------------------


def chi_square(counts: Sequence[int], law: Sequence[float]) -> float:
    total = sum(counts)
    return sum((count - total * p) ** 2 / (total * p) for count, p in zip(counts, law, strict=True))


def counted(rule: Rule, drafter: Drafter, budget: Budget) -> list[int]:
    """How often each of four ids occurs in 20 texts of 1000 tokens."""
    counts: Counter[int] = Counter()
    for seed in range(20):
        params = SamplingParams(temperature=1.0, seed=seed)
        run = Run(ScriptedEngine(constant(*LOGITS), 4), (0,), drafter, budget, params, rule, ENDLESS)
        answer = generate(run)
        assert answer.summary.accepted > 0
        counts.update(answer.ids)
    return [counts[id] for id in range(4)]


OTHER = ModelDrafter(ScriptedEngine(constant(0.0, 1.0, 0.0, 2.0), 4))


@pytest.mark.parametrize(
    ("rule", "drafter", "budget"),
    [
        ("residual", repeats(0), Budget.chain(3)),
        ("residual", repeats(3), Budget.chain(3)),
        ("residual", OTHER, Budget.chain(3)),
        ("residual", OTHER, Budget(6, 3, 2)),
        ("coupled", repeats(3), Budget.chain(3)),
    ],
    ids=["always the likeliest", "always the least likely", "another law", "a tree of another law", "coupled"],
)
def test_d1_frequencies_are_the_target_s(rule: Rule, drafter: Drafter, budget: Budget) -> None:
    """Case D1: 20 000 tokens follow the target's softmax, whatever law the draft came from (3 degrees of freedom:
    16.3 is exceeded once in a thousand)."""
    weights = np.exp(np.array(LOGITS) - 2.0)
    law = weights / weights.sum()
    assert np.round(law, 4).tolist() == list(SOFTMAX)
    assert chi_square(counted(rule, drafter, budget), law.tolist()) < 16.3


def test_d1_a_greedy_draft_is_a_point_mass() -> None:
    """Case D1: a draft that chose its best token is judged as one-hot: accepted with probability p, not p / q."""

    class Asked(GumbelNoise):
        probability = -1.0

        def accept(self, probability: float, position: int, index: int) -> bool:
            self.probability = probability
            return False

    noise = Asked(0)
    sampler = Sampler(SamplingParams(temperature=1.0), rule="residual", noise=noise)
    row = np.array([LOGITS, LOGITS], np.float32)
    verdict = verify(Draft.chain([0], "greedy"), row, sampler, History([1]))
    assert noise.probability == pytest.approx(SOFTMAX[0], abs=5e-5)
    assert verdict.token in (1, 2, 3), "the residual excludes a rejected point mass"
    ids, law, _ = Sampler(SamplingParams(), rule="residual").children(row[0], History([1]), 2)
    assert ids.tolist() == [0, 1] and law is None, "greedy proposals carry no law"


# --- D4, D7 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["coupled", "residual"])
@pytest.mark.parametrize("budget", [FOUR, TREE], ids=["chain", "tree"])
def test_d4_temperature_has_an_effect(rule: Rule, budget: Budget) -> None:
    """Case D4: three likely tokens, 300 seeds: each of them is emitted first for some seed, none of the others."""
    engine = ScriptedEngine(constant(1.0, 1.2, -40.0, 0.8, -40.0), 5)
    firsts: Counter[int] = Counter()
    for seed in range(300):
        params = SamplingParams(temperature=0.7, seed=seed)
        run = Run(engine, (2,), ModelDrafter(engine), budget, params, rule, Limits(3))
        firsts[generate(run).ids[0]] += 1
    assert set(firsts) == {0, 1, 3}
    assert min(firsts.values()) > 50


@pytest.mark.parametrize("rule", ["coupled", "residual"])
@pytest.mark.parametrize(
    "drafter", [ModelDrafter(toy_engine(markov_table(VOCAB, seed=4))), NgramDrafter(), repeats(60)]
)
def test_d7_top_k_1_is_greedy_at_any_temperature(rule: Rule, drafter: Drafter) -> None:
    """Case D7: filters apply to the target's law, not only to the draft's."""
    greedy = generate(RUN).ids
    params = SamplingParams(temperature=0.8, top_k=1, seed=3)
    assert generate(replace(RUN.sampled(params), rule=rule).drafting(drafter, FOUR)).ids == greedy


@pytest.mark.parametrize("rule", ["coupled", "residual"])
@pytest.mark.parametrize("budget", [FOUR, TREE], ids=["chain", "tree"])
def test_d7_nothing_outside_the_nucleus_is_emitted(rule: Rule, budget: Budget) -> None:
    """Case D7: top_p = 0.1; the draft is of another law, so that filters on its side would not do."""
    draft = ModelDrafter(toy_engine(blended(TABLE, markov_table(VOCAB, seed=4), 0.5)))
    seen: set[int] = set()
    for seed in range(10):
        params = SamplingParams(temperature=0.8, top_p=0.1, seed=seed)
        answer = generate(replace(RUN.sampled(params), rule=rule).drafting(draft, budget))
        text = list(RUN.prompt)
        for id in answer.ids:
            assert id in nucleus(text, 0.1, 0.8)
            text.append(id)
        seen.update(answer.ids)
    assert len(seen) > 10, "the nucleus holds more than the best token"


def nucleus(text: list[int], top_p: float, temperature: float) -> set[int]:
    """The smallest set of likeliest tokens with mass >= top_p, the slow way."""
    row = TABLE(tuple(text)).astype(np.float64) / temperature
    probs = np.exp(row - row.max())
    probs /= probs.sum()
    members: set[int] = set()
    for id in np.argsort(-probs, kind="stable").tolist():
        members.add(id)
        if probs[list(members)].sum() >= top_p:
            break
    return members


# --- D8 ---------------------------------------------------------------------------------------------------------------


class Counting(GumbelNoise):
    """Remembers the probabilities it was asked to accept with."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.asked: list[float] = []

    def accept(self, probability: float, position: int, index: int) -> bool:
        self.asked.append(probability)
        return super().accept(probability, position, index)


def test_d8_tiny_probabilities_do_not_underflow() -> None:
    """Case D8: q = 1e-9 and p = 1e-12, both far below half precision: accepted once in a thousand, not always."""
    noise = Counting(1)
    sampler = Sampler(SamplingParams(temperature=1.0), rule="residual", noise=noise)
    row = np.log(np.array([[1e-12, 1.0 - 1e-12]] * 2)).astype(np.float32)
    law = Law(np.array([0, 1], np.int32), np.log(np.array([1e-9, 1.0 - 1e-9])))
    history, accepted = History([1]), 0
    for _ in range(20_000):
        accepted += len(verify(Draft.chain([0], "q", (law,)), row, sampler, history).path)
        history.push(1)
    assert noise.asked == pytest.approx([1e-3] * 20_000, rel=1e-5)
    assert 5 <= accepted <= 50


def test_d8_a_drawn_token_never_has_probability_0() -> None:
    """Case D8: q = 0 cannot occur for the token a draft drew, also under a law over 400 orders of magnitude."""
    row = np.linspace(0, -900, 50).astype(np.float32)
    for k in (1, 4):
        for seed in range(500):
            sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), rule="residual")
            ids, law, _ = sampler.children(row, History([1]), k)
            assert law is not None and law.prob(int(ids[0])) > 0.0


def test_d8_siblings_beyond_the_last_possible_token_are_rejected_exactly() -> None:
    """Case D8: drawing without replacement may leave probability 0 for the last sibling; then p decides alone."""
    noise = Counting(1)
    sampler = Sampler(SamplingParams(temperature=1.0), rule="residual", noise=noise)
    law = Law(np.array([0, 1], np.int32), np.array([0.0, -2000.0]))
    draft = Draft(np.array([0, 1], np.int32), np.array([-1, -1], np.int32), (law, law), "q")
    row = np.log(np.array([[1e-30, 0.5, 0.5]] * 3)).astype(np.float32)
    counts = Counter(verify(draft, row, sampler, History([1] * n)).token for n in range(1, 2001))
    assert set(counts) == {1, 2}
    assert abs(counts[1] - 1000) < 4 * 22.4, "four standard deviations"


# --- D9 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["coupled", "residual"])
@pytest.mark.parametrize("budget", [FOUR, TREE], ids=["chain", "tree"])
def test_d9_a_seed_gives_its_text_twice_and_another_seed_another(rule: Rule, budget: Budget) -> None:
    """Case D9: the random numbers belong to the request."""
    draft = ModelDrafter(toy_engine(blended(TABLE, markov_table(VOCAB, seed=4), 0.2)))
    runs = [
        replace(RUN, rule=rule).sampled(SamplingParams(temperature=0.8, seed=seed)) for seed in (1, 1, 2, 2**64 - 1)
    ]
    texts = [generate(run.drafting(draft, budget)).ids for run in runs]
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts}) == 3


def test_d9_other_requests_in_flight_change_nothing() -> None:
    """Case D9: four requests in turns, two with one seed, each with its own sampler: texts as if alone."""
    seeds = (1, 2, 1, 3)
    runs = [
        RUN.sampled(SamplingParams(temperature=0.8, seed=seed)).drafting(ModelDrafter(RUN.engine), budget)
        for seed, budget in zip(seeds, (FOUR, TREE, Budget.chain(1), Budget(0, 0, 0)), strict=True)
    ]
    sessions = [run.engine.open() for run in runs]
    iterators = [begin(run, session) for run, session in zip(runs, sessions, strict=True)]
    texts: list[list[int]] = [[] for _ in runs]
    left = list(range(len(runs)))
    while left:
        for index in list(left):
            step = next(iterators[index], None)
            if step is None:
                left.remove(index)
            else:
                texts[index] += step.ids
    assert texts == [generate(run.plain).ids for run in runs]
    assert texts[0] == texts[2] != texts[1]
