"""Counts of accepted tokens: what is refused, what merging may not change, what JSON keeps."""

from __future__ import annotations

import doctest
import json
from itertools import permutations
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import InvalidValue
from foredraft.profile import advice, checks, counts, distributions, intervals, stats
from foredraft.profile.counts import BANDS, Sums, TextCounts, as_json, by_kind, distinct, from_json, merge

NUMBER = st.floats(0.0, 1e6)
SHARE = st.floats(0.0, 1.0)


@st.composite
def text_counts(draw: st.DrawFn) -> TextCounts:
    """Any counts that may be, of one of few texts."""
    trials, hits = [], []
    reached = draw(NUMBER)
    for _ in range(draw(st.integers(0, 4))):
        trials.append(reached * draw(SHARE))
        hits.append(trials[-1] * draw(SHARE))
        reached = hits[-1]
    band_trials = tuple(draw(NUMBER) for _ in BANDS)
    band_hits = tuple(each * draw(SHARE) for each in band_trials)
    key, kind = draw(st.sampled_from("abcdef")), draw(st.sampled_from(("code", "chat")))
    return TextCounts(key, kind, draw(NUMBER), draw(NUMBER), tuple(hits), tuple(trials), band_hits, band_trials)


TEXTS = st.lists(text_counts(), max_size=5)


def counts_of(key: str, hits: tuple[float, ...], trials: tuple[float, ...], **more: Any) -> TextCounts:
    rest = (0.0,) * (len(BANDS) - 1)
    bands = (sum(hits), *rest), (sum(trials), *rest)
    return TextCounts(key, more.get("kind", "code"), more.get("tokens", 100.0), 40.0, hits, trials, *bands)


@pytest.mark.parametrize("module", [advice, checks, counts, distributions, intervals, stats])
def test_docstring_examples(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert (result.failed, result.attempted > 0) == (0, True)


@pytest.mark.parametrize(
    ("hits", "trials", "named"),
    [
        ((5.0,), (4.0,), "hits"),
        ((5.0,), (6.0, 5.0), "hits"),
        ((-1.0,), (6.0,), "hits"),
        ((float("nan"),), (6.0,), "hits"),
        ((5.0,), (float("inf"),), "trials"),
        ((5.0, 1.0), (6.0, 5.5), "trials"),  # depth 2 was evaluated more often than depth 1 was accepted
    ],
)
def test_impossible_counts_are_refused(hits: tuple[float, ...], trials: tuple[float, ...], named: str) -> None:
    with pytest.raises(InvalidValue) as error:
        counts_of("a", hits, trials)
    assert error.value.name == named
    assert "\n" not in str(error.value)


def test_rounding_in_expected_counts_is_let_pass() -> None:
    counts_of("a", (6.0 + 1e-9, 6.0), (6.0, 6.0 + 2e-9))


def test_bands_are_as_many_as_they_are() -> None:
    with pytest.raises(InvalidValue, match="4 numbers"):
        TextCounts("a", "code", 1, 1, (), (), (1.0,), (1.0,))
    with pytest.raises(InvalidValue, match="tokens is -1"):
        TextCounts("a", "code", -1, 1, (), (), (0,) * 4, (0,) * 4)


# --- merging -----------------------------------------------------------------------------------------------


@given(one=TEXTS, two=TEXTS, three=TEXTS)
def test_merging_is_associative_commutative_and_idempotent(
    one: list[TextCounts], two: list[TextCounts], three: list[TextCounts]
) -> None:
    whole = merge(one, two, three)
    assert merge(merge(one, two), three) == merge(one, merge(two, three)) == whole
    assert all(merge(*order) == whole for order in permutations((one, two, three)))
    assert merge(whole, whole) == whole
    assert len({text.text for text in whole}) == len(whole)


def test_a_text_given_twice_counts_once_and_its_longer_record_wins() -> None:
    short, long = counts_of("a", (4.0,), (8.0,), tokens=50.0), counts_of("a", (9.0,), (16.0,), tokens=100.0)
    other = counts_of("b", (1.0,), (2.0,))
    assert distinct([short, other, long]) == (long, other)
    twice, once = stats.alpha([long, long, other]), stats.alpha([long, other])
    assert twice == once
    assert stats.summarise([long, long, other]).tokens == 200.0
    assert intervals.Jackknife([long, long, other]).texts == 2


def test_kinds_keep_their_order() -> None:
    texts = [counts_of(key, (1.0,), (2.0,), kind=kind) for key, kind in (("a", "zeta"), ("b", "alpha"), ("c", "zeta"))]
    assert [(kind, len(group)) for kind, group in by_kind(texts).items()] == [("zeta", 2), ("alpha", 1)]


# --- JSON --------------------------------------------------------------------------------------------------


@given(texts=TEXTS)
def test_json_gives_the_same_back(texts: list[TextCounts]) -> None:
    assert from_json(json.loads(json.dumps(as_json(texts), allow_nan=False))) == tuple(texts)


def test_numpy_numbers_become_plain_ones() -> None:
    row = np.array([3.0, 4.0])
    text = TextCounts("a", "code", row[0], row[1], tuple(row[:1]), tuple(row[1:]), (0,) * 4, (0,) * 4)
    assert json.loads(json.dumps(as_json([text])))[0]["hits"] == [3.0]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELD = st.sampled_from(("text", "kind", "tokens", "rounds", "hits", "trials", "band_hits", "band_trials"))


@given(name=FIELD, value=PLAIN, text=text_counts())
def test_foreign_json_gives_the_projects_error_or_counts(name: str, value: object, text: TextCounts) -> None:
    for data in ([text.as_json() | {name: value}], value, [value]):
        try:
            found = from_json(data)
        except InvalidValue as error:
            words = str(error)
        else:
            words = f"counts of {len(found)} texts"
        assert words.startswith("counts") and "\n" not in words


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "counts is 'dict'; allowed: a list"),
        ([3], r"counts\[0\] is 'int'"),
        ([counts_of("a", (1.0,), (2.0,)).as_json(), {"text": "b"}], r"counts\[1\].kind is None; allowed: a text"),
        ([counts_of("a", (1.0,), (2.0,)).as_json() | {"hits": [True]}], r"counts\[0\].hits\[0\] is True"),
        ([counts_of("a", (1.0,), (2.0,)).as_json() | {"hits": [3]}], r"counts\[0\].hits is \[3.0\]"),
        ([counts_of("a", (1.0,), (2.0,)).as_json() | {"tokens": 10**400}], "a number below 1e308"),
    ],
)
def test_damage_is_named_with_its_place(data: object, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        from_json(data)


# --- sums --------------------------------------------------------------------------------------------------


def test_texts_of_different_depth_add_up() -> None:
    total = Sums.of([counts_of("a", (6.0,), (8.0,)), counts_of("b", (3.0, 2.0), (4.0, 3.0))]).total
    assert total.hits.tolist() == [[9.0, 2.0]]
    assert total.trials.tolist() == [[12.0, 3.0]]
    assert total.acceptance[0].tolist() == pytest.approx([0.75, 2 / 3])
    assert total.alpha.tolist() == pytest.approx([11 / 15])
    assert total.band_hits.tolist() == [[11.0, 0.0, 0.0, 0.0]]
    assert total.band_trials.tolist() == [[15.0, 0.0, 0.0, 0.0]]
    assert (total.tokens.tolist(), total.rounds.tolist()) == ([200.0], [80.0])


def test_no_texts_are_sums_of_nothing() -> None:
    assert Sums.of([]).total.alpha.tolist() == [0.0]
