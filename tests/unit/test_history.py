"""History: incremental counts equal those of the whole text, along any walk."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.sampling import History

TOKENS = st.integers(0, 4)


def check(history: History, prompt: list[int], output: list[int], window: int) -> None:
    text = prompt + output
    start = max(0, len(text) - window) if window else 0
    assert list(history.tokens) == text
    assert len(history) == len(text)
    assert history.generated == len(output)
    assert history.seen == dict(Counter(text[start:]))
    assert history.output == dict(Counter(text[max(start, len(prompt)) :]))


@settings(max_examples=200)
@given(
    prompt=st.lists(TOKENS, max_size=8),
    window=st.integers(0, 6),
    moves=st.lists(TOKENS | st.none(), max_size=30),
)
def test_walks(prompt: list[int], window: int, moves: list[int | None]) -> None:
    """None takes the last generated token back."""
    history = History(prompt, window)
    output: list[int] = []
    check(history, prompt, output, window)
    for move in moves:
        if move is not None:
            history.push(move)
            output.append(move)
        elif output:
            assert history.pop() == output.pop()
        check(history, prompt, output, window)


@settings(max_examples=100)
@given(
    prompt=st.lists(TOKENS, min_size=1, max_size=6),
    window=st.integers(0, 5),
    kept=st.lists(TOKENS, max_size=4),
    path=st.lists(TOKENS, max_size=8),
)
def test_tree_path_and_back(prompt: list[int], window: int, kept: list[int], path: list[int]) -> None:
    history = History(prompt, window)
    for token in kept:
        history.push(token)
    before = dict(history.seen), dict(history.output)
    for token in path:
        history.push(token)
    history.shrink(len(prompt) + len(kept))
    assert (history.seen, history.output) == before
    check(history, prompt, kept, window)


def test_shrink_to_more_than_there_is_does_nothing() -> None:
    history = History([1, 2])
    history.shrink(9)
    assert list(history.tokens) == [1, 2]


@pytest.mark.parametrize("window", [0, 3])
def test_prompt_may_be_any_iterable(window: int) -> None:
    history = History(iter([1, 1, 2]), window)
    assert history.seen == {1: 2, 2: 1}
    assert history.output == {}
    assert history.prompt_length == 3


def test_window_of_one_sees_the_last_token_only() -> None:
    history = History([7, 8], 1)
    assert (history.seen, history.output) == ({8: 1}, {})
    history.push(9)
    assert (history.seen, history.output) == ({9: 1}, {9: 1})
    history.pop()
    assert (history.seen, history.output) == ({8: 1}, {})
