"""Which drafts fit which targets; every rule has its own code and values (cases C1, C2, C4, C5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foredraft.cli.pair_check import _ranges, _spans
from foredraft.errors import PairMismatch
from foredraft.pair import Problem, check_pair, real_size
from tests.support.toy_tokenizer import BYTE_0, ToyToken, ToyTokenizer

TOY = ToyTokenizer()
REAL = TOY.vocab_size - 3


def test_equal_vocabularies_fit_and_only_padding_is_barred() -> None:
    report = check_pair(TOY, ToyTokenizer())
    assert report.ok
    assert report.warnings == ()
    assert report.shared_size == REAL
    assert report.barred == {REAL, REAL + 1, REAL + 2}
    report.raise_if_bad("target", "draft")


def test_padding_up_to_128_rows_apart_fits_and_129_does_not() -> None:
    """Case C1, with its sizes: 152064 and 151936 rows fit, 151935 do not."""
    words = tuple(ToyToken(b"w%d" % id) for id in range(151665))

    def sized(rows: int) -> ToyTokenizer:
        padding = tuple(ToyToken(b"[PAD%d]" % id, "unused") for id in range(151665, rows))
        return replace(TOY, table=words + padding)

    target = sized(152064)
    report = check_pair(target, sized(151936))
    assert report.ok
    assert report.shared_size == 151665
    assert report.barred == frozenset(range(151665, 152064))
    assert check_pair(target, sized(151935)).problems == (
        Problem("vocab_size_differs", "target=152064 draft=151935 difference=129 allowed=128"),
    )


def test_size_rule_is_symmetric() -> None:
    small, large = TOY.with_padding(0), TOY.with_padding(129)
    assert [problem.code for problem in check_pair(small, large).problems] == ["vocab_size_differs"]
    assert check_pair(small, TOY.with_padding(128)).ok


@pytest.mark.parametrize(
    "text", [b"[PAD12]", b"[PAD]", b"[pad3]", b"<|dummy_5|>", b"<unused0>", b"<|unused_7|>", b"<UNUSED_1>"]
)
def test_trailing_padding_is_recognised_by_its_name(text: bytes) -> None:
    tokenizer = replace(TOY, table=(*TOY.with_padding(0).table, ToyToken(text, "control")))
    assert real_size(tokenizer) == REAL


@pytest.mark.parametrize("text", [b"<|im_end|>", b"unused", b"[PAD", b"<|unused", b"dummy"])
def test_other_trailing_tokens_are_real(text: bytes) -> None:
    tokenizer = replace(TOY, table=(*TOY.with_padding(0).table, ToyToken(text)))
    assert real_size(tokenizer) == REAL + 1


def test_unused_rows_in_the_middle_are_no_padding_and_an_all_padding_vocabulary_is_empty() -> None:
    assert real_size(TOY.with_token(BYTE_0, b"[PAD5]", "unused")) == REAL
    assert real_size(replace(TOY, table=(ToyToken(b"[PAD0]", "unused"),))) == 0


def test_tokens_that_only_one_side_has_are_barred_and_noted() -> None:
    """Case C2: the draft may never propose an id that is no token in both."""
    longer = replace(TOY, table=(*TOY.table[:REAL], ToyToken(b"<tool>"), *TOY.table[REAL + 1 :]))
    report = check_pair(longer, TOY)
    assert report.ok
    assert report.shared_size == REAL
    assert REAL in report.barred
    assert report.warnings == (
        Problem(
            "real_size_differs",
            f"target={REAL + 1} draft={REAL}: the draft never proposes ids from {REAL} up",
        ),
    )


def test_one_odd_word_is_named_with_its_number() -> None:
    """Case C5: the report says which token of how many differs."""
    id = TOY.id_of(" cat")
    report = check_pair(TOY, TOY.with_token(id, b" dog"))
    assert report.problems == (
        Problem("token_text_differs", f"id={id} target=' cat' draft=' dog' (1 of {REAL} differs)"),
    )
    assert id in report.barred


def test_differing_words_stay_a_problem_even_when_differences_are_allowed() -> None:
    report = check_pair(TOY, TOY.with_token(TOY.id_of(" cat"), b" dog"), allow_differing=True)
    assert [problem.code for problem in report.problems] == ["token_text_differs"]


@pytest.mark.parametrize("attribute", ["control", "unused", "unknown"])
def test_differing_wordless_tokens_are_barred_when_allowed(attribute: str) -> None:
    target = TOY.with_token(100, b"<|left|>", "control")
    draft = TOY.with_token(100, b"<|right|>", attribute)  # type: ignore[arg-type]
    refused, allowed = check_pair(target, draft), check_pair(target, draft, allow_differing=True)
    assert not refused.ok
    assert allowed.ok
    assert 100 in allowed.barred
    assert allowed.warnings == (
        Problem("token_text_differs", f"id=100 target='<|left|>' draft='<|right|>' (1 of {REAL} differs)"),
    )


def test_token_that_is_a_word_on_one_side_is_not_forgiven() -> None:
    target, draft = TOY.with_token(100, b"<|left|>", "control"), TOY.with_token(100, b"left", "normal")
    assert not check_pair(target, draft, allow_differing=True).ok
    assert not check_pair(draft, target, allow_differing=True).ok


def test_mixed_differences_count_only_the_unforgiven_ones() -> None:
    target = TOY.with_token(100, b"<|x|>", "control").with_token(TOY.id_of(" cat"), b" dog")
    draft = TOY.with_token(100, b"<|y|>", "control")
    strict, lenient = check_pair(target, draft), check_pair(target, draft, allow_differing=True)
    assert "(2 of" in strict.problems[0].text
    assert "id=100" in strict.problems[0].text
    assert "(1 of" in lenient.problems[0].text
    assert f"id={TOY.id_of(' cat')}" in lenient.problems[0].text


def test_ids_below_five_may_be_renamed_but_are_barred() -> None:
    report = check_pair(TOY, TOY.with_token(3, b"<|user|>").with_token(4, b"<|stop|>"))
    assert report.ok
    assert {3, 4} <= report.barred
    assert report.warnings[0].text == f"id=3 target='<|turn|>' draft='<|user|>' (2 of {REAL} differ)"
    assert check_pair(TOY, TOY.with_token(5, b"<0xFF>")).problems[0].code == "token_text_differs"


def test_bytes_that_are_no_text_are_shown_escaped() -> None:
    report = check_pair(TOY, TOY.with_token(TOY.id_of(" cat"), b"\xff"))
    assert "draft='\\\\xff'" in report.problems[0].text


@pytest.mark.parametrize(
    ("draft", "problem"),
    [
        (replace(TOY, kind="spm"), Problem("vocab_type_differs", "target=toy draft=spm")),
        (replace(TOY, add_bos=False), Problem("add_bos_differs", "target=true draft=false")),
        (replace(TOY, add_eos=True), Problem("add_eos_differs", "target=false draft=true")),
        (replace(TOY, bos_id=2), Problem("bos_differs", "target=1 draft=2")),
        (replace(TOY, bos_id=None), Problem("bos_differs", "target=1 draft=None")),
    ],
)
def test_each_rule_has_its_own_code_and_values(draft: ToyTokenizer, problem: Problem) -> None:
    """Case C4: a failing rule never hides behind another one's message."""
    assert check_pair(TOY, draft).problems == (problem,)


