"""Group G of the field cases: speed and metrics."""

from __future__ import annotations

import pytest

from foredraft.control import CostAware, CostConfig, Fixed, Priors, SourcePriors
from foredraft.decode import Limits
from foredraft.drafters.ngram import NgramDrafter
from foredraft.speed import Costs, Curve, best_chain, break_even_alpha, chain_speedup
from foredraft.types import Budget, Step
from tests.support.scenarios import CLIFF, FLAT, STEEP, TILED, Alpha, Scenario, always
from tests.support.scripted import END, Run, always_right, generate, toy_engine, writes
from tests.support.simulator import World, play, priors


class Watched:
    """A controller that remembers its budgets and the rounds they led to."""

    def __init__(self, inner: CostAware) -> None:
        self.inner = inner
        self.budgets: list[Budget] = []
        self.steps: list[Step] = []

    def begin(self) -> None:
        self.inner.begin()

    def budget(self, length: int) -> Budget:
        self.budgets.append(self.inner.budget(length))
        return self.budgets[-1]

    def observe(self, step: Step) -> None:
        self.steps.append(step)
        self.inner.observe(step)


def watched(world: World, config: CostConfig | None = None) -> tuple[Watched, float]:
    controller = Watched(CostAware(priors(world), config))
    return controller, play(world, controller)


def model(curve: Curve, cost: float, alpha: Alpha) -> World:
    return Scenario("", curve, cost, alpha, length=400).world(5)


def test_g1_low_acceptance_with_room_for_64_tokens_switches_off() -> None:
    """α = .07 and up to 64 drafted tokens: 1378 drafted, 96 accepted, slower than plain (llama.cpp#25908)."""
    world = model(TILED, 0.2, always(0.07))
    controller, seconds = watched(world, CostConfig(max_draft=64))
    late = controller.steps[40:]
    assert sum(step.drafted for step in late) < 0.2 * len(late), "mostly plain decoding, short probes"
    assert max((step.drafted for step in late), default=0) <= 4
    assert seconds <= 1.03 * play(world, Fixed())


@pytest.mark.parametrize(
    ("curve", "cost", "alpha"),
    [(STEEP, 0.55, 0.6), (STEEP, 0.45, 0.55), (TILED, 0.75, 0.7)],
    ids=["laptop", "another laptop", "heavy draft"],
)
def test_g2_a_draft_too_heavy_for_its_target_is_off(curve: Curve, cost: float, alpha: float) -> None:
    """f16 drafts for a fast target: 7 to 23 % slower (llama.cpp#10664)."""
    relative = Curve(curve.widths, tuple(value / curve(1) for value in curve.values))
    assert best_chain([alpha] * 8, Costs(relative, Curve((1,), (cost,)))) == (0, 1.0)
    world = model(curve, cost, always(alpha))
    controller, seconds = watched(world)
    assert sum(step.drafted == 0 for step in controller.steps) > 0.8 * len(controller.steps)
    assert seconds <= 1.03 * play(world, Fixed())


def test_g4_two_positions_that_cost_five_mean_no_draft() -> None:
    """llama.cpp#4624: decoding two tokens took five times as long as one."""
    world = model(CLIFF, 0.1, always(0.95))
    controller, _ = watched(world)
    assert all(step.drafted == 0 for step in controller.steps)
    relative = Curve((1, 2, 32), (1.0, 5.0, 22.0))
    assert break_even_alpha(Costs(relative, Curve((1,), (0.1,)))) is None


def test_g5_healthy_acceptance_is_no_verdict() -> None:
    """Acceptance .66, yet .94 times the speed (Rapid-MLX#1013): only measured times decide."""
    alpha, costs = 0.66, Costs(Curve((1, 2, 3, 4), (1.0, 1.25, 1.5, 1.75)), Curve((1,), (0.5,)))
    assert max(chain_speedup([alpha] * length, costs) for length in range(1, 4)) < 1.0
    world = model(Curve((1, 2, 3, 4), (0.02, 0.025, 0.03, 0.035)), 0.5, always(alpha))
    controller, seconds = watched(world)
    assert seconds <= 1.03 * play(world, Fixed())
    assert all((step.why or "").startswith("cost:") for step in controller.steps[:-1])


def test_g8_nothing_of_one_request_is_left_for_the_next() -> None:
    """Request A long, B short and unrelated, C = A: B's acceptance equals B alone (llama.cpp#27852, #19231)."""
    long, short = [5, 6, 7, 8, 9, 10] * 8, [11, 12, 13, 11, 12, 14, 11, 12]
    engine = toy_engine(writes([13, 11, 12, 14, 11, 12, 13, 15, 11], len(short)))
    drafter = NgramDrafter()

    def counts(prompt: list[int], own: NgramDrafter) -> tuple[int, int, int]:
        run = Run(engine, prompt, own, Budget.chain(4), limits=Limits(max_tokens=9))
        summary = generate(run).summary
        return summary.drafted, summary.evaluated, summary.accepted

    alone = counts(short, NgramDrafter())
    assert alone[2] > 0
    first = counts(long, drafter)
    assert counts(short, drafter) == alone
    assert counts(long, drafter) == first


def test_g8_the_controller_forgets_acceptance_but_not_the_machine() -> None:
    controller = CostAware(Priors(TILED, True, 1.0, {"model": SourcePriors(0.25)}))
    bad = Scenario("", TILED, 0.25, always(0.02), length=200).world(1)
    good = Scenario("", TILED, 0.25, always(0.95), length=400).world(2)
    play(bad, controller)
    after = play(good, controller)
    alone = play(good, CostAware(priors(good)))
    assert after <= 1.05 * alone


def test_g11_both_definitions_of_mean_length() -> None:
    """Accepted per round, and emitted per round, which counts the bonus token too (vllm#17908)."""
    table = writes(list(range(5, 17)), 3)
    run = Run(toy_engine(table), drafter=always_right(table), budget=Budget.chain(3), limits=Limits(max_tokens=8))
    numbers = generate(run).summary.as_json()
    assert (numbers["generated"], numbers["rounds"], numbers["accepted"]) == (8, 2, 6)
    assert numbers["mean_accepted_length"] == 4.0
    assert numbers["accepted_per_round"] == 3.0


def test_g12_what_lies_behind_the_end_is_not_counted() -> None:
    """[d1, d2, EOS, d4, d5, bonus] was counted as 6 (vllm#56101); three tokens were emitted."""
    table = writes([7, 8, END, 9, 10, 11], 3)
    summary = generate(Run(toy_engine(table), drafter=always_right(table), budget=Budget.chain(5))).summary
    assert summary.generated == summary.accepted == summary.evaluated == 3
    assert summary.mean_accepted_length == 3.0
    assert summary.finish_reason == "stop"


@pytest.mark.parametrize(
    ("curve", "cost", "tree"), [(FLAT, 0.12, True), (STEEP, 0.12, False)], ids=["flat: a tree", "steep: a line"]
)
def test_g15_a_tree_only_where_it_beats_the_line(curve: Curve, cost: float, tree: bool) -> None:
    """Tree drafts lost to a tuned line in every sweep of unslothai/llama.cpp#224."""
    world = model(curve, cost, always(0.55))
    controller, seconds = watched(world, CostConfig(tree=31))
    share = sum(step.rung == "tree" for step in controller.steps) / len(controller.steps)
    assert share > 0.5 if tree else share < 0.1
    assert seconds <= 1.03 * play(world, CostAware(priors(world), CostConfig(tree=0)))
