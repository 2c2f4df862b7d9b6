"""Intervals of α, tokens per round and speed-ups: do they cover, are they what they claim, what if there is little."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import InvalidValue
from foredraft.profile.counts import Sums, TextCounts
from foredraft.profile.distributions import incomplete_beta, t_quantile, two_sided
from foredraft.profile.intervals import (
    Estimate,
    Jackknife,
    TextShare,
    chain_speedup,
    chain_tokens,
    equal_texts,
    ratio,
    tokens_per_round,
)
from foredraft.profile.stats import alpha, summarise, summarise_kinds
from foredraft.speed import Costs, Curve, Share, expected_tokens
from foredraft.types import Floats
from tests.support.drafted_texts import Truth, draw, draw_reached, text

COSTS = Costs(Curve((1, 5), (1.0, 1.4)), Curve((1,), (0.1,)), 0.05)


def ends(estimate: Estimate | None) -> tuple[float, float]:
    assert estimate is not None and estimate.low is not None and estimate.high is not None
    return estimate.low, estimate.high


def covers(estimate: Estimate | None, truth: float) -> bool:
    low, high = ends(estimate)
    return low <= truth <= high


def same_texts(count: int, reached: list[float]) -> list[TextCounts]:
    return [text(str(index), "code", reached) for index in range(count)]


# --- Student's t -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "quantile"),  # Abramowitz and Stegun 1964, table 26.10
    [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (11, 2.201), (30, 2.042), (60, 2.000), (120, 1.980)],
)
def test_quantiles_of_student_s_law(freedom: float, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=6e-4)
    assert two_sided(t_quantile(freedom), freedom) == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize("freedom", [1.0, 2.7, 11.0, 59.0])
def test_tails_agree_with_the_density(freedom: float) -> None:
    """By the trapezium rule, from 0 to 1.5."""
    t = np.linspace(0.0, 1.5, 20001)
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    density = np.exp(scale - (freedom + 1) / 2 * np.log1p(t * t / freedom))
    inside = float(((density[1:] + density[:-1]) / 2).sum() * (t[1] - t[0]))
    assert two_sided(1.5, freedom) == pytest.approx(1.0 - 2.0 * inside, abs=1e-8)


@given(x=st.floats(0.01, 0.99), a=st.floats(0.1, 500.0), b=st.floats(0.1, 500.0))
def test_the_beta_function_is_a_law(x: float, a: float, b: float) -> None:
    value = incomplete_beta(x, a, b)
    assert -1e-9 <= value <= 1.0 + 1e-9
    assert value == pytest.approx(1.0 - incomplete_beta(1.0 - x, b, a), abs=1e-9)


# --- coverage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [12, 60])
@pytest.mark.parametrize("truth", [Truth(0.8, 15.0), Truth(0.95, 20.0)], ids=["good", "nearly perfect"])
def test_intervals_cover_the_truth(truth: Truth, texts: int) -> None:
    """1000 profiles of texts that differ in α by a standard deviation of .10 and .05: α, α at depth 1, the speed-up."""
    random = np.random.default_rng(0)
    spent = COSTS.chain(truth.depth)
    covered = np.zeros(3)
    for _ in range(1000):
        reached = draw_reached(random, truth, texts)
        share = TextShare.of(reached[:, 1:].sum(axis=1), reached[:, :-1].sum(axis=1))
        first = TextShare.of(reached[:, 1], reached[:, 0])
        gain = ratio(reached.sum(axis=1), reached[:, 0] * spent, (1 / spent, (truth.depth + 1) / spent))
        assert share is not None and first is not None
        covered += (
            covers(share.estimate(), truth.pooled),
            covers(first.estimate(), truth.alpha),
            covers(gain, truth.tokens / spent),
        )
    assert all(0.90 <= part <= 0.97 for part in covered / 1000), covered / 1000


@pytest.mark.parametrize("texts", [12, 60])
def test_whole_profiles_cover_the_truth(texts: int) -> None:
    """200 profiles, through records of texts."""
    random, truth = np.random.default_rng(2), Truth(0.7, 12.0)
    covered = np.zeros(2)
    for _ in range(200):
        found = draw(random, truth, texts)
        covered += covers(alpha(found), truth.pooled), covers(Jackknife(found).estimate(chain_tokens(4)), truth.tokens)
    assert all(0.90 <= part <= 0.97 for part in covered / 200), covered / 200


def test_intervals_of_three_texts_are_wide_enough() -> None:
    random, truth = np.random.default_rng(12), Truth(0.7, 10.0)
    found = [draw(random, truth, 3) for _ in range(200)]
    assert np.mean([covers(alpha(each), truth.pooled) for each in found]) >= 0.9
    assert np.mean([covers(Jackknife(each).estimate(chain_tokens(4)), truth.tokens) for each in found]) >= 0.9


def test_tokens_of_one_text_are_no_independent_witnesses() -> None:
    """Texts of two kinds of luck: an interval from pooled tokens would be many times too narrow."""
    texts = [text(str(index), "code", [100.0, 90.0 if index % 2 else 40.0]) for index in range(12)]
    low, high = ends(alpha(texts))
    naive = Share(780.0, 1200.0).interval()
    assert high - low > 4 * (naive.high - naive.low)


def test_a_hundred_times_the_tokens_in_one_text_make_nothing_surer() -> None:
    even = [text(str(index), "code", [50.0, 35.0 + index % 3]) for index in range(12)]
    uneven = [*even[:-1], text("long", "code", [5000.0, 3600.0])]
    assert equal_texts(np.array([50.0] * 11 + [5000.0])) < 1.3
    long, plain = alpha(uneven), alpha(even)
    assert long is not None and plain is not None and long.half_width is not None and plain.half_width is not None
    assert long.half_width > plain.half_width


# --- what they are -----------------------------------------------------------------------------------------


def test_the_jackknife_is_the_one_by_hand() -> None:
    texts = draw(np.random.default_rng(1), Truth(0.75, 10.0), 7)
    hits, trials = (
        np.array([sum(each) for each in rows]) for rows in zip(*((t.hits, t.trials) for t in texts), strict=True)
    )
    whole = hits.sum() / trials.sum()
    moves = [np.delete(hits, i).sum() / np.delete(trials, i).sum() - whole for i in range(7)]
    share = TextShare.of(hits, trials)
    assert share is not None
    assert share.error == pytest.approx(math.sqrt(6 / 7 * sum(move**2 for move in moves)))
    assert share.value == pytest.approx(whole)
    ends_of_alpha = ends(Jackknife(texts).estimate(lambda sums: sums.alpha, (0.0, 1.0)))
    freedom = equal_texts(trials) - 1
    reach = t_quantile(freedom) * share.error / (whole * (1 - whole))
    logit = math.log(whole / (1 - whole))
    assert ends(share.estimate()) == pytest.approx([1 / (1 + math.exp(-logit + s * reach)) for s in (1, -1)])
    assert ends_of_alpha == pytest.approx(ends(share.estimate()), rel=0.05)  # there rounds may weigh instead of trials


def test_leaving_out_a_text_is_summing_the_others() -> None:
    texts = draw(np.random.default_rng(2), Truth(0.75, 10.0), 5)
    jackknife = Jackknife(texts)
    for index in range(5):
        others = Sums.of(texts[:index] + texts[index + 1 :]).total
        assert jackknife.left_out.rows[index] == pytest.approx(others.rows[0])


def test_alpha_is_accepted_by_evaluated_in_all_and_by_part() -> None:
    texts = [
        TextCounts("a", "code", 60, 20, (16.0, 8.0), (20.0, 16.0), (10.0, 14.0, 0, 0), (16.0, 20.0, 0, 0)),
        TextCounts("b", "chat", 30, 20, (8.0, 2.0), (20.0, 8.0), (10.0, 0, 0, 0), (28.0, 0, 0, 0)),
    ]
    found = summarise(texts)
    assert found.alpha is not None and found.alpha.value == pytest.approx(34 / 64)
    assert [each.value for each in found.by_depth if each] == pytest.approx([24 / 40, 10 / 24])
    assert [each.value if each else None for each in found.by_band] == [pytest.approx(20 / 44), 14 / 20, None, None]
    assert found.by_band[1] is not None and (found.by_band[1].low, found.by_band[1].texts) == (None, 1)
    assert found.per_round is not None and found.per_round.value == pytest.approx(90 / 40)
    kinds = summarise_kinds(texts)
    assert list(kinds) == ["code", "chat"]
    code = kinds["code"].alpha
    assert code == Estimate(24 / 36, None, None, 1)
    assert (found.as_json()["alpha"]["value"], found.as_json()["by_band"][3]) == (pytest.approx(34 / 64), None)


def test_functions_agree_with_the_speed_model() -> None:
    sums = Sums.of(draw(np.random.default_rng(3), Truth(0.75, 10.0), 6))
    for row, rates in zip(chain_tokens(3)(sums), sums.acceptance, strict=True):
        assert row == pytest.approx(expected_tokens(rates[:3].tolist()))
    assert chain_speedup(3, COSTS)(sums) == pytest.approx(chain_tokens(3)(sums) / COSTS.chain(3))
    assert chain_tokens(4)(sums) == pytest.approx(tokens_per_round(sums))  # whole rounds of 4, counted to the end
    with pytest.raises(InvalidValue, match="0 to 4"):
        chain_tokens(5)(sums)


def test_the_same_texts_give_the_same_numbers() -> None:
    texts = draw(np.random.default_rng(4), Truth(0.8, 10.0), 9)
    assert summarise(texts) == summarise(list(texts))
    assert summarise(texts).alpha == summarise(texts[::-1]).alpha
    fast = [Jackknife(each).estimate(chain_speedup(2, COSTS)) for each in (texts, list(texts))]
    assert fast[0] == fast[1]


@given(
    rows=st.lists(st.tuples(st.floats(0.0, 1e4), st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=8),
)
def test_intervals_hold_their_value_and_keep_within_what_can_be(rows: list[tuple[float, float, float]]) -> None:
    texts = [text(str(i), "code", [n, n * first, n * first * next_]) for i, (n, first, next_) in enumerate(rows)]
    found = summarise(texts)
    for share in (found.alpha, *found.by_depth):
        if share is not None and share.low is not None and share.high is not None:
            assert -1e-12 <= share.low <= share.value + 1e-12 and share.value - 1e-12 <= share.high <= 1.0 + 1e-12
    fast = Jackknife(texts).estimate(chain_speedup(2, COSTS))
    if fast is not None and fast.low is not None and fast.high is not None:
        assert fast.low <= fast.value * (1 + 1e-9) and fast.value <= fast.high * (1 + 1e-9)
        assert 1 / COSTS.chain(2) - 1e-9 <= fast.low and fast.high <= 3 / COSTS.chain(2) + 1e-9


# --- little to go by ---------------------------------------------------------------------------------------


def test_one_text_has_no_interval() -> None:
    texts = same_texts(1, [40.0, 30.0, 20.0])
    assert alpha(texts) == Estimate(50 / 70, None, None, 1)
    fast = Jackknife(texts).estimate(chain_tokens(2))
    assert fast is not None and fast.value == pytest.approx(1 + 0.75 + 0.5)
    assert fast.half_width is None


def test_nothing_evaluated_is_unknown_and_not_zero() -> None:
    none = text("a", "code", [0.0, 0.0])
    plain = TextCounts("b", "code", 50.0, 50.0, (0.0,), (0.0,), (0.0,) * 4, (0.0,) * 4)
    for texts in ([], [none]):
        found = summarise(texts)
        assert found.alpha is None and found.per_round is None and not any(found.by_depth)
        assert Jackknife(texts).estimate(chain_tokens(0)) is None
    assert alpha([plain]) is None
    per_round = summarise([plain, none]).per_round
    assert per_round == Estimate(1.0, None, None, 1)


def test_a_text_without_trials_says_nothing_about_alpha() -> None:
    some = draw(np.random.default_rng(6), Truth(0.7, 10.0), 5)
    assert alpha([*some, text("idle", "code", [0.0, 0.0])]) == alpha(some)


@pytest.mark.parametrize("count", [2, 12])
def test_all_hits_do_not_prove_perfection(count: int) -> None:
    texts = same_texts(count, [40.0, 40.0, 40.0])
    low, high = ends(alpha(texts))
    assert high == 1.0 and 0.4 < low < 1.0
    assert low < Share(80.0 * count, 80.0 * count).interval().low  # few texts are less than many tokens
    fast = Jackknife(texts).estimate(chain_tokens(2))
    assert fast is not None and fast.value == 3.0
    slow, quick = ends(fast)
    assert 1.4 < slow < 3.0 and quick == 3.0


def test_no_hits_do_not_prove_impossibility() -> None:
    low, high = ends(alpha(same_texts(12, [40.0, 0.0])))
    assert low == 0.0 and 0.0 < high < 0.05


def test_texts_all_alike_are_taken_as_independent_tokens() -> None:
    texts = same_texts(12, [100.0, 80.0])
    low, high = ends(alpha(texts))
    cut = 1200.0 * (1.959964 / t_quantile(11.0)) ** 2
    wilson = Share(0.8 * cut, cut).interval()
    assert [low, high] == pytest.approx([wilson.low, wilson.high])
    slow, quick = ends(Jackknife(texts).estimate(chain_tokens(1)))
    assert [slow, quick] == pytest.approx([1 + wilson.low, 1 + wilson.high], abs=0.005)


# --- ratios ------------------------------------------------------------------------------------------------


def test_a_ratio_of_sums_is_what_its_function_is() -> None:
    texts = draw(np.random.default_rng(8), Truth(0.8, 10.0), 12)
    sums = Sums.of(texts)
    plain = ratio(sums.tokens, sums.rounds * COSTS.chain(4), (1 / COSTS.chain(4), 5 / COSTS.chain(4)))
    assert plain is not None and plain.value == pytest.approx(chain_speedup(4, COSTS)(sums.total)[0])
    assert ends(plain) == pytest.approx(ends(Jackknife(texts).estimate(chain_speedup(4, COSTS))), rel=0.01)


def test_ratios_at_the_edge() -> None:
    def of(above: list[float], below: list[float]) -> Estimate | None:
        return ratio(np.array(above), np.array(below))

    assert of([], []) is None and of([1.0], [0.0]) is None
    assert of([3.0, 9.0], [2.0, 0.0]) == Estimate(1.5, None, None, 1)
    assert of([3.0, 6.0], [2.0, 4.0]) == Estimate(1.5, 1.5, 1.5, 2)
    assert of([0.0, 0.0], [2.0, 4.0]) == Estimate(0.0, 0.0, 0.0, 2)
    low, high = ends(of([1e-3, 5e5], [1.0, 1.0]))
    assert 0.0 <= low < high < math.inf


def test_a_value_past_its_bounds_is_taken_as_positive() -> None:
    above, below = np.array([6.0, 7.0, 5.5]), np.array([2.0, 2.0, 2.0])
    assert ratio(above, below, (0.0, 2.0)) == ratio(above, below)


def test_a_function_may_be_negative() -> None:
    def loss(sums: Sums) -> Floats:
        return np.asarray(-sums.tokens / 10.0, np.float64)

    found = Jackknife(draw(np.random.default_rng(9), Truth(0.8, 10.0), 6)).estimate(loss)
    low, high = ends(found)
    assert found is not None and low < found.value < high and high - found.value == pytest.approx(found.value - low)
