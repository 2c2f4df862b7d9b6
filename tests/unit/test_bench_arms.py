"""Arms as words: products, names that read back, and refusals that say what is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.bench.arms import Arm, check_models, default_arms, parse_arms
from foredraft.errors import InvalidValue
from foredraft.policy import Policy


def names(*texts: str) -> list[str]:
    return [str(arm) for arm in parse_arms(texts)]


def test_one_word_one_arm() -> None:
    assert parse_arms(["ngram+model:fixed:7:tree=16"]) == [Arm(("ngram", "model"), "fixed", 7, 16)]
    assert parse_arms(["model2"]) == [Arm(("model2",), "cost")]
    assert parse_arms([" ngram : cost : 5 "]) == [Arm(("ngram",), "cost", 5)]
    assert parse_arms(["ngram:threshold"])[0].policy == Policy("threshold")
    assert parse_arms(["model:cost:tree=off"])[0].policy == Policy("cost", None, 0)
    assert parse_arms(["model:cost:tree=auto"])[0].policy == Policy("cost", None, None)


def test_commas_multiply() -> None:
    assert names("ngram,model:fixed:2,4") == ["ngram:fixed:2", "ngram:fixed:4", "model:fixed:2", "model:fixed:4"]
    assert names("model:cost,threshold") == ["model:cost", "model:threshold"]
    assert names("model:fixed:4,7:tree=0,8") == [
        "model:fixed:4",
        "model:fixed:4:tree=8",
        "model:fixed:7",
        "model:fixed:7:tree=8",
    ]


def test_each_arm_once_in_order() -> None:
    assert names("ngram:fixed:4", "ngram:cost", "ngram:fixed:2,4") == ["ngram:fixed:4", "ngram:cost", "ngram:fixed:2"]


@given(
    st.sampled_from([("ngram",), ("model",), ("ngram", "model12"), ("model3", "ngram"), ("ngram", "head")]),
    st.one_of(
        st.tuples(st.just("fixed"), st.integers(1, 256), st.one_of(st.none(), st.integers(1, 256))),
        st.tuples(
            st.just("cost"), st.one_of(st.none(), st.integers(0, 256)), st.one_of(st.none(), st.integers(0, 256))
        ),
        st.just(("threshold", None, None)),
    ),
)
def test_a_name_reads_back(drafts: tuple[str, ...], rest: tuple[str, int | None, int | None]) -> None:
    arm = Arm(drafts, *rest)  # type: ignore[arg-type]
    assert parse_arms([str(arm)]) == [arm]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the drafts ngram, head, model"),
        ("qwen:cost", "the drafts ngram, head, model"),
        ("model1:cost", "the drafts ngram, head, model"),
        ("none", "plain decoding always runs"),
        ("plain:fixed:4", "plain decoding always runs"),
        ("ngram+ngram:cost", "each draft once"),
        ("model+model2:cost", "one draft model or head at most"),
        ("head+model:cost", "one draft model or head at most"),
        ("ngram:best", "controllers cost, threshold, fixed"),
        ("ngram:fixed", "a length of at least 1"),
        ("ngram:fixed:0", "a length of at least 1"),
        ("ngram:fixed:four", "DRAFTS:CONTROLLER"),
        ("ngram:fixed:4:8", "DRAFTS:CONTROLLER"),
        ("ngram:fixed:-1", "DRAFTS:CONTROLLER"),
        ("ngram:threshold:4", "threshold without a length"),
        ("ngram:threshold:tree=4", "threshold without a length"),
        ("ngram:fixed:4:tree=big", "tree=auto, tree=off or a number"),
        ("ngram:tree=8:fixed:4", "DRAFTS:CONTROLLER"),
    ],
)
def test_a_wrong_word_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidValue, match="--arm is") as found:
        parse_arms([text])
    assert words in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize("text", ["ngram:fixed:300", "ngram:fixed:4:tree=300", "ngram:cost:300"])
def test_numbers_are_checked_at_once(text: str) -> None:
    with pytest.raises(InvalidValue, match="is 300"):
        parse_arms([text])


def test_defaults_sweep_fixed_lengths_and_let_cost_choose() -> None:
    assert [str(arm) for arm in default_arms(0)] == ["ngram:fixed:2", "ngram:fixed:4", "ngram:fixed:7", "ngram:cost"]
    found = [str(arm) for arm in default_arms(2)]
    assert "model2:fixed:7" in found and found[-2:] == ["ngram+model:cost", "ngram+model2:cost"]


def test_a_head_is_an_arm_of_its_own() -> None:
    [arm] = parse_arms(["ngram+head:fixed:3"])
    assert arm.head and arm.model is None
    assert [str(arm) for arm in default_arms(0, head=True)][-1] == "ngram+head:cost"
    check_models([arm], 0, "t", head=True)
    with pytest.raises(InvalidValue, match="--draft head or --draft DIR"):
        check_models([arm], 3, "t")


def test_models_must_be_there() -> None:
    arms = parse_arms(["ngram:cost", "model2:fixed:4"])
    check_models(arms, 2, "t")
    with pytest.raises(InvalidValue, match=r"model2:fixed:4.*t has 1"):
        check_models(arms, 1, "t")
    with pytest.raises(InvalidValue, match="give one with --draft"):
        check_models(arms, 0, "t")
