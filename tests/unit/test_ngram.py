"""The copying drafter: which match it takes, what it copies, where it goes on, what a token costs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any, overload

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foredraft.drafters.ngram import NgramConfig, NgramDrafter
from foredraft.errors import InvalidValue
from foredraft.sampling import History, Sampler
from foredraft.trees import TreeBuilder, path_to
from foredraft.types import Budget, Draft, SamplingParams

GREEDY = Sampler(SamplingParams())
ALL_CANDIDATES = 4096
TEXTS = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=60),
    st.lists(st.integers(0, 3), min_size=1, max_size=80),
    st.builds(lambda part, times: part * times, st.lists(st.integers(0, 5), min_size=1, max_size=9), st.integers(1, 6)),
)
CONFIGS = st.sampled_from([(1, 1), (1, 4), (2, 3), (2, 16), (3, 7), (5, 5)])


bold = partial(NgramConfig, cautious=False)
"""Most tests ask where a copy goes, not how far."""


def propose(drafter: NgramDrafter, text: Sequence[int], budget: Budget) -> Draft:
    return drafter.propose(History(text), budget, GREEDY)


def fresh(text: Sequence[int], budget: Budget, config: NgramConfig | None = None) -> list[int]:
    tokens: list[int] = propose(NgramDrafter(config or bold()), text, budget).tokens.tolist()
    return tokens


def suffix_match(text: Sequence[int], end: int, most: int) -> int:
    """Length of the longest common suffix of ``text`` and ``text[:end]``, at most ``most``."""
    length = 0
    while length < min(most, end) and text[end - 1 - length] == text[len(text) - 1 - length]:
        length += 1
    return length


def copied(text: Sequence[int], end: int, count: int) -> list[int]:
    """``count`` tokens from ``end`` on, the copy itself included."""
    longer = list(text)
    for index in range(end, end + count):
        longer.append(longer[index])
    return longer[len(text) :]


def ranked_ends(text: Sequence[int], min_n: int, max_n: int) -> list[int]:
    """Ends of all earlier matches of at least ``min_n`` tokens: longest first, newest of equals first."""
    lengths = {end: suffix_match(text, end, max_n) for end in range(1, len(text))}
    ends = [end for end, length in lengths.items() if length >= min_n]
    return sorted(ends, key=lambda end: (lengths[end], end), reverse=True)


# --- which match -------------------------------------------------------------------------------------------


@given(TEXTS, CONFIGS, st.integers(1, 12))
@example([1, 2, 3] * 4, (2, 16), 12)
def test_the_longest_match_the_newest_of_equals(text: list[int], sizes: tuple[int, int], depth: int) -> None:
    ends = ranked_ends(text, *sizes)
    want = copied(text, ends[0], depth) if ends else []
    config = bold(*sizes, candidates=ALL_CANDIDATES)
    assert fresh(text, Budget.chain(depth), config) == want


@given(TEXTS, CONFIGS, st.integers(1, 12), st.integers(1, 5), st.integers(1, 5))
def test_several_matches_make_one_tree(
    text: list[int], sizes: tuple[int, int], nodes: int, depth: int, branches: int
) -> None:
    min_n, max_n = sizes
    ends = ranked_ends(text, min_n, max_n)
    longest = suffix_match(text, ends[0], max_n) if ends else 0
    levels = [min_n * 2**i for i in range(7) if min_n * 2**i <= max_n]
    level = max((n for n in levels if n <= longest), default=0)
    builder = TreeBuilder(nodes)
    for end in [end for end in ends if suffix_match(text, end, max_n) >= level][:branches]:
        builder.add(copied(text, end, depth))
    config = bold(min_n, max_n, candidates=ALL_CANDIDATES)
    draft = propose(NgramDrafter(config), text, Budget(nodes, depth, branches))
    assert (draft.tokens.tolist(), draft.parents.tolist()) == (builder.tokens, builder.parents)


@given(TEXTS, st.integers(1, 60), st.integers(1, 6))
def test_reading_in_pieces_changes_nothing(text: list[int], first: int, step: int) -> None:
    drafter = NgramDrafter(bold())
    for end in range(min(first, len(text)), len(text), step):
        propose(drafter, text[:end], Budget.chain(4))
    draft = propose(drafter, text, Budget(8, 4, 3))
    once = propose(NgramDrafter(bold()), text, Budget(8, 4, 3))
    assert (draft.tokens.tolist(), draft.parents.tolist()) == (once.tokens.tolist(), once.parents.tolist())


def test_newest_of_equals_by_hand() -> None:
    text = [7, 8, 1, 1, 7, 8, 2, 2, 7, 8]
    assert fresh(text, Budget.chain(3)) == [2, 2, 7]
    draft = propose(NgramDrafter(bold()), text, Budget(6, 2, 2))
    assert (draft.tokens.tolist(), draft.parents.tolist()) == ([2, 2, 1, 1], [-1, 0, -1, 2])


def test_longer_beats_newer() -> None:
    text = [9, 7, 8, 1, 5, 7, 8, 2, 9, 7, 8]
    assert fresh(text, Budget.chain(1)) == [1]
    assert fresh(text, Budget.chain(1), bold(2, 2)) == [2]


def test_only_so_many_candidates_are_compared() -> None:
    """The longest match is the oldest; two candidates per level do not reach it."""
    text = [6, 9, 7, 8, 1, *[5, 7, 8, 2] * 3, 6, 9, 7, 8]
    config = bold(2, 3, candidates=2)
    assert fresh(text, Budget.chain(1), config) == [2]
    assert fresh(text, Budget.chain(1), bold(2, 3, candidates=4)) == [1]


def test_a_common_prefix_is_drafted_once() -> None:
    text = [7, 8, 1, 3, 7, 8, 1, 4, 7, 8]
    draft = propose(NgramDrafter(bold()), text, Budget(8, 2, 2))
    assert (draft.tokens.tolist(), draft.parents.tolist()) == ([1, 4, 3], [-1, 0, 0])


@pytest.mark.parametrize("period", [1, 2, 3, 5])
def test_a_repeating_text_is_drafted_on(period: int) -> None:
    """The copy runs on into itself: a draft may be longer than what follows the match."""
    text = (list(range(10, 10 + period)) * 40)[: 4 * period + 1]
    want = [10 + (len(text) + i) % period for i in range(20)]
    assert fresh(text, Budget.chain(20)) == want


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3], [1, 1]])
def test_nothing_to_copy(text: list[int]) -> None:
    draft = propose(NgramDrafter(bold()), text, Budget.chain(4))
    assert (len(draft), draft.source, draft.laws) == (0, "ngram", None)
    assert draft.reason == "ngram: no earlier occurrence"


def test_nothing_of_the_last_request_is_left() -> None:
    drafter = NgramDrafter(bold())
    propose(drafter, [1, 2, 3, 4, 1, 2], Budget.chain(4))
    drafter.observe([0, 1])
    drafter.begin([5, 1, 2])
    assert len(propose(drafter, [5, 1, 2], Budget.chain(4))) == 0
    drafter.close()
    drafter.close()
    assert propose(drafter, [1, 2, 3, 1, 2], Budget.chain(2)).tokens.tolist() == [3, 1]


# --- how far -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("matched", "drafted"), [(2, 1), (3, 2), (5, 4), (9, 6)])
def test_a_short_match_is_trusted_less(matched: int, drafted: int) -> None:
    text = [*range(20), 99, *range(10 - matched, 10)]
    assert fresh(text, Budget.chain(6), NgramConfig()) == list(range(10, 10 + drafted))


@given(TEXTS, st.integers(1, 12), st.integers(1, 4))
def test_caution_only_shortens(text: list[int], depth: int, branches: int) -> None:
    budget = Budget(12, depth, branches)
    wary, whole = (propose(NgramDrafter(config), text, budget) for config in (NgramConfig(), bold()))
    assert (len(wary) == 0) == (len(whole) == 0)
    assert wary.tokens[:1].tolist() == whole.tokens[:1].tolist()


# --- what may not be copied --------------------------------------------------------------------------------


@given(TEXTS, st.frozensets(st.integers(0, 5), max_size=3), st.integers(1, 4))
def test_barred_ids_end_a_copy(text: list[int], barred: frozenset[int], branches: int) -> None:
    budget = Budget(12, 6, branches)
    draft = propose(NgramDrafter(bold(), barred=barred), text, budget)
    assert not barred & set(draft.tokens.tolist())
    open_draft = propose(NgramDrafter(bold()), text, Budget.chain(6))
    legal: list[int] = []
    for token in open_draft.tokens.tolist():
        if token in barred:
            break
        legal.append(token)
    main = [int(draft.tokens[node]) for node in path_to(draft.parents, len(legal) - 1)] if len(draft) else []
    assert not legal or main == legal


# --- going on where the last copy stopped ------------------------------------------------------------------

CODE = [20, 21, 22, 23, 24, 25, 26, 27, 28, 29]


def after_edit(config: NgramConfig) -> NgramDrafter:
    """CODE is in the prompt and was copied up to 23; then the target wrote 99 in place of 24."""
    drafter = NgramDrafter(config)
    text = [*CODE, 1, 20, 21]
    drafter.begin(text)
    assert propose(drafter, text, Budget.chain(4)).tokens.tolist() == [22, 23, 24, 25]
    drafter.observe([0, 1])
    return drafter


def test_copying_goes_on_after_an_edited_word() -> None:
    drafter = after_edit(bold())
    text = [*CODE, 1, 20, 21, 22, 23, 99]
    assert len(propose(drafter, text, Budget.chain(4))) == 0
    assert propose(drafter, [*text, 25], Budget.chain(4)).tokens.tolist() == [26, 27, 28, 29]


def test_copying_goes_on_after_an_inserted_word() -> None:
    drafter = after_edit(bold())
    assert propose(drafter, [*CODE, 1, 20, 21, 22, 23, 99, 24], Budget.chain(2)).tokens.tolist() == [25, 26]


def test_copying_does_not_go_on_when_it_is_off() -> None:
    drafter = after_edit(bold(resume=0))
    assert len(propose(drafter, [*CODE, 1, 20, 21, 22, 23, 99, 25], Budget.chain(4))) == 0


def test_the_copy_point_prefers_its_own_place() -> None:
    """24 25 stands twice; the newer place is not the one that is being copied."""
    drafter = NgramDrafter(bold())
    text = [*CODE, *range(30, 50), 24, 25, 60, 1, 20, 21]
    drafter.begin(text)
    assert propose(drafter, text, Budget.chain(2)).tokens.tolist() == [22, 23]
    drafter.observe([0, 1])
    text += [22, 23, 99, 24, 25]
    assert propose(drafter, text, Budget.chain(2)).tokens.tolist() == [26, 27]
    assert fresh(text, Budget.chain(2)) == [60, 1]


def test_the_copy_point_of_a_later_branch() -> None:
    """Two matches share their first token; the accepted second branch was copied from the older one: 30 comes next
    there. The target writes 99 instead, then 3: copying goes on behind the 3 that follows 30."""
    text = [7, 8, 1, 3, 30, 3, 50, 7, 8, 1, 4, 40, 7, 8]
    drafter = NgramDrafter(bold())
    drafter.begin(text)
    draft = propose(drafter, text, Budget(8, 2, 2))
    assert (draft.tokens.tolist(), draft.parents.tolist()) == ([1, 4, 3], [-1, 0, 0])
    drafter.observe([0, 2])
    assert propose(drafter, [*text, 1, 3, 99, 3], Budget.chain(1)).tokens.tolist() == [50]


@pytest.mark.parametrize(("copied", "goes_on"), [(2, False), (4, True)])
def test_a_rejected_copy_ends_a_short_run_of_copying_only(copied: int, goes_on: bool) -> None:
    """The copy point stays where it was; it counts as long as copying went well lately."""
    text = [*CODE, 1, 20, 21]
    drafter = NgramDrafter(bold())
    drafter.begin(text)
    assert propose(drafter, text, Budget.chain(4)).tokens.tolist() == [22, 23, 24, 25]
    drafter.observe(list(range(copied)))
    text += [*range(22, 22 + copied), 99, 27]
    assert propose(drafter, text, Budget.chain(2)).tokens.tolist() == [28, 29]
    drafter.observe([])
    assert propose(drafter, [*text, 98, 27], Budget.chain(2)).tokens.tolist() == ([28, 29] if goes_on else [])


# --- cost --------------------------------------------------------------------------------------------------


class Operations:
    """Counts the bytecode instructions of everything called while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Operations:
        self._before = sys.gettrace()
        sys.settrace(self._event)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _event(self, frame: FrameType, event: str, argument: object, /) -> Callable[..., Any]:
        frame.f_trace_opcodes = True
        self.count += event == "opcode"
        return self._event


