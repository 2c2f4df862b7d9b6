"""The speed model against its closed forms, a simulation and the worked example of the design."""

from __future__ import annotations

import doctest
import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft import speed
from foredraft.errors import InvalidValue
from foredraft.speed import (
    FLAT,
    Costs,
    Curve,
    Interval,
    Share,
    best_chain,
    break_even_alpha,
    chain_interval,
    chain_speedup,
    expected_tokens,
    rule_of_thumb,
    speedup,
)

ALPHA = st.floats(0.0, 0.999)


def test_docstring_examples() -> None:
    result = doctest.testmod(speed, optionflags=doctest.ELLIPSIS)
    assert (result.failed, result.attempted > 10) == (0, True)


@given(alpha=ALPHA, length=st.integers(0, 30))
def test_flat_acceptance_is_a_geometric_sum(alpha: float, length: int) -> None:
    closed = (1 - alpha ** (length + 1)) / (1 - alpha)
    assert expected_tokens([alpha] * length) == pytest.approx(closed, rel=1e-9)


def test_ends() -> None:
    assert expected_tokens([]) == 1.0
    assert expected_tokens([1.0] * 5) == 6.0
    assert expected_tokens([0.0, 1.0, 1.0]) == 1.0
    assert expected_tokens([0.5, 0.2]) == pytest.approx(1 + 0.5 + 0.1)
    assert isinstance(expected_tokens([]), float)


def test_expected_tokens_by_counting() -> None:
    """100 000 rounds, acceptance falling with depth, 4 sigma."""
    acceptance = [0.9, 0.7, 0.5, 0.3]
    hits = np.random.default_rng(1).random((100_000, 4)) < acceptance
    lengths = 1 + np.cumprod(hits, axis=1).sum(axis=1)
    assert expected_tokens(acceptance) == pytest.approx(lengths.mean(), abs=4 * lengths.std() / np.sqrt(100_000))


@given(alpha=ALPHA, length=st.integers(0, 20), ratio=st.floats(0.0, 1.0))
def test_free_verification_is_leviathans_theorem(alpha: float, length: int, ratio: float) -> None:
    """Theorem 3.8 of arXiv 2211.17192."""
    theorem = (1 - alpha ** (length + 1)) / ((1 - alpha) * (length * ratio + 1))
    assert speedup([alpha] * length, verify=1.0, draft=ratio) == pytest.approx(theorem, rel=1e-9)


def test_costs_count() -> None:
    assert speedup([], verify=1.0, draft=0.5) == 1.0
    assert speedup([], verify=1.0, draft=0.5, fixed=0.25) == pytest.approx(0.8)
    assert speedup([1.0] * 7, verify=4.7, draft=0.1, fixed=0.0) == pytest.approx(8 / 5.4)
    assert speedup([0.5], verify=5.0, draft=0.1) < 1.0


def test_worked_example() -> None:
    """α = .70, K = 7, r = .0625."""
    assert rule_of_thumb(0.7, 7, 0.0625) == pytest.approx(3.93, abs=0.005)
    assert expected_tokens([0.7] * 7) == pytest.approx(3.14, abs=0.005)
    assert speedup([0.7] * 7, verify=1.0, draft=0.0625) == pytest.approx(2.19, abs=0.005)


@given(alpha=ALPHA, ratio=st.floats(0.0, 1.0))
def test_rule_of_thumb_cannot_choose_a_length(alpha: float, ratio: float) -> None:
    """It only ever rises or only ever falls with K."""
    values = np.array([rule_of_thumb(alpha, length, ratio) for length in range(30)])
    steps = np.diff(values)
    assert (steps >= -1e-12).all() or (steps <= 1e-12).all()


def test_the_model_can() -> None:
    """With a growing verify curve the speed-up has its maximum inside."""
    values = [speedup([0.7] * length, verify=1 + 0.1 * length, draft=0.05) for length in range(15)]
    assert 0 < int(np.argmax(values)) < 14


# --- curves and costs -------------------------------------------------------------------------------------------------


@st.composite
def curves(draw: st.DrawFn, *, rising: bool = False) -> Curve:
    """Up to 6 widths from 1."""
    widths = (1, *sorted(draw(st.sets(st.integers(2, 40), max_size=5))))
    values = draw(st.lists(st.floats(0.1, 10.0), min_size=len(widths), max_size=len(widths)))
    return Curve(widths, tuple(sorted(values) if rising else values))


