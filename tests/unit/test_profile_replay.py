"""Replaying a text is what the loop does with it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.control import fixed
from foredraft.drafters.ngram import NgramDrafter
from foredraft.errors import InvalidValue
from foredraft.profile.replay import Copies, Replayed, Text, replay
from foredraft.profile.scoring import Known, copies
from foredraft.sampling import Sampler
from foredraft.speed import Curve
from foredraft.types import SamplingParams, Step
from tests.support.simulator import SimDrafter, Source, VirtualClock, World, run

LENGTHS = (1, 2, 4, 7)


def world(hits: list[bool], text: tuple[int, ...] = (), prompt: int = 4, source: str = "model") -> World:
    count = len(hits)
    ranks = np.where(hits, 0, -1).astype(np.int32)
    drafts = (Source(source, 0.01, ranks, np.full(count, 0.5), np.ones(count, np.bool_)),)
    return World(Curve((1,), (1.0,)), drafts, np.ones(count), 0.0, 0.0, 1, prompt, 64, text)


def counted(steps: list[Step], depth: int) -> tuple[list[int], list[int], list[int]]:
    """Rounds by width, hits and trials by depth, of the real loop."""
    rounds = [step for step in steps if step.drafter != "prefill"]
    widths = [sum(step.width == width for step in rounds) for width in range(depth + 2)]
    hits = [sum(step.accepted > at for step in rounds) for at in range(depth)]
    trials = [sum(step.evaluated > at for step in rounds) for at in range(depth)]
    return widths, hits, trials


def row(found: Replayed, setting: int, depth: int) -> tuple[list[float], list[float], list[float]]:
    return (
        found.widths[setting, : depth + 2].tolist(),
        found.hits[setting, :depth].tolist(),
        found.trials[setting, :depth].tolist(),
    )


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_model_draft(hits: list[bool]) -> None:
    """Rounds, widths, accepted and evaluated tokens by depth: the loop's own."""
    found = replay(Text(len(hits), len(hits)), np.tile(np.array(hits, float), (len(LENGTHS), 1)), LENGTHS)
    for setting, length in enumerate(LENGTHS):
        clock, one = VirtualClock(), world(hits)
        steps = run(one, fixed(length), clock, [SimDrafter(one.sources[0], one, clock)])
        assert row(found, setting, length) == counted(steps, length)
        assert found.passes[setting] == sum(step.drafted for step in steps)


@given(st.lists(st.integers(0, 3), min_size=6, max_size=60), st.integers(2, 5))
def test_copies(tokens: list[int], prompt: int) -> None:
    """With rounds of seven tokens, which the copy point follows, to the last round."""
    known = Known(tokens[:prompt], tokens[prompt:], len(tokens) - prompt)
    text = Text(len(known.ids), known.limit, copies(known, Sampler(SamplingParams())))
    found = replay(text, None, [7])
    one = world([False] * len(known.ids), tuple(tokens), prompt)
    steps = run(one, fixed(7), VirtualClock(), [NgramDrafter()])
    assert row(found, 0, 7) == counted(steps, 7)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=14), st.integers(1, 4))
def test_expectations_are_those_of_enumeration(chances: list[float], length: int) -> None:
    """Every outcome of every guess, weighed with its probability."""
    chances = chances[:8]
    found = replay(Text(len(chances), len(chances)), np.array([chances]), [length])
    rounds, hits = 0.0, np.zeros(length)
    for code in range(2 ** len(chances)):
        outcome = [code >> at & 1 for at in range(len(chances))]
        weight = float(np.prod([p if hit else 1 - p for p, hit in zip(chances, outcome, strict=True)]))
        one = replay(Text(len(chances), len(chances)), np.array([outcome], float), [length])
        rounds += weight * float(one.rounds[0])
        hits += weight * one.hits[0]
    assert found.rounds[0] == pytest.approx(rounds)
    assert found.hits[0] == pytest.approx(hits)


def test_positions_add_up() -> None:
    random = np.random.default_rng(1)
    proposed = random.integers(0, 5, 50).astype(np.int16)
    matched = np.minimum(np.minimum(random.integers(0, 5, 50), proposed), np.arange(50, 0, -1)).astype(np.int16)
    text = Text(50, 60, Copies(proposed, matched))
    found = replay(text, np.tile(random.random(50), (4, 1)), LENGTHS)
    assert found.tried_at.sum(axis=1) == pytest.approx(found.trials.sum(axis=1))
    assert found.hit_at.sum(axis=1) == pytest.approx(found.hits.sum(axis=1))
    assert found.tokens == pytest.approx(50.0)
    again = replay(text, np.tile(random.random(50), (4, 1)), LENGTHS, np.full(50, 0.5))
    assert again.tokens == pytest.approx(25.0), "weights count in all numbers alike"
    half = np.repeat([1.0, 0.0], 25)
    early = replay(text, None, LENGTHS, half)
    assert (early.tokens >= 25 - 1e-9).all() and (early.tokens <= 33).all(), "rounds that start in the first half"
    assert early.tried_at[:, 40:].sum() == 0.0


def test_a_text_that_ended_by_itself_leaves_more_room() -> None:
    """The last rounds may draft beyond its end."""
    short = replay(Text(3, 3), np.ones((1, 3)), [7])
    ended = replay(Text(3, 20), np.ones((1, 3)), [7])
    assert short.widths[0].tolist()[3] == 1.0, "two drafted tokens, and the last one is the target's"
    assert ended.widths[0].tolist()[8] == 1.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Text(5, 4), "limit of a text"),
        (lambda: Text(5, 5, Copies(np.zeros(4, np.int16), np.zeros(4, np.int16))), "copies"),
        (lambda: replay(Text(5, 5), np.zeros((1, 4)), [2]), "accept"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        make()