def test_eos_ids_matter_only_where_eos_is_added() -> None:
    other = replace(TOY, eos_id=4)
    assert check_pair(TOY, other).ok
    problems = check_pair(replace(TOY, add_eos=True), replace(other, add_eos=True)).problems
    assert problems == (Problem("eos_differs", "target=2 draft=4"),)


def test_bos_ids_do_not_matter_where_bos_is_not_added() -> None:
    assert check_pair(replace(TOY, add_bos=False), replace(TOY, add_bos=False, bos_id=2)).ok


def test_other_end_tokens_and_templates_are_only_noted() -> None:
    report = check_pair(TOY, replace(TOY, eog_ids=frozenset({2}), chat_template=None))
    assert report.ok
    assert report.warnings == (
        Problem("end_tokens_differ", "target=[2, 4] draft=[2]: the target's count"),
        Problem("chat_template_differs", "the target's is used for both"),
    )


def test_error_is_one_line_with_names_first_problem_and_number_of_others() -> None:
    report = check_pair(TOY, replace(TOY, kind="spm", add_bos=False, add_eos=True))
    with pytest.raises(PairMismatch) as caught:
        report.raise_if_bad("big", "small")
    assert str(caught.value) == (
        "draft small does not fit target big: vocab_type_differs target=toy draft=spm (and 2 more); "
        "use a draft of the target's own model family, or draft without a model"
    )


def test_barred_ids_are_shown_as_ranges() -> None:
    assert _spans(_ranges(frozenset())) == "none"
    assert _spans(_ranges(frozenset({3, 4, 5, 9}))) == "3-5, 9"
    assert _spans(_ranges(frozenset(range(0, 20, 2)))) == "0, 2, 4, 6, 8, 10, and 4 more"