class TestCurve:
    @given(curve=curves())
    def test_exact_at_its_points(self, curve: Curve) -> None:
        assert tuple(map(curve, curve.widths)) == curve.values

    @given(curve=curves(rising=True))
    def test_rises_where_its_points_do(self, curve: Curve) -> None:
        """Between them and beyond."""
        values = [curve(width) for width in range(1, 60)]
        assert all(left <= right + 1e-12 for left, right in itertools.pairwise(values))

    @given(curve=curves())
    def test_between_two_points_it_is_between_their_values(self, curve: Curve) -> None:
        for left, right in itertools.pairwise(curve.widths):
            low, high = sorted((curve(left), curve(right)))
            assert all(low - 1e-12 <= curve(width) <= high + 1e-12 for width in range(left, right))

    @given(curve=curves())
    def test_never_falls_beyond_its_last_point(self, curve: Curve) -> None:
        """A falling end is noise of a measurement: it is not drawn out below zero."""
        last = curve.widths[-1]
        assert all(curve(width) >= curve.values[-1] for width in range(last, last + 1000, 50))

    def test_by_hand(self) -> None:
        curve = Curve((1, 2, 4, 8), (1.0, 1.5, 1.7, 2.5))
        assert [curve(width) for width in (1, 2, 3, 4, 6, 8, 12)] == pytest.approx([1, 1.5, 1.6, 1.7, 2.1, 2.5, 3.3])
        assert Curve((1, 2, 4), (1.0, 3.0, 2.0))(10) == 2.0
        assert [FLAT(width) for width in (1, 7, 500)] == [1.0] * 3

    @given(curve=curves(), factor=st.floats(0.1, 10.0), width=st.integers(1, 60))
    def test_scaled(self, curve: Curve, factor: float, width: int) -> None:
        assert curve.scaled(factor)(width) == pytest.approx(factor * curve(width))

    @pytest.mark.parametrize(
        ("widths", "values", "name"),
        [
            ((), (), "curve widths"),
            ((2, 4), (1.0, 2.0), "curve widths"),
            ((1, 4, 2), (1.0, 2.0, 3.0), "curve widths"),
            ((1, 2, 2), (1.0, 2.0, 3.0), "curve widths"),
            ((1, 2), (1.0,), "curve widths"),
            ((1, 2), (1.0, 0.0), "curve values"),
            ((1, 2), (1.0, -1.0), "curve values"),
            ((1, 2), (math.nan, 1.0), "curve values"),
            ((1, 2), (1.0, math.inf), "curve values"),
        ],
    )
    def test_what_is_no_curve(self, widths: tuple[int, ...], values: tuple[float, ...], name: str) -> None:
        with pytest.raises(InvalidValue) as caught:
            Curve(widths, values)
        assert caught.value.name == name


@st.composite
def some_costs(draw: st.DrawFn) -> Costs:
    return Costs(draw(curves()), draw(st.none() | curves()), draw(st.floats(0.0, 1.0)))


class TestCosts:
    @given(costs=some_costs(), length=st.integers(0, 12))
    def test_a_chain_is_a_tree_of_one_node_a_level(self, costs: Costs, length: int) -> None:
        assert costs.chain(length) == pytest.approx(costs.tree([1] * length))

    @given(costs=some_costs(), levels=st.lists(st.integers(1, 6), max_size=6))
    def test_a_tree_by_its_definition(self, costs: Costs, levels: list[int]) -> None:
        """One draft pass a level: over the last token, then over each level but the last."""
        draft = costs.draft or Curve((1,), (1e-300,))
        passes = [draft(fed) for fed in [1, *levels][: len(levels)]]
        assert costs.tree(levels) == pytest.approx(costs.verify(1 + sum(levels)) + sum(passes) + costs.fixed)

    def test_nothing_drafted_costs_no_draft(self) -> None:
        costs = Costs(Curve((1, 2), (1.0, 2.0)), Curve((1,), (0.5,)), 0.1)
        assert costs.chain(0) == costs.tree([]) == pytest.approx(1.1)
        assert Costs().chain(7) == 1.0

    @given(alpha=ALPHA, length=st.integers(0, 9), costs=some_costs())
    def test_speed_up_is_tokens_over_cost(self, alpha: float, length: int, costs: Costs) -> None:
        verify, draft = costs.verify(length + 1), costs.level(1)
        expected = speedup([alpha] * length, verify, draft, costs.fixed)
        assert chain_speedup([alpha] * length, costs) == pytest.approx(expected)


class TestBestChain:
    @given(
        costs=some_costs(),
        acceptance=st.lists(st.floats(0.0, 1.0), max_size=8),
        widths=st.none() | st.sets(st.integers(1, 9)),
    )
    def test_no_length_is_better(self, costs: Costs, acceptance: list[float], widths: set[int] | None) -> None:
        allowed = [k for k in range(1, len(acceptance) + 1) if widths is None or k + 1 in widths]
        gains = {0: 1.0} | {length: chain_speedup(acceptance[:length], costs) for length in allowed}
        length, gain = best_chain(acceptance, costs, None if widths is None else sorted(widths))
        assert gain == max(gains.values()) == gains[length]

    def test_off_wins_a_draw(self) -> None:
        assert best_chain([0.0, 0.0], Costs()) == (0, 1.0)
        assert best_chain([], Costs()) == (0, 1.0)


