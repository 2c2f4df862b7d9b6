"""On the scripted engine speculation never changes a text: seeds × temperatures × drafters × sampling settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest

from foredraft.decode import Limits
from foredraft.drafters.base import Drafter
from foredraft.drafters.chain import ChainDrafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.null import NullDrafter
from foredraft.engines.scripted import Table, blended, markov_table
from foredraft.types import Budget, SamplingParams
from tests.support.scripted import VOCAB, Answer, Forced, Run, always_wrong, generate, oracle, toy_engine

SEEDS = range(50)
OPTIONS = {
    "bare": SamplingParams(),
    "penalties, top-p": SamplingParams(
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.3,
        presence_penalty=0.2,
        frequency_penalty=0.4,
        penalty_window=12,
    ),
    "top-k, bias": SamplingParams(
        top_k=30, top_p=0.9, frequency_penalty=0.4, logit_bias={60: 3.0, 61: float("-inf")}, min_tokens=5
    ),
}


@dataclass(frozen=True)
class World:
    """A target, a draft that agrees with it about half the time, and a prompt; another one for every seed."""

    table: Table
    run: Run
    draft: ModelDrafter


@cache
def world(seed: int) -> World:
    """Every third target sees one token and is rather sure: its text runs in circles, and n-grams are found."""
    target, other = markov_table(VOCAB, seed=seed), markov_table(VOCAB, seed=1000 + seed)
    if seed % 3 == 0:
        target = markov_table(VOCAB, order=1, seed=seed, sharpness=800.0)
    run = Run(toy_engine(target), prompt=(1, 60, 70 + seed, 60, 70 + seed)).upto(24)
    return World(target, run, ModelDrafter(toy_engine(blended(target, other, 0.15))))


def settings(options: str, temperature: float, seed: int) -> SamplingParams:
    return replace(OPTIONS[options], temperature=temperature, seed=seed)


@cache
def plain(options: str, temperature: float, seed: int) -> Answer:
    return generate(world(seed).run.sampled(settings(options, temperature, seed)))


TABLE = markov_table(VOCAB, seed=9)
ENDLESS = Run(toy_engine(TABLE), limits=Limits(max_tokens=60))
"""A request that ends at its cap only."""


DRAFTERS: dict[str, tuple[Callable[[World], Drafter], Budget]] = {
    "none": (lambda world: NullDrafter(), Budget.chain(4)),
    "ngram": (lambda world: NgramDrafter(), Budget.chain(6)),
    "model": (lambda world: world.draft, Budget.chain(4)),
    "wrong-always": (lambda world: always_wrong(world.table), Budget.chain(4)),
    "tree": (lambda world: world.draft, Budget(9, 4, 3)),
    "ngram tree": (lambda world: NgramDrafter(), Budget(9, 4, 3)),
    "ngram, then model": (lambda world: ChainDrafter([NgramDrafter(), world.draft]), Budget.chain(4)),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("options", OPTIONS)
def test_all_texts_are_identical_to_plain(options: str, temperature: float, drafter: str) -> None:
    make, budget = DRAFTERS[drafter]
    drafted = accepted = 0
    for seed in SEEDS:
        params = settings(options, temperature, seed)
        answer = generate(world(seed).run.sampled(params).drafting(make(world(seed)), budget))
        reference = plain(options, temperature, seed)
        assert (answer.ids, answer.text, answer.finish) == (reference.ids, reference.text, reference.finish), seed
        drafted += answer.summary.drafted
        accepted += answer.summary.accepted
    assert (drafted > 0) == (drafter != "none")
    assert (accepted > 0) == (drafter not in ("none", "wrong-always")), "the comparison means something"


def test_the_plain_texts_differ_from_seed_to_seed() -> None:
    """Else the matrix would compare one text with itself."""
    for temperature in (0.0, 0.8):
        assert len({tuple(plain("bare", temperature, seed).ids) for seed in SEEDS}) == len(SEEDS)
    warm = [SamplingParams(temperature=0.8, seed=seed) for seed in SEEDS]
    assert len({tuple(generate(ENDLESS.sampled(params)).ids) for params in warm}) == len(SEEDS)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("k", range(1, 9))
def test_a7_self_draft_is_always_accepted(k: int, temperature: float, options: str) -> None:
    """Case A7: draft = target gives α = 1 at every depth, K = 1..8, and the plain text."""
    for seed in range(3):
        run = ENDLESS.sampled(settings(options, temperature, seed))
        answer = generate(run.drafting(ModelDrafter(run.engine), Budget.chain(k)))
        assert answer.ids == generate(run).ids
        assert answer.summary.alpha == 1.0
        assert answer.summary.alpha_by_depth == [1.0] * k


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("budget", [Budget(6, 3, 3), Budget(12, 5, 3), Budget(20, 8, 4)])
def test_a7_self_draft_tree_is_accepted_at_every_depth(budget: Budget, temperature: float) -> None:
    """The first child is the draft's own choice, so a tree accepts as deep as it goes."""
    run = ENDLESS.sampled(settings("bare", temperature, 3))
    answer = generate(run.drafting(ModelDrafter(run.engine), budget))
    assert answer.ids == generate(run.plain).ids
    assert answer.summary.alpha == 1.0


@pytest.mark.parametrize("accepts", [(0,), (1,), (4,), (0, 2, 4), (3, 0, 0, 1)])
def test_counts_of_forced_patterns(accepts: tuple[int, ...]) -> None:
    """``accepted`` is what was forced; ``evaluated`` ends at the first rejection; the bonus token is generated too."""
    answer = generate(ENDLESS.drafting(Forced(oracle(TABLE), accepts), Budget.chain(4)))
    full = [step for step in answer.rounds if step.drafted == 4]
    for index, step in enumerate(full):
        right = accepts[index % len(accepts)]
        assert (step.accepted, step.evaluated, step.generated) == (right, min(right + 1, 4), right + 1)
        assert step.width == 5
    summary = answer.summary
    assert summary.generated == len(answer.ids) == 60
    assert summary.accepted <= summary.evaluated <= summary.drafted
    assert summary.mean_accepted_length == pytest.approx(60 / len(answer.rounds))
    assert summary.mean_accepted_length == pytest.approx(summary.accepted / summary.rounds + 1), "bonus included"


@pytest.mark.parametrize("max_tokens", range(1, 20))
def test_budgets_add_up_at_every_cap(max_tokens: int) -> None:
    draft = ModelDrafter(toy_engine(blended(TABLE, markov_table(VOCAB, seed=10), 0.15)))
    answer = generate(ENDLESS.upto(max_tokens).drafting(draft, Budget.chain(5)))
    assert sum(step.generated for step in answer.rounds) == len(answer.ids) == max_tokens
    left = max_tokens
    for step in answer.rounds:
        assert step.drafted <= min(5, left - 1), "drafting past the cap is wasted"
        left -= step.generated
