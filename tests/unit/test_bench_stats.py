"""Means of ratios and their bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.bench.stats import mean_ratio


def test_the_mean_is_geometric_and_every_prompt_weighs_the_same() -> None:
    assert mean_ratio([[4.0, 1.0]]).value == pytest.approx(2.0)
    assert mean_ratio([[8.0], [1.0, 1.0]]).value == pytest.approx(2.0)
    assert mean_ratio([[], [3.0]]).value == pytest.approx(3.0)


def test_one_prompt_has_no_interval() -> None:
    found = mean_ratio([[1.3]])
    assert (found.low, found.high, found.prompts) == (None, None, 1)


def test_equal_prompts_have_a_narrow_one_and_the_same_numbers_the_same() -> None:
    assert mean_ratio([[1.5] * 6]).low == pytest.approx(1.5)
    values = [[1.1, 1.4, 0.9, 2.0]]
    assert mean_ratio(values) == mean_ratio(values)
    found = mean_ratio(values)
    assert found.low is not None and found.high is not None
    assert 0.9 < found.low < found.value < found.high < 2.0


def test_plain_and_arm_may_change_places() -> None:
    values = [1.1, 1.4, 0.9, 2.0, 1.2]
    there, back = mean_ratio([values]), mean_ratio([[1 / value for value in values]])
    assert back.value == pytest.approx(1 / there.value)
    assert there.low is not None and back.high is not None
    assert back.high == pytest.approx(1 / there.low, rel=0.02)


def test_differences_between_kinds_are_no_uncertainty() -> None:
    """The kinds were chosen: with all prompts of a kind alike, the mean over kinds is known exactly."""
    apart = mean_ratio([[2.0] * 4, [0.5] * 4])
    assert apart.low == pytest.approx(1.0) and apart.high == pytest.approx(1.0)
    together = mean_ratio([[2.0] * 4 + [0.5] * 4])
    assert together.low is not None and together.low < 0.8


def test_a_kind_of_one_prompt_does_not_pretend_to_be_certain() -> None:
    found = mean_ratio([[2.0], [0.5]])
    assert found.low == pytest.approx(0.5) and found.high == pytest.approx(2.0)


def test_the_interval_covers_the_truth() -> None:
    """200 benchmarks of 20 prompts from a known law; a percentile bootstrap of so few covers a little under 95 %."""
    random = np.random.default_rng(7)
    hits = 0
    for _ in range(200):
        values = np.exp(random.normal(np.log(1.4), 0.3, 20)).tolist()
        found = mean_ratio([values], resamples=800)
        assert found.low is not None and found.high is not None
        hits += found.low <= 1.4 <= found.high
    assert 0.88 <= hits / 200 <= 0.98
