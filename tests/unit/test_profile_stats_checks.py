"""Tests of depth and drift, and the advice on sample size: do they find what is there, and only that."""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.errors import InvalidValue
from foredraft.profile.advice import GOAL, sample_size
from foredraft.profile.checks import check_depths, check_drift, flip_test
from foredraft.profile.counts import TextCounts
from foredraft.profile.stats import alpha
from tests.support.drafted_texts import Truth, draw, text


def by_depth(random: np.random.Generator, texts: int, rates: list[float], weight: float = 15.0) -> list[TextCounts]:
    """Acceptance ``rates`` by depth; a text's own rate at a depth says nothing about its other ones."""
    found = []
    for index in range(texts):
        reached = [int(random.integers(20, 60))]
        for rate in rates:
            reached.append(int(random.binomial(reached[-1], random.beta(rate * weight, (1 - rate) * weight))))
        found.append(text(str(index), "code", [float(each) for each in reached]))
    return found


def by_order(random: np.random.Generator, rates: list[float], kinds: list[str]) -> list[TextCounts]:
    """A text for each rate, in this order."""
    counts = [float(random.binomial(80, random.beta(rate * 20, (1 - rate) * 20))) for rate in rates]
    return [text(str(i), kind, [80.0, hits]) for i, (hits, kind) in enumerate(zip(counts, kinds, strict=True))]


def by_band(random: np.random.Generator, texts: int, rates: list[float]) -> list[TextCounts]:
    """Acceptance by band of positions; the chance of a text moves all its bands alike."""
    found = []
    for index in range(texts):
        shift = float(random.normal(0.0, 0.15))
        hits = tuple(float(random.binomial(40, min(1.0, max(0.0, rate + shift)))) for rate in rates)
        tried = (40.0,) * len(rates)
        rest = (0.0,) * (4 - len(rates))
        total, trials = (sum(hits),), (sum(tried),)
        found.append(TextCounts(str(index), "code", 90.0, 40.0, total, trials, (*hits, *rest), (*tried, *rest)))
    return found


# --- depth -------------------------------------------------------------------------------------------------


def test_equal_depths_are_seldom_taken_for_different() -> None:
    random = np.random.default_rng(21)
    found = [check_depths(by_depth(random, 20, [0.7] * 4)).p for _ in range(200)]
    assert 0.01 <= np.mean([p is not None and p < 0.05 for p in found]) <= 0.10


def test_different_depths_are_found_and_their_error_told() -> None:
    random = np.random.default_rng(22)
    found = [check_depths(by_depth(random, 40, [0.55, 0.7, 0.85])) for _ in range(20)]
    assert np.mean([check.p is not None and check.p < 0.05 for check in found]) >= 0.95
    one = found[0]
    assert one.p is not None and one.alpha is not None
    assert one.error > 0.02 and "too high at K =" in one.sentence and "not the same at every depth" in one.sentence
    assert one.error == pytest.approx(expected(one.alpha, one.by_depth[: one.length]), abs=1e-9)


def expected(flat: float, rates: tuple[float, ...]) -> float:
    geometric = sum(flat**k for k in range(len(rates) + 1))
    return float(geometric / (1.0 + sum(np.cumprod(rates))) - 1.0)


def test_falling_acceptance_makes_a_flat_alpha_pessimistic() -> None:
    check = check_depths(by_depth(np.random.default_rng(23), 60, [0.85, 0.7, 0.5]))
    assert check.error < 0 and "too low" in check.sentence


def test_texts_that_differ_make_depths_differ() -> None:
    """Each text is geometric, the pool is not: only texts with a high α reach far."""
    check = check_depths(draw(np.random.default_rng(24), Truth(0.7, 4.0, depth=6), 60))
    assert check.p is not None and check.p < 0.01
    assert list(check.by_depth) == sorted(check.by_depth)


def test_many_texts_show_what_does_not_matter() -> None:
    check = check_depths(by_depth(np.random.default_rng(25), 1500, [0.70, 0.72], 500.0))
    assert check.p is not None and check.p < 0.05 and abs(check.error) < 0.02
    assert "hardly matters" in check.sentence


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], "no drafted token was evaluated"),
        ([text("a", "code", [40.0, 30.0])], "only one depth"),
        ([text("a", "code", [40.0, 30.0, 20.0])], r"too few texts (1)"),
    ],
)
def test_little_is_said_of_little(texts: list[TextCounts], words: str) -> None:
    check = check_depths(texts)
    assert check.p is None and words in check.sentence


def test_all_hits_are_no_difference() -> None:
    check = check_depths([text(str(index), "code", [40.0, 40.0, 40.0]) for index in range(12)])
    assert (check.p, check.error) == (1.0, 0.0) and "no sign" in check.sentence


def test_signs_are_symmetric_and_scales_do_not_matter() -> None:
    scores = np.random.default_rng(26).normal((0.0, 0.5, 0.0), 1.0, (30, 3))
    p = flip_test(scores)
    assert p is not None and 0.001 < p < 0.5
    assert flip_test(-scores) == p
    assert flip_test(scores * [1.0, 8.0, 0.25]) == p  # powers of 2: no rounding
    assert flip_test(scores[:5]) is None


# --- drift -------------------------------------------------------------------------------------------------


