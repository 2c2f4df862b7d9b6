"""The speed model against its closed forms, a simulation and the worked example of the design."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft import speed
from foredraft.speed import expected_tokens, rule_of_thumb, speedup

ALPHA = st.floats(0.0, 0.999)


def test_docstring_examples() -> None:
    result = doctest.testmod(speed)
    assert (result.failed, result.attempted) == (0, 3)


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