class TestBreakEven:
    @given(costs=some_costs(), most=st.integers(1, 8))
    def test_is_where_the_speed_up_crosses_1(self, costs: Costs, most: int) -> None:
        def best(alpha: float) -> float:
            return max(chain_speedup([alpha] * length, costs) for length in range(1, most + 1))

        found = break_even_alpha(costs, most)
        if found is None:
            assert best(1.0) < 1.0
            return
        assert best(found) >= 1.0
        assert found == 0.0 or best(found - 2e-6) < 1.0

    @given(cost=st.floats(0.01, 0.9), verify=st.floats(1.0, 1.9))
    def test_of_one_token_in_closed_form(self, cost: float, verify: float) -> None:
        """(1 + α) / (v(2) + c) = 1."""
        alpha = verify + cost - 1
        found = break_even_alpha(Costs(Curve((1, 2), (1.0, verify)), Curve((1,), (cost,))), most=1)
        assert found == (None if alpha > 1 else pytest.approx(alpha, abs=2e-6))

    def test_more_tokens_never_ask_for_more(self) -> None:
        costs = Costs(Curve((1, 8), (1.0, 1.7)), Curve((1,), (0.2,)), 0.05)
        found = [break_even_alpha(costs, most) for most in range(1, 9)]
        assert all(value is not None for value in found)
        assert found == sorted(found, reverse=True)  # type: ignore[type-var]


# --- intervals --------------------------------------------------------------------------------------------------------


class TestWilson:
    @pytest.mark.parametrize(
        ("hits", "trials", "low", "high"),
        [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0000, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ],
    )
    def test_published_values(self, hits: float, trials: float, low: float, high: float) -> None:
        """Newcombe 1998 (Statistics in Medicine 17, 857-872), table I, method 3."""
        found = Share(hits, trials).interval()
        assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
        assert found.value == hits / trials

    @given(trials=st.floats(0.1, 1e6), rate=st.floats(0.0, 1.0))
    def test_holds_the_rate_and_stays_within_0_and_1(self, trials: float, rate: float) -> None:
        found = Share(rate * trials, trials).interval()
        assert 0.0 <= found.low <= found.value + 1e-9
        assert found.value - 1e-9 <= found.high <= 1.0

    @given(trials=st.integers(1, 1000), rate=st.floats(0.0, 1.0))
    def test_mirrors(self, trials: int, rate: float) -> None:
        hits = round(rate * trials)
        one, other = Share(hits, trials).interval(), Share(trials - hits, trials).interval()
        assert (one.low, one.high) == pytest.approx((1 - other.high, 1 - other.low), abs=1e-9)

    def test_no_trials_say_nothing(self) -> None:
        assert Share(0, 0).interval() == Interval(0.5, 0.0, 1.0)
        assert Share(0, 0).mean == 0.5
        assert Share(0, 0).variance == pytest.approx(1 / 12)

    def test_mean_and_variance_are_those_of_the_beta_law(self) -> None:
        draws = np.random.default_rng(0).beta(8, 4, 400_000)
        assert Share(7, 10).mean == pytest.approx(draws.mean(), abs=1e-3)
        assert Share(7, 10).variance == pytest.approx(draws.var(), rel=0.02)


def measured(acceptance: Sequence[float], rounds: int, random: np.random.Generator) -> list[Share]:
    """Counts of so many rounds: a depth is tried where the one above was accepted."""
    shares, tried = [], rounds
    for rate in acceptance:
        hits = int(random.binomial(tried, rate))
        shares.append(Share(hits, tried))
        tried = hits
    return shares


class TestChainInterval:
    @pytest.mark.parametrize("rounds", [60, 300])
    @pytest.mark.parametrize("acceptance", [(0.85,), (0.85, 0.8, 0.7), (0.6, 0.5, 0.5, 0.4)])
    @pytest.mark.parametrize("spread", [0.0, 0.05])
    def test_covers_the_truth_95_times_of_100(self, acceptance: tuple[float, ...], rounds: int, spread: float) -> None:
        """3000 measurements; ``spread``: the error of the measured costs."""
        random = np.random.default_rng(len(acceptance) + rounds)
        verify, draft = Curve((1, 5), (1.0, 1.4)), Curve((1,), (0.2,))
        truth = chain_speedup(acceptance, Costs(verify, draft))
        hits = 0
        for _ in range(3000):
            error = math.exp(random.normal(0.0, spread)) if spread else 1.0
            costs = Costs(verify.scaled(error), draft.scaled(error))
            found = chain_interval(measured(acceptance, rounds, random), costs, spread)
            assert found.low <= found.value <= found.high
            hits += found.low <= truth <= found.high
        assert 0.92 <= hits / 3000 <= 0.98

    def test_depths_never_tried(self) -> None:
        """A depth without a trial counts as never accepted in the value, but not in the width of the interval."""
        costs = Costs(Curve((1, 3), (1.0, 1.2)))
        short = chain_interval([Share(0, 20), Share(0, 0)], costs)
        assert short.value == pytest.approx(1 / 1.2)
        assert short.low < short.value < short.high

    def test_narrows_with_the_rounds(self) -> None:
        costs = Costs(Curve((1, 3), (1.0, 1.2)))
        few, many = (chain_interval([Share(0.8 * n, n), Share(0.64 * n, 0.8 * n)], costs) for n in (20, 2000))
        assert few.value == pytest.approx(many.value)
        assert (many.high - many.low) < 0.15 * (few.high - few.low)
