"""The exact law of one verified round, by enumeration, is the target's own, whatever was drafted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.engines.scripted import markov_table
from foredraft.types import Rule, SamplingParams
from tests.law.enumerate import difference, law_of
from tests.law.reference import Tokens
from tests.law.scenes import PARAMS, SHAPES, Scene, masked, one_round, text_of_round, world

EXACT: tuple[Rule, ...] = ("coupled", "residual")
TOLERANCE = 1e-12
SOFT = SamplingParams(temperature=1.0)


def assert_exact(scene: Scene) -> None:
    law = law_of(lambda noise: text_of_round(scene, noise))
    assert sum(law.values()) == pytest.approx(1.0, abs=TOLERANCE)
    assert difference(law, scene.expected()) < TOLERANCE


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape(shape: str, rule: Rule) -> None:
    target, draft = world(11)
    assert_exact(Scene(target, draft, SOFT, rule, SHAPES[shape]))


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("shape", [(-1, 0), (-1, -1, 0)])
def test_every_parameter(shape: tuple[int, ...], name: str, rule: Rule) -> None:
    target, draft = world(5)
    assert_exact(Scene(target, draft, PARAMS[name], rule, shape))


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("shape", [(-1, 0), (-1, -1), (-1, -1, -1, 0), (-1, -1, -1, -1)])
def test_four_tokens(shape: tuple[int, ...], rule: Rule) -> None:
    target, draft = world(23, vocab=4)
    assert_exact(Scene(target, draft, SOFT, rule, shape))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    sharpness=st.floats(0.0, 12.0),
    shape=st.sampled_from(sorted(SHAPES.values())),
    params=st.sampled_from(list(PARAMS.values())),
    rule=st.sampled_from(EXACT),
)
def test_random_worlds(seed: int, sharpness: float, shape: tuple[int, ...], params: SamplingParams, rule: Rule) -> None:
    target, draft = world(seed, sharpness=sharpness)
    assert_exact(Scene(target, draft, params, rule, shape))


class TestPointMasses:
    """Deterministic proposals, such as an n-gram's: no law, one token each."""

    @pytest.mark.parametrize("rule", EXACT)
    @pytest.mark.parametrize("name", PARAMS)
    def test_tree(self, name: str, rule: Rule) -> None:
        target, draft = world(7)

        def points(text: Tokens) -> Sequence[int]:
            return [(text[-1] + 1) % 3, (text[-1] + 2) % 3]

        assert_exact(Scene(target, draft, PARAMS[name], rule, (-1, -1, 0, 0, 1), points))

    @pytest.mark.parametrize("rule", EXACT)
    @pytest.mark.parametrize("siblings", [(0,), (2, 0), (1, 1), (2, 2, 1), (0, 1, 2), (0, 1, 2, 0)], ids=str)
    def test_siblings(self, siblings: tuple[int, ...], rule: Rule) -> None:
        """Also the same token twice, and the whole vocabulary."""
        target, draft = world(31)
        shape = (-1,) * len(siblings)
        assert_exact(Scene(target, draft, SOFT, rule, shape, points=lambda text: siblings))

    @pytest.mark.parametrize("rule", EXACT)
    def test_token_the_target_never_says(self, rule: Rule) -> None:
        target, draft = world(3)
        scene = Scene(masked(target, [0, 2]), draft, SOFT, rule, (-1, -1), points=lambda text: (1, 2))
        assert_exact(scene)

    @pytest.mark.parametrize("rule", EXACT)
    def test_chain_of_three(self, rule: Rule) -> None:
        target, draft = world(13)
        assert_exact(Scene(target, draft, SOFT, rule, (-1, 0, 1), points=lambda text: (2 - text[-1],)))


class TestExtremePairs:
    @pytest.mark.parametrize("rule", EXACT)
    @pytest.mark.parametrize("shape", [(-1,), (-1, 0), (-1, -1), (-1, -1, 0)])
    @pytest.mark.parametrize(
        ("target_ids", "draft_ids"),
        [((0, 1), (2, 3)), ((0, 1, 2, 3), (1, 2)), ((1, 2), (0, 1, 2, 3)), ((0, 1), (1, 2)), ((3,), (3,))],
        ids=["no overlap", "narrow draft", "narrow target", "half overlap", "one token"],
    )
    def test_supports(
        self, target_ids: Sequence[int], draft_ids: Sequence[int], shape: tuple[int, ...], rule: Rule
    ) -> None:
        target, draft = world(17, vocab=4)
        assert_exact(Scene(masked(target, target_ids), masked(draft, draft_ids), SOFT, rule, shape))

    @pytest.mark.parametrize("rule", EXACT)
    @pytest.mark.parametrize("shape", SHAPES.values())
    def test_draft_equal_to_the_target_is_always_accepted(self, shape: tuple[int, ...], rule: Rule) -> None:
        target, _ = world(19)
        scene = Scene(target, target, SOFT, rule, shape)
        assert_exact(scene)
        first = law_of(lambda noise: one_round(scene, noise).slots[:1])
        assert first == {(0,): pytest.approx(1.0, abs=TOLERANCE)}

    @pytest.mark.parametrize("shape", [(-1, 0), (-1, -1, 0)])
    def test_greedy_target_and_sampled_draft(self, shape: tuple[int, ...]) -> None:
        """The target is a point mass, the draft has a soft law."""
        target, draft = world(29)
        scene = Scene(target, draft, SamplingParams(), "residual", shape, draft_params=SOFT)
        assert_exact(scene)
        assert len(scene.expected()) == 1

    @pytest.mark.parametrize("shape", [(-1, 0), (-1, -1, 0)])
    def test_sampled_target_and_greedy_draft(self, shape: tuple[int, ...]) -> None:
        """A greedy draft is a point mass: its law is not its softmax."""
        target, draft = world(29)
        assert_exact(Scene(target, draft, SOFT, "residual", shape, draft_params=SamplingParams()))

    @pytest.mark.parametrize("rule", EXACT)
    def test_draft_at_another_temperature(self, rule: Rule) -> None:
        target, draft = world(37)
        hot = SamplingParams(temperature=2.5, top_k=2)
        assert_exact(Scene(target, draft, SOFT, rule, (-1, -1, 0), draft_params=hot))

    @pytest.mark.parametrize("rule", EXACT)
    def test_nothing_drafted(self, rule: Rule) -> None:
        target, draft = world(41)
        assert_exact(Scene(target, draft, SOFT, rule, ()))

    @pytest.mark.parametrize("rule", EXACT)
    def test_very_unlikely_tokens(self, rule: Rule) -> None:
        """Ratios far below what half precision can hold."""
        target, draft = markov_table(3, seed=2, sharpness=25.0), markov_table(3, seed=8, sharpness=25.0)
        assert_exact(Scene(target, draft, SOFT, rule, (-1, -1, 0)))


@pytest.mark.parametrize("shape", [(-1, 0, 1), (-1, -1, 0, 0)])
def test_coupled_text_is_a_function_of_the_noise_alone(shape: tuple[int, ...]) -> None:
    """Same noise, same text, with any draft or none: checked on every branch, not only in law."""
    target, draft = world(43)
    scene = Scene(target, draft, SOFT, "coupled", shape)
    none = replace(scene, points=lambda text: ())
    pairs = law_of(lambda noise: (text_of_round(scene, noise), text_of_round(none, noise)))
    assert sum(pairs.values()) == pytest.approx(1.0, abs=TOLERANCE)
    assert all(one == other for one, other in pairs)
    assert len(pairs) == 3**scene.length