def test_prompts_in_no_order_seldom_drift() -> None:
    random = np.random.default_rng(31)
    kinds = ["code", "chat"] * 12
    found = [check_drift(by_order(random, [0.7] * 24, kinds)).order_p for _ in range(100)]
    assert np.mean([p is not None and p < 0.05 for p in found]) <= 0.11


def test_a_falling_alpha_is_found_with_its_size() -> None:
    random = np.random.default_rng(32)
    check = check_drift(by_order(random, np.linspace(0.8, 0.5, 60).tolist(), ["code"] * 60))
    assert check.order_p is not None and check.order_p < 0.01
    assert check.change == pytest.approx(-0.3, abs=0.1)
    assert check.sentence.startswith("α falls by .") and "profile recent ones" in check.sentence


def test_prompts_sorted_by_kind_do_not_drift_for_that() -> None:
    random = np.random.default_rng(33)
    sorted_kinds = by_order(random, [0.85] * 20 + [0.5] * 20, ["code"] * 20 + ["chat"] * 20)
    together = by_order(random, [0.85] * 20 + [0.5] * 20, ["code"] * 40)
    inside, across = check_drift(sorted_kinds).order_p, check_drift(together).order_p
    assert inside is not None and across is not None and across < 0.01 < inside


def test_a_kind_of_one_prompt_does_not_count_for_drift() -> None:
    random = np.random.default_rng(34)
    texts = by_order(random, [0.7] * 8, ["code"] * 8)
    alone = [*texts, text("alone", "poem", [80.0, 2.0])]
    assert check_drift(alone).change == pytest.approx(check_drift(texts).change * 8 / 7, abs=0.01)


def test_positions_that_differ_are_found_within_texts() -> None:
    """The difference is far smaller than that between texts, which all share it."""
    check = check_drift(by_band(np.random.default_rng(35), 60, [0.62, 0.66, 0.68]))
    assert check.position_p is not None and check.position_p < 0.01
    assert check.by_band[3] is None
    assert "in tokens 0–31" in check.sentence and "another length" in check.sentence


def test_positions_that_do_not_differ_seldom_seem_to() -> None:
    random = np.random.default_rng(36)
    found = [check_drift(by_band(random, 20, [0.7, 0.7, 0.7])).position_p for _ in range(100)]
    assert np.mean([p is not None and p < 0.05 for p in found]) <= 0.11


def test_drift_of_little() -> None:
    assert check_drift([]).sentence == "no drafted token was evaluated, so drift is unknown"
    few = check_drift(by_band(np.random.default_rng(37), 3, [0.6, 0.8]))
    assert (few.order_p, few.position_p) == (None, None) and few.sentence.count("too few texts (3)") == 2
    short = check_drift([text(str(index), "code", [40.0, 40.0]) for index in range(12)])
    assert (short.order_p, short.change) == (1.0, 0.0) and "too short" in short.sentence


# --- how many more -----------------------------------------------------------------------------------------


def test_the_advice_followed_gives_the_width_asked_for() -> None:
    random, truth = np.random.default_rng(41), Truth(0.75, 15.0)
    asked = [sample_size(draw(random, truth, 40)) for _ in range(15)]
    needed = int(np.median([each.texts + (each.more or 0) for each in asked]))
    assert all(each.more for each in asked)
    widths = [found.half_width for _ in range(5) if (found := alpha(draw(random, truth, needed))) is not None]
    assert np.mean([width for width in widths if width is not None]) == pytest.approx(GOAL, rel=0.12)


def test_the_advice_in_words() -> None:
    random = np.random.default_rng(42)
    found = sample_size(draw(random, Truth(0.7, 15.0), 30))
    assert found.half_width is not None and found.more is not None
    assert found.sentence == f"α is known to ± {found.half_width:.3f} from 30 prompts; ± .02 needs {found.more} more prompts".replace("± 0", "± ")  # fmt: skip # noqa: E501
    assert found.more % 10 == 0 or found.more < 100
    wide = sample_size(draw(random, Truth(0.7, 15.0), 30), goal=0.2)
    assert wide.more == 0 and wide.sentence.endswith("which is good enough (± .2)")


def test_few_texts_give_no_number() -> None:
    random = np.random.default_rng(43)
    nine = sample_size(draw(random, Truth(0.7, 15.0), 9))
    assert nine.more is None and nine.half_width is not None and "cannot be known from so few" in nine.sentence
    perfect = sample_size([text(str(index), "code", [500.0, 500.0]) for index in range(3)])
    assert perfect.more is None  # three perfect texts are narrow, and prove nothing
    one = sample_size(draw(random, Truth(0.7, 15.0), 1))
    assert (one.half_width, one.more) == (None, None) and "one prompt says nothing" in one.sentence
    assert sample_size([]).sentence == "no drafted token was evaluated, so α is unknown"


def test_texts_all_alike_need_what_independent_tokens_need() -> None:
    found = sample_size([text(str(index), "code", [10.0, 8.0]) for index in range(12)])
    assert found.more is not None
    assert (12 + found.more) * 10 == pytest.approx(0.8 * 0.2 * (1.96 / GOAL) ** 2, rel=0.1)


@pytest.mark.parametrize("goal", [0.0, 0.5, float("nan"), -0.1])
def test_an_impossible_goal_is_refused(goal: float) -> None:
    with pytest.raises(InvalidValue, match="half width"):
        sample_size([], goal)