class Counted(Sequence[int]):
    """A text that counts every token read, also in slices."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.reads = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        found = self.tokens[index]
        self.reads += len(found) if isinstance(found, list) else 1
        return found


class CountedHistory(History):
    """A history whose text counts its readers."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__(tokens)
        self.counted = Counted(self._tokens)

    @property
    def tokens(self) -> Sequence[int]:
        return self.counted


def texts_of_32k() -> Iterator[tuple[str, list[int]]]:
    random = np.random.default_rng(0)
    yield "random", random.integers(0, 50_000, 33_000).tolist()
    yield "few words", random.integers(0, 3, 33_000).tolist()
    yield "one word", [5] * 33_000
    yield "a period", [*range(20)] * 1650


@pytest.mark.parametrize(("kind", "text"), [pytest.param(*each, id=each[0]) for each in texts_of_32k()])
def test_a_token_costs_the_same_in_a_long_context(kind: str, text: list[int]) -> None:
    costs, steps = [], 8
    for start in (1_000, 32_000):
        drafter = NgramDrafter(bold())
        history = CountedHistory(text[:start])
        drafter.propose(history, Budget(16, 8, 4), GREEDY)
        with Operations() as operations:
            history.counted.reads = 0
            for token in text[start : start + steps]:
                history.push(token)
                drafter.observe([])
                drafter.propose(history, Budget(16, 8, 4), GREEDY)
        assert history.counted.reads <= 2 * steps
        costs.append(operations.count / steps)
    assert 500 < costs[1] <= 1.2 * costs[0] + 500
    assert costs[1] < 60_000


# --- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        {"min_n": 0},
        {"min_n": 5, "max_n": 4},
        {"max_n": 65},
        {"candidates": 0},
        {"candidates": 4097},
        {"resume": -1},
    ],
)
def test_settings_out_of_range(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="allowed"):
        NgramConfig(**setting)
