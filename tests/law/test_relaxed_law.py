"""The lossy rule: every drafted position has the law w·p + (1 - w)·q, with w solved from the stated bound, and the
bias it reports is the one it has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

from foredraft.types import SamplingParams
from tests.law.enumerate import law_of
from tests.law.reference import Tokens, next_law
from tests.law.scenes import PARAMS, SHAPES, Round, Scene, masked, one_round, world

TOLERANCE = 1e-12
SOFT = SamplingParams(temperature=1.0)
Key = tuple[Tokens, Tokens]  # accepted nodes, accepted tokens


def by_position(law: dict[Round, float], vocab: int) -> dict[Key, tuple[list[float], set[float]]]:
    """For every accepted path: the joint mass of each next token, and the biases reported for it."""
    mass: dict[Key, list[float]] = defaultdict(lambda: [0.0] * vocab)
    bias: dict[Key, set[float]] = defaultdict(set)
    for result, weight in law.items():
        assert len(result.bias) == len(result.accepted) + 1
        for depth, token in enumerate((*result.accepted, result.token)):
            key = result.slots[:depth], result.accepted[:depth]
            mass[key][token] += weight
            bias[key].add(result.bias[depth])
    return {key: (mass[key], bias[key]) for key in mass}


def proposal_law(scene: Scene, path: Tokens) -> list[float]:
    """The law the first sibling below ``path`` was drawn from."""
    text = (*scene.prompt, *path)
    if scene.points is not None:
        first = scene.points(text)[0]
        return [float(token == first) for token in range(len(scene.target(text)))]
    return next_law(scene.draft, scene.prompt, path, scene.draft_params or scene.params)


def assert_mixture(scene: Scene) -> float:
    """Check every position of a round; returns the largest total variation met."""
    law = law_of(lambda noise: one_round(scene, noise))
    ends = {(result.slots, result.accepted) for result in law if not result.open}
    vocab = len(scene.target(scene.prompt))
    worst = 0.0
    for (slots, path), (mass, reported) in by_position(law, vocab).items():
        total = sum(mass)
        p = next_law(scene.target, scene.prompt, path, scene.params)
        q = p if (slots, path) in ends else proposal_law(scene, path)
        distance = 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True))
        spent = min(scene.max_tv, distance)
        w = 1.0 - spent / distance if distance > 0.0 else 1.0
        mixed = [total * (w * a + (1.0 - w) * b) for a, b in zip(p, q, strict=True)]
        assert mass == pytest.approx(mixed, abs=TOLERANCE)
        actual = 0.5 * sum(abs(m - total * a) for m, a in zip(mass, p, strict=True))
        assert all(actual == pytest.approx(total * each, abs=TOLERANCE) for each in reported)
        assert all(each <= scene.max_tv + TOLERANCE for each in reported)
        worst = max(worst, *reported)
    return worst


@pytest.mark.parametrize("max_tv", [0.02, 0.3, 0.95])
@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "2 siblings of 2"])
def test_every_shape(shape: str, max_tv: float) -> None:
    target, draft = world(11)
    scene = Scene(target, draft, SOFT, "relaxed", SHAPES[shape], max_tv=max_tv)
    worst = assert_mixture(scene)
    assert worst == pytest.approx(max_tv, abs=TOLERANCE) or max_tv == 0.95


@pytest.mark.parametrize("name", PARAMS)
def test_every_parameter(name: str) -> None:
    target, draft = world(5)
    assert_mixture(Scene(target, draft, PARAMS[name], "relaxed", (-1, 0), max_tv=0.1))


@pytest.mark.parametrize("siblings", [(0,), (2, 0), (1, 1), (0, 1, 2)], ids=str)
def test_point_masses(siblings: tuple[int, ...]) -> None:
    """q is the first sibling's point mass."""
    target, draft = world(31)
    shape = (-1,) * len(siblings)
    scene = Scene(target, draft, SOFT, "relaxed", shape, lambda text: siblings, max_tv=0.07)
    assert assert_mixture(scene) == pytest.approx(0.07, abs=TOLERANCE)


def test_point_masses_two_levels() -> None:
    target, draft = world(33)

    def points(text: Tokens) -> Sequence[int]:
        return [(text[-1] + 1) % 3, text[-1]]

    scene = Scene(target, draft, SOFT, "relaxed", (-1, -1, 0, 0, 1), points, max_tv=0.07)
    assert assert_mixture(scene) == pytest.approx(0.07, abs=TOLERANCE)


def test_greedy_target_is_mixed_with_the_draft() -> None:
    target, draft = world(29)
    scene = Scene(target, draft, SamplingParams(), "relaxed", (-1, -1, 0), draft_params=SOFT, max_tv=0.1)
    assert assert_mixture(scene) == pytest.approx(0.1, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("target_ids", "draft_ids"), [((0, 1), (2, 3)), ((0, 1, 2, 3), (1, 2)), ((1, 2), (0, 1, 2, 3))]
)
def test_supports(target_ids: Sequence[int], draft_ids: Sequence[int]) -> None:
    target, draft = world(17, vocab=4)
    scene = Scene(masked(target, target_ids), masked(draft, draft_ids), SOFT, "relaxed", (-1, -1), max_tv=0.2)
    assert assert_mixture(scene) == pytest.approx(0.2, abs=TOLERANCE)


def test_equal_laws_spend_nothing() -> None:
    target, _ = world(19)
    assert assert_mixture(Scene(target, target, SOFT, "relaxed", (-1, 0), max_tv=0.2)) == 0.0


def test_bound_above_the_distance_takes_every_draft() -> None:
    """With w = 0 the output is the draft's own law, and the bias reported is the whole distance, not the bound."""
    target, draft = world(11)
    scene = Scene(target, draft, SOFT, "relaxed", (-1,), max_tv=0.99)
    p, q = (next_law(table, scene.prompt, (), SOFT) for table in (target, draft))
    distance = 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True))
    assert distance < 0.99
    assert assert_mixture(scene) == pytest.approx(distance, abs=TOLERANCE)
    accepted = law_of(lambda noise: one_round(scene, noise).slots)
    assert accepted == {(0,): pytest.approx(1.0, abs=TOLERANCE)}
