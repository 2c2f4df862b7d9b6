"""The harness itself: laws that are known without it, and computations that it must refuse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from foredraft.noise import ACCEPT, DRAFT, TARGET, Noise
from foredraft.types import Law
from tests.law.enumerate import difference, law_of, total_variation

P = (0.5, 0.3, 0.2)
Q = (0.1, 0.6, 0.3)


def law(*probs: float) -> Law:
    return Law(np.arange(len(probs), dtype=np.int32), np.log(np.array(probs)))


def test_pick_has_the_law() -> None:
    found = law_of(lambda noise: noise.pick(law(*P), 4, TARGET))
    assert difference(found, dict(enumerate(P))) < 1e-15


def test_positions_and_streams_are_independent() -> None:
    def run(noise: Noise) -> tuple[int, int, int]:
        return (
            noise.pick(law(*P), 4, TARGET),
            noise.pick(law(*Q), 5, TARGET),
            noise.pick(law(*Q), 4, DRAFT),
        )

    expected = {(a, b, c): P[a] * Q[b] * Q[c] for a, b, c in itertools.product(range(3), repeat=3)}
    assert difference(law_of(run), expected) < 1e-15


def test_same_key_asked_twice_gives_the_same_answer() -> None:
    found = law_of(lambda noise: (noise.pick(law(*P), 1, TARGET), noise.pick(law(*P), 1, TARGET)))
    assert difference(found, {(token, token): P[token] for token in range(3)}) < 1e-15


def test_one_uniform_couples_two_laws() -> None:
    """Cumulative sums .5 .8 1 and .1 .7 1 cut the uniform into five pieces."""
    found = law_of(lambda noise: (noise.pick(law(*P), 1, TARGET), noise.pick(law(*Q), 1, TARGET)))
    expected = {(0, 0): 0.1, (0, 1): 0.4, (1, 1): 0.2, (1, 2): 0.1, (2, 2): 0.2}
    assert difference(found, expected) < 1e-15


def test_ranked_draws_without_replacement() -> None:
    found = law_of(lambda noise: tuple(noise.ranked(law(*P), 1, 2, DRAFT).tolist()))
    expected = {(a, b): P[a] * P[b] / (1 - P[a]) for a, b in itertools.permutations(range(3), 2)}
    assert difference(found, expected) < 1e-15


def test_ranked_starts_with_the_pick_and_ends_with_the_support() -> None:
    def run(noise: Noise) -> tuple[int, ...]:
        first = noise.pick(law(*P), 1, TARGET)
        drawn = noise.ranked(law(*P), 1, 9, TARGET).tolist()
        assert drawn[0] == first
        return tuple(drawn)

    assert set(law_of(run)) == set(itertools.permutations(range(3)))


def test_accept_tests_are_independent_of_each_other_and_of_draws() -> None:
    def run(noise: Noise) -> tuple[bool, bool, int]:
        return noise.accept(0.25, 1, 0), noise.accept(0.5, 1, 1), noise.pick(law(*P), 1, ACCEPT)

    expected = {
        (a, b, c): (0.25 if a else 0.75) * 0.5 * P[c]
        for a, b, c in itertools.product((True, False), (True, False), range(3))
    }
    assert difference(law_of(run), expected) < 1e-15


def test_certain_and_impossible_do_not_fork() -> None:
    assert law_of(lambda noise: (noise.accept(1.0, 1, 0), noise.accept(0.0, 1, 1))) == {(True, False): 1.0}


def test_distances() -> None:
    assert difference({0: 0.5, 1: 0.5}, {0: 0.8, 2: 0.2}) == pytest.approx(0.5)
    assert total_variation({0: 0.5, 1: 0.5}, {0: 0.8, 2: 0.2}) == pytest.approx(0.5)


def test_computation_with_a_memory_is_refused() -> None:
    runs: list[int] = []

    def run(noise: Noise) -> int:
        runs.append(0)
        return noise.pick(law(*P), 0, TARGET) if len(runs) == 1 else 0

    with pytest.raises(AssertionError, match="not a function of its noise"):
        law_of(run)
