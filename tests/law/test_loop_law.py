"""The whole ``decode`` loop: the joint law of the text is the product of the target's conditional laws."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.noise import Noise
from foredraft.types import Rule, SamplingParams
from tests.law.enumerate import difference, law_of
from tests.law.reference import Tokens, next_law
from tests.law.scenes import PARAMS, LoopScene, Scene, masked, world

EXACT: tuple[Rule, ...] = ("coupled", "residual")
TOLERANCE = 1e-12
SOFT = SamplingParams(temperature=1.0)
BUDGETS = {"chain 1": (1, 0, 1), "chain 2": (2, 0, 1), "2 siblings": (1, 2, 2), "tree of 4": (2, 4, 2)}


def assert_exact(loop: LoopScene) -> None:
    law = law_of(loop.text)
    assert sum(law.values()) == pytest.approx(1.0, abs=TOLERANCE)
    assert difference(law, loop.expected()) < TOLERANCE


def successors(text: Tokens) -> Sequence[int]:
    """A lookup that always knows two continuations."""
    return [(text[-1] + 1) % 3, text[-1]]


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("budget", BUDGETS)
def test_model_drafter(budget: str, rule: Rule) -> None:
    target, draft = world(2)
    assert_exact(LoopScene(Scene(target, draft, SOFT, rule), 3, BUDGETS[budget]))


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("name", PARAMS)
def test_model_drafter_with_every_parameter(name: str, rule: Rule) -> None:
    target, draft = world(4)
    assert_exact(LoopScene(Scene(target, draft, PARAMS[name], rule), 3, (2, 0, 1)))


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("name", ["greedy", "penalties", "window", "everything"])
def test_model_drafter_tree_with_history(name: str, rule: Rule) -> None:
    target, draft = world(6)
    assert_exact(LoopScene(Scene(target, draft, PARAMS[name], rule), 3, (2, 3, 2)))


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("name", PARAMS)
def test_deterministic_drafter(name: str, rule: Rule) -> None:
    target, draft = world(8)
    scene = Scene(target, draft, PARAMS[name], rule, (-1, -1, 0, 1, 1), successors)
    assert_exact(LoopScene(scene, 3, (2, 5, 2)))


@pytest.mark.parametrize("rule", EXACT)
def test_four_tokens(rule: Rule) -> None:
    target, draft = world(10, vocab=4)
    assert_exact(LoopScene(Scene(target, draft, SOFT, rule), 2, (1, 3, 3)))


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("draft_ids", [(0,), (1, 2)])
def test_draft_that_knows_fewer_tokens(draft_ids: Sequence[int], rule: Rule) -> None:
    target, draft = world(12)
    assert_exact(LoopScene(Scene(target, masked(draft, draft_ids), SOFT, rule), 3, (2, 4, 2)))


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("min_tokens", [0, 2])
def test_text_that_may_end(min_tokens: int, rule: Rule) -> None:
    """Token 1 ends the text, but not before ``min_tokens`` tokens."""
    target, draft = world(14)
    params = SamplingParams(temperature=1.0, min_tokens=min_tokens)
    loop = LoopScene(Scene(target, draft, params, rule), 3, (2, 4, 2), eog=(1,))
    assert_exact(loop)
    assert ((1,) in loop.expected()) == (min_tokens == 0)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    sharpness=st.floats(0.0, 10.0),
    budget=st.sampled_from(sorted(BUDGETS.values())),
    params=st.sampled_from(list(PARAMS.values())),
    rule=st.sampled_from(EXACT),
)
def test_random_worlds(
    seed: int, sharpness: float, budget: tuple[int, int, int], params: SamplingParams, rule: Rule
) -> None:
    target, draft = world(seed, sharpness=sharpness)
    assert_exact(LoopScene(Scene(target, draft, params, rule), 2, budget))


@pytest.mark.parametrize("rule", EXACT)
def test_the_loop_really_speculates(rule: Rule) -> None:
    """Both an accepted and a rejected draft occur, so that the tests above are about something."""
    target, draft = world(2)
    loop = LoopScene(Scene(target, draft, SOFT, rule), 3, (2, 0, 1))

    def counts(noise: Noise) -> tuple[int, int]:
        steps = loop.steps(noise)
        return sum(step.accepted for step in steps), sum(step.drafted for step in steps)

    law = law_of(counts)
    assert {accepted for accepted, _ in law} == {0, 1, 2}
    assert all(drafted > 0 for _, drafted in law)


class TestRelaxed:
    """One token is drafted in the first of two places: its law is the mixture, the other's is the target's."""

    def test_first_token_is_mixed(self) -> None:
        target, draft = world(16)
        loop = LoopScene(Scene(target, draft, SOFT, "relaxed", max_tv=0.05), 2, (1, 0, 1))
        p, q = (next_law(table, (0, 1), (), SOFT) for table in (target, draft))
        distance = 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True))
        w = 1 - 0.05 / distance
        assert 0 < w < 1
        expected: dict[Tokens, float] = {
            (a, b): (w * p[a] + (1 - w) * q[a]) * share
            for a in range(3)
            for b, share in enumerate(next_law(target, (0, 1), (a,), SOFT))
        }
        assert difference(law_of(loop.text), expected) < TOLERANCE
        assert law_of(lambda noise: round(sum(step.bias for step in loop.steps(noise)), 12)) == {
            0.05: pytest.approx(1.0, abs=TOLERANCE)
        }

    @pytest.mark.parametrize("budget", BUDGETS)
    def test_every_conditional_law_keeps_the_bound(self, budget: str) -> None:
        target, draft = world(18)
        bound = 0.1
        loop = LoopScene(Scene(target, draft, SOFT, "relaxed", max_tv=bound), 3, BUDGETS[budget])
        law = law_of(loop.text)
        largest = 0.0
        for prefix in {text[:length] for text in law for length in range(3)}:
            mass = [
                sum(weight for text, weight in law.items() if text[: len(prefix) + 1] == (*prefix, token))
                for token in range(3)
            ]
            p = next_law(target, (0, 1), prefix, SOFT)
            largest = max(largest, 0.5 * sum(abs(m / sum(mass) - each) for m, each in zip(mass, p, strict=True)))
        assert largest == pytest.approx(bound, abs=1e-9)
