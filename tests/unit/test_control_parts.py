"""The parts of the cost-aware controller: times, acceptance, gates; and the rolling rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.control import CostConfig, Priors, SourcePriors, Threshold, ThresholdConfig
from foredraft.control.clock import Clock
from foredraft.control.estimates import Acceptance
from foredraft.control.gates import ChainGate, Stops
from foredraft.errors import InvalidValue
from foredraft.policy import Policy
from foredraft.speed import Curve
from foredraft.types import Seconds, Step, Trial

CURVE = Curve((1, 2, 4, 8, 16), (1.0, 1.2, 1.4, 1.8, 3.0))
PRIORS = Priors(CURVE, True, 0.1, {"ngram": SourcePriors(), "model": SourcePriors(0.25)})


def step(width: int, verify: float, *, passes: int = 0, draft: float = 0.0, rest: float = 0.001) -> Step:
    drafted = width - 1
    return Step(
        (), drafted, drafted, drafted, width, width, Seconds(draft, verify, rest, 0.0), "model" if passes else "none",
        passes=passes,
    )  # fmt: skip


def chain(*confidences: float, rejected: bool = False) -> tuple[Trial, ...]:
    """All accepted, or all but the last."""
    last = len(confidences) - 1
    return tuple(Trial(1, -1 if rejected and at == last else 0, one) for at, one in enumerate(confidences))


class TestClock:
    def test_knows_what_was_measured(self) -> None:
        clock = Clock(PRIORS)
        assert clock.known
        assert clock.target(4) == pytest.approx(0.14)
        assert clock.target(6) == pytest.approx(0.16)
        assert clock.draft("model") == pytest.approx(0.025)
        assert clock.draft("ngram") == 0.0

    def test_learns_a_curve_it_was_not_told(self) -> None:
        clock = Clock(Priors(sources={"model": SourcePriors(0.3)}))
        assert not clock.known
        truth = {1: 0.05, 2: 0.10, 4: 0.20, 8: 0.40}
        for _ in range(40):
            for width, seconds in truth.items():
                clock.observe(step(width, seconds))
        for width, seconds in truth.items():
            assert clock.target(width) == pytest.approx(seconds, rel=0.04)
        assert 0.10 < clock.target(3) < 0.20

    @pytest.mark.parametrize("factor", [0.5, 1.3, 2.0])
    def test_a_drift_of_everything_rescales_the_curve_at_once(self, factor: float) -> None:
        clock = Clock(PRIORS)
        for _ in range(20):
            clock.observe(step(5, 0.15))
        for _ in range(12):
            clock.observe(step(5, 0.15 * factor))
        for width in (1, 5, 8, 16):
            assert clock.target(width) == pytest.approx(0.1 * factor * CURVE(width), rel=0.06)

    def test_one_hiccup_moves_little(self) -> None:
        clock = Clock(PRIORS)
        for _ in range(20):
            clock.observe(step(1, 0.1))
        clock.observe(step(1, 10.0))
        assert clock.target(1) == pytest.approx(0.1, rel=0.2)

    def test_the_draft_is_timed_by_the_pass(self) -> None:
        clock = Clock(PRIORS)
        for passes in (3, 5, 1, 4) * 10:
            clock.observe(step(passes + 1, 0.15, passes=passes, draft=0.04 * passes))
        assert clock.draft("model") == pytest.approx(0.04, rel=0.01)

    def test_rests_of_plain_and_drafted_rounds_are_told_apart(self) -> None:
        clock = Clock(PRIORS)
        for _ in range(30):
            clock.observe(step(1, 0.1, rest=0.001))
            clock.observe(step(5, 0.15, passes=4, draft=0.1, rest=0.009))
        assert clock.rest(drafted=False) == pytest.approx(0.001, rel=0.01)
        assert clock.rest(drafted=True) == pytest.approx(0.009, rel=0.01)


class TestAcceptance:
    def test_counts_only_evaluated_levels(self) -> None:
        seen = Acceptance(memory=1e9)
        for _ in range(100):
            seen.observe(chain(0.9, 0.9, rejected=True))
        first, second, third = seen.by_depth(3)
        assert first > 0.95
        assert second < 0.1
        assert third < 0.2, "unseen: like the one above it"

    def test_a_fully_accepted_short_draft_says_at_least(self) -> None:
        seen = Acceptance(memory=1e9)
        for _ in range(100):
            seen.observe(chain(0.9, 0.9))
        assert seen.by_depth(5)[4] > 0.95

    def test_forgets(self) -> None:
        seen = Acceptance(memory=30)
        for _ in range(200):
            seen.observe(chain(0.9))
        for _ in range(100):
            seen.observe(chain(0.9, rejected=True))
        assert seen.by_depth(1)[0] < 0.1

    def test_recovers_a_known_law(self) -> None:
        random = np.random.default_rng(0)
        truth = (0.9, 0.7, 0.5)
        seen = Acceptance(memory=1e9)
        for _ in range(4000):
            trials: list[Trial] = []
            for alpha in truth:
                trials.append(Trial(1, 0 if random.random() < alpha else -1))
                if trials[-1].rank < 0:
                    break
            seen.observe(tuple(trials))
        assert seen.by_depth(3) == pytest.approx(truth, abs=0.03)

    def test_siblings(self) -> None:
        random = np.random.default_rng(1)
        seen = Acceptance(memory=1e9)
        for rank in random.choice([0, 1, 2, -1], 6000, p=[0.5, 0.2, 0.1, 0.2]):
            seen.observe((Trial(3, int(rank)),))
        assert seen.by_rank(0.5, 3) == pytest.approx([0.5, 0.2, 0.1], abs=0.02)

    def test_confidence_is_calibrated(self) -> None:
        random = np.random.default_rng(2)
        seen = Acceptance(memory=1e9)
        for _ in range(4000):
            sure = bool(random.random() < 0.5)
            hit = random.random() < (0.95 if sure else 0.2)
            seen.observe((Trial(1, 0 if hit else -1, 0.75 if sure else 0.25),))
        assert seen.of(0.25) < 0.3
        assert seen.of(0.75) > 0.9

    @given(st.lists(st.tuples(st.integers(-1, 3), st.one_of(st.none(), st.floats(0, 1))), max_size=30))
    def test_stays_a_probability(self, rounds: list[tuple[int, float | None]]) -> None:
        seen = Acceptance()
        for rank, confidence in rounds:
            seen.observe((Trial(4, rank, confidence),))
        for value in (*seen.by_depth(4), *seen.by_rank(seen.by_depth(1)[0], 4), seen.of(0.0), seen.of(1.0)):
            assert 0.0 < value < 1.0
        assert sum(seen.by_rank(0.6, 6)) <= 1.0


class TestGate:
    def gate(self, rate: float, floor: float = 0.0, longest: int = 8, hoped: float | None = 0.8) -> ChainGate:
        return ChainGate(Clock(PRIORS), Acceptance(), "model", Stops(rate, floor, longest, None, hoped))

    def test_keeps_the_prefix_that_is_worth_most(self) -> None:
        gate = self.gate(rate=10.0)  # a target step of .1 s is worth one token
        values = [0.9, 0.8, 0.3, 0.05, 0.01]

        def worth(count: int) -> float:
            return 1.0 + sum(values[:count]) - 10.0 * Clock(PRIORS).target(count + 1)

        assert gate.kept(values) == max(range(1, 6), key=worth)

    def test_nothing_is_kept_below_the_alternative(self) -> None:
        assert self.gate(10.0, floor=5.0, hoped=None).kept([0.9, 0.9]) == 0
        assert self.gate(10.0, floor=0.0, hoped=None).kept([0.05]) == 0

    def test_a_draft_of_which_nothing_is_known_is_tried(self) -> None:
        assert self.gate(10.0, floor=5.0).kept([0.05]) == 1

    def test_what_is_learned_ends_hope_and_pity(self) -> None:
        wrong, right = [Trial(1, -1, 0.5)] * 16, [Trial(1, 0, 0.5)] * 16
        bad, good = self.gate(10.0), self.gate(10.0)
        bad.learn(wrong)
        good.learn(right)
        assert bad.survival(1, 0, 0.5) < 0.2 and good.survival(1, 0, 0.5) > 0.8
        assert not bad.more([0.9]) and good.more([0.9])
        assert bad.kept([0.05]) == 0

    def test_goes_on_while_it_pays(self) -> None:
        assert self.gate(10.0).more([0.9])
        assert not self.gate(10.0).more([0.1])
        assert not self.gate(10.0, longest=1).more([0.9]), "at the end of the budget"

    def test_looks_beyond_a_step_of_the_curve(self) -> None:
        cliff = Curve((1, 8, 9, 16), (1.0, 1.0, 1.6, 1.6))
        priors = Priors(cliff, True, 0.1, {"model": SourcePriors(0.01)})
        gate = ChainGate(Clock(priors), Acceptance(), "model", Stops(10.0, 0.0, 15, None, 0.97))
        assert gate.more([0.97**k for k in range(1, 8)]), "8 positions are drafted; the next tile pays as a whole"

    def test_only_offered_widths(self) -> None:
        gate = ChainGate(Clock(PRIORS), Acceptance(), "model", Stops(1.0, 0.0, 8, (1, 4, 8)))
        assert gate.kept([0.9, 0.8, 0.7, 0.6, 0.5]) == 3


class TestThreshold:
    def observed(self, accepted: int, evaluated: int) -> Threshold:
        rule = Threshold()
        for _ in range(16):
            rule.observe(Step((), evaluated, evaluated, accepted, accepted + 1, evaluated + 1, Seconds(), "model"))
        return rule

    @pytest.mark.parametrize(
        ("accepted", "evaluated", "length"), [(1, 4, 3), (2, 4, 5), (3, 4, 5), (4, 5, 8), (5, 5, 8), (0, 1, 3)]
    )
    def test_the_rule(self, accepted: int, evaluated: int, length: int) -> None:
        budget = self.observed(accepted, evaluated).budget(100)
        assert (budget.nodes, budget.branches) == (length, 1)
        assert "threshold" in (budget.why or "")

    def test_starts_in_the_middle_and_forgets(self) -> None:
        rule = self.observed(0, 4)
        rule.begin()
        assert rule.budget(1).nodes == 5
        assert rule.alpha is None

    def test_only_the_window_counts(self) -> None:
        rule = self.observed(0, 4)
        for _ in range(16):
            rule.observe(Step((), 4, 4, 4, 5, 5, Seconds(), "model"))
        assert rule.alpha == 1.0

    @pytest.mark.parametrize(
        "settings", [{"low": 0.8, "high": 0.7}, {"window": 0}, {"long": 300}, {"short": -1}, {"high": math.nan}]
    )
    def test_refuses(self, settings: dict[str, float]) -> None:
        with pytest.raises(InvalidValue):
            ThresholdConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings", [{"loss": 1.0}, {"loss": math.nan}, {"first_probe": 0}, {"last_probe": 2}, {"tree": 999}]
)
def test_cost_settings_are_checked(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        CostConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"controller": "guess"}, "cost, threshold, fixed"),
        ({"max_draft": 999}, "max_draft is 999"),
        ({"tree": -1}, "tree is -1"),
        ({"controller": "threshold", "tree": 8}, "chains only"),
    ],
)
def test_policies_are_checked(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        Policy(**settings)  # type: ignore[arg-type]
