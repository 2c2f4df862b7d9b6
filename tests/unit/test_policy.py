"""From options to a controller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foredraft.control import CostAware, Fixed, Priors, SourcePriors, Threshold, fixed
from foredraft.control.base import Controller
from foredraft.engines.base import EngineInfo
from foredraft.policy import COST_DRAFT, FIXED_DRAFT, Policy
from foredraft.speed import FLAT
from foredraft.types import Budget

INFO = EngineInfo("scripted", "model", 100, 1000, tree=True, rollback="trim")
PRIORS = Priors(FLAT, True, 0.1, {"ngram": SourcePriors(), "model": SourcePriors(0.01, alpha=0.4, weight=1e6)})


def budget_of(controller: Controller) -> Budget:
    controller.begin()
    return controller.budget(10)


@pytest.mark.parametrize(
    ("policy", "budget"),
    [
        (Policy("fixed"), Budget.chain(FIXED_DRAFT)),
        (Policy("fixed", 7), Budget.chain(7)),
        (Policy("fixed", 0), Budget(0, 0, 0)),
        (Policy("fixed", 3, 8), Budget(8, 3, 4, merge=True)),
        (Policy("fixed", 3, 0), Budget.chain(3)),
    ],
)
def test_fixed_takes_options_literally(policy: Policy, budget: Budget) -> None:
    controller = policy.make(INFO, PRIORS)
    assert isinstance(controller, Fixed)
    assert budget_of(controller) == budget


def test_a_fixed_tree_of_two_drafters_holds_both() -> None:
    budget = budget_of(Policy("fixed", 6, 8).make(INFO, PRIORS))
    assert budget.merge
    assert list(budget.sources) == ["ngram", "model"]
    assert (budget.of("ngram").nodes, budget.of("ngram").branches) == (4, 1)
    assert (budget.of("model").nodes, budget.of("model").branches) == (8, 4)
    assert not budget_of(Policy("fixed", 6, 8).make(INFO, Priors(sources={"model": SourcePriors(0.3)}))).merge


def test_threshold() -> None:
    assert isinstance(Policy("threshold").make(INFO, PRIORS), Threshold)


def test_cost_drafts_trees_only_where_the_engine_takes_them() -> None:
    for info, branches in ((INFO, 4), (replace(INFO, tree=False), 1)):
        controller = Policy("cost").make(info, PRIORS)
        assert isinstance(controller, CostAware)
        assert budget_of(controller).of("model").branches == branches
    assert budget_of(Policy("cost", tree=0).make(INFO, PRIORS)).of("model").branches == 1


def test_cost_stays_within_its_bounds() -> None:
    budget = budget_of(Policy("cost", max_draft=3, tree=0).make(INFO, PRIORS))
    assert budget.depth == budget.nodes == 3
    assert budget_of(Policy("cost", tree=0).make(INFO, PRIORS)).nodes == COST_DRAFT
    assert budget_of(Policy("cost", tree=6).make(INFO, PRIORS)).of("model").nodes <= 6


def test_cost_asks_only_for_offered_widths() -> None:
    info = replace(INFO, widths=(1, 4))
    for tree in (None, 0):
        budget = budget_of(Policy("cost", tree=tree).make(info, PRIORS))
        inner = budget.of("model")
        assert inner.gate is not None or inner.nodes == 3


def test_without_a_draft_the_drafter_gives_the_reason() -> None:
    assert Policy("cost").make(INFO, Priors(sources={})) == fixed(FIXED_DRAFT)
