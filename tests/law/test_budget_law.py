"""Whatever a controller asks for (gated chains; shaped, dynamic and merged trees; another draft temperature), the law
of the whole loop's text, by enumeration, is the target's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foredraft.noise import Noise
from foredraft.types import Budget, Rule, SamplingParams, Step
from tests.law.enumerate import law_of
from tests.law.scenes import PARAMS, LoopScene, Scene, world
from tests.law.test_loop_law import EXACT, SOFT, TOLERANCE, assert_exact
from tests.support.gates import Believing

STRICT = Believing(more_than=0.3, keeps=0.2)
"""Stops and keeps in the middle of what these drafts are sure of: on some branches nothing, on others everything."""

BUDGETS = {
    "gated chain": Budget(2, 2, 1, gate=STRICT),
    "shape": Budget(3, 2, 2, shape=(-1, -1, 1)),
    "dynamic": Budget(3, 2, 2, dynamic=True),
    "dynamic, gated": Budget(4, 2, 2, dynamic=True, gate=Believing(more_than=0.3, keeps=0.25)),
    "dynamic, three children": Budget(2, 2, 3, dynamic=True),
    "a gate for every source": Budget(2, 2, 1, sources={"model": Budget(2, 2, 1, gate=STRICT)}),
}
MERGED = {
    "chains": Budget(3, 2, 2, merge=True, sources={"ngram": Budget.chain(1), "model": Budget.chain(2)}),
    "one budget for all": Budget(4, 2, 2, merge=True),
    "dynamic": Budget(4, 2, 2, dynamic=True, merge=True),
    "gated": Budget(3, 2, 2, dynamic=True, merge=True, gate=Believing(more_than=0.2, keeps=0.2)),
    "model first": Budget(4, 2, 2, merge=True, sources={"model": Budget(2, 2, 2), "ngram": Budget(2, 2, 2)}),
}
PROMPT = (0, 1, 0)
"""The lookup has something to copy from the start."""


def loop(seed: int, params: SamplingParams, rule: Rule, budget: Budget) -> LoopScene:
    target, draft = world(seed)
    return LoopScene(Scene(target, draft, params, rule, prompt=PROMPT), 3, budget)


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("budget", BUDGETS)
def test_model_drafter(budget: str, rule: Rule) -> None:
    assert_exact(loop(6, SOFT, rule, BUDGETS[budget]))


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("budget", MERGED)
def test_lookup_and_model(budget: str, rule: Rule) -> None:
    """Under accept-reject the proposals are not merged, and the text is exact all the same."""
    assert_exact(replace(loop(3, SOFT, rule, MERGED[budget]), copies=True))


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("name", ["greedy", "top-p", "window", "everything"])
@pytest.mark.parametrize("budget", [BUDGETS["dynamic, gated"], MERGED["dynamic"]], ids=["gated", "merged"])
def test_with_parameters(budget: Budget, name: str, rule: Rule) -> None:
    assert_exact(replace(loop(4, PARAMS[name], rule, budget), copies=budget.merge))


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("temperature", [0.3, 3.0])
@pytest.mark.parametrize("budget", [BUDGETS["gated chain"], BUDGETS["dynamic"]], ids=["chain", "tree"])
def test_draft_at_another_temperature(budget: Budget, temperature: float, rule: Rule) -> None:
    assert_exact(replace(loop(5, SOFT, rule, budget), temperature=temperature))


@pytest.mark.parametrize("rule", EXACT)
def test_text_that_may_end(rule: Rule) -> None:
    target, draft = world(14)
    scene = Scene(target, draft, SOFT, rule, prompt=(0, 2, 0))
    assert_exact(LoopScene(scene, 3, MERGED["dynamic"], eog=(1,), copies=True))


def rounds(scene: LoopScene) -> list[Step]:
    """One round of every branch: the first that could draft."""
    found: list[Step] = []

    def first(noise: Noise) -> int:
        found.append(next(step for step in scene.steps(noise) if step.drafter != "prefill"))
        return 0

    assert law_of(first) == {0: pytest.approx(1.0, abs=TOLERANCE)}
    return found


class TestTheScenesAreAboutSomething:
    def test_gates_cut_and_keep(self) -> None:
        steps = rounds(loop(6, SOFT, "coupled", BUDGETS["gated chain"]))
        assert {step.drafted for step in steps} == {0, 1, 2}
        assert {step.passes for step in steps} == {1, 2}
        drawn = rounds(loop(6, SOFT, "residual", BUDGETS["gated chain"]))
        assert {step.drafted for step in drawn} == {1, 2}, "what was drawn is proposed"

    def test_dynamic_trees_differ(self) -> None:
        steps = rounds(loop(6, SOFT, "coupled", BUDGETS["dynamic, gated"]))
        assert len({step.drafted for step in steps}) > 1
        assert {"chain", "tree"} <= {step.rung for step in steps}

    def test_both_drafters_are_in_the_tree(self) -> None:
        steps = rounds(replace(loop(3, SOFT, "coupled", MERGED["one budget for all"]), copies=True))
        assert {step.drafter for step in steps} == {"ngram+model"}
        assert any(trial.rank > 0 for step in steps for trial in step.trials)
        alone = rounds(replace(loop(3, SOFT, "residual", MERGED["one budget for all"]), copies=True))
        assert {step.drafter for step in alone} == {"ngram"}
