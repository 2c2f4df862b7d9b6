"""Detokenizing piece by piece, and stop strings that trim ids and text alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import InvalidValue
from foredraft.tokens import IncrementalDetokenizer, StopEvent, StopScanner, TextStream, Tokenizer, check_id
from tests.support.toy_tokenizer import BYTE_0, ToyTokenizer

TOY = ToyTokenizer()


def spell(ids: Sequence[int]) -> bytes:
    return b"".join(TOY.piece(id) for id in ids)


def scan(stops: Sequence[str], ids: Sequence[int]) -> tuple[list[int], StopEvent | None, int]:
    """Push until a stop; returns shown ids, the stopping event and the number of pushed tokens."""
    scanner = StopScanner(stops, TOY)
    shown: list[int] = []
    for count, id in enumerate(ids, 1):
        event = scanner.push(id)
        shown += event.released
        if event.stopped is not None:
            return shown, event, count
    shown += scanner.finish()
    return shown, None, len(ids)


def naive_match(text: bytes, stops: Sequence[str]) -> tuple[int, int] | None:
    """(start, end) of the match that ends first, the longest of those that end there."""
    found = [
        (end, start)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop.encode(), start)
        for end in [start + len(stop.encode())]
    ]
    return (min(found)[1], min(found)[0]) if found else None


def test_toy_tokenizer_is_a_tokenizer_and_splits_by_longest_match() -> None:
    tokenizer: Tokenizer = TOY
    ids = tokenizer.encode("abca", add_special=True, parse_special=False)
    assert ids == [1, *TOY.ids_of("abc", "a")]
    assert spell(ids) == b"abca"


@pytest.mark.parametrize("id", [-1, TOY.vocab_size, 2**31])
def test_id_outside_the_vocabulary_is_named_with_the_allowed_range(id: int) -> None:
    with pytest.raises(InvalidValue, match=rf"token id is {id}; allowed: an integer in \[0, {TOY.vocab_size}\)"):
        check_id(id, TOY.vocab_size)


def test_character_split_over_tokens_appears_when_complete() -> None:
    detokenizer = IncrementalDetokenizer(TOY)
    first, second = TOY.ids_of(b"\xf0\x9f", b"\x8e\x89")
    assert detokenizer.push(first) == ""
    assert detokenizer.push(second) == "🎉"
    assert detokenizer.flush() == ""


def test_incomplete_tail_becomes_one_replacement_character_and_the_detokenizer_starts_anew() -> None:
    detokenizer = IncrementalDetokenizer(TOY)
    assert detokenizer.push(TOY.id_of(b"\xf0\x9f")) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.push(TOY.id_of("a")) == "a"


def test_invalid_bytes_never_raise() -> None:
    detokenizer = IncrementalDetokenizer(TOY)
    assert "".join(detokenizer.push(BYTE_0 + value) for value in (0xFF, 0x61, 0xC3, 0x28)) == "\ufffda\ufffd("


def test_control_tokens_are_shown_only_on_request() -> None:
    assert IncrementalDetokenizer(TOY).push(3) == ""
    assert IncrementalDetokenizer(TOY, special=True).push(3) == "<|turn|>"


def test_end_token_that_the_file_calls_normal_is_not_shown() -> None:
    tokenizer = replace(TOY.with_token(4, b"<|end|>", "normal"))
    assert TextStream(tokenizer).push([TOY.id_of("a"), 4]) == "a"
    scanner = StopScanner(["<|end|> "], tokenizer)
    assert scanner.push(4).released == (4,)


@given(st.lists(st.integers(0, TOY.vocab_size - 1) | st.integers(BYTE_0 + 0x80, BYTE_0 + 0xFF)))
def test_pushes_and_flush_equal_decoding_everything_at_once(ids: list[int]) -> None:
    detokenizer = IncrementalDetokenizer(TOY)
    text = "".join(detokenizer.push(id) for id in ids) + detokenizer.flush()
    assert text == spell(ids).decode("utf-8", "replace")


@given(st.text(), st.integers(1, 3))
def test_no_push_ends_inside_a_character(text: str, chunk: int) -> None:
    data = text.encode("utf-8", "replace")
    detokenizer = IncrementalDetokenizer(TOY)
    pieces = [detokenizer.push_bytes(data[at : at + chunk]) for at in range(0, len(data), chunk)]
    assert "".join(pieces) == data.decode()
    assert detokenizer.flush() == ""


def test_without_stops_every_token_is_released_at_once() -> None:
    scanner = StopScanner([], TOY)
    assert scanner.push(TOY.id_of("a")) == StopEvent((TOY.id_of("a"),))
    assert scanner.finish() == ()


def test_stop_over_several_tokens_drops_exactly_the_tokens_behind_the_cut() -> None:
    """Case F3: ids are the tokens of the shown text."""
    ids = TOY.ids_of(" the", " cat", " ha", " ha", " ha", " the")
    shown, event, pushed = scan([" ha ha ha"], ids)
    assert shown == TOY.ids_of(" the", " cat")
    assert event == StopEvent((), " ha ha ha", 0, tuple(TOY.ids_of(" ha", " ha", " ha")))
    assert pushed == 5


def test_token_with_one_shown_byte_stays_and_its_other_bytes_are_hidden() -> None:
    ids = TOY.ids_of(" cat", "abc", "STOP")
    scanner = StopScanner(["bcST"], TOY)
    assert scanner.push(ids[0]).released == (ids[0],)
    assert scanner.push(ids[1]).released == ()
    event = scanner.push(ids[2])
    assert event == StopEvent((ids[1],), "bcST", 2, (ids[2],))
    stream = TextStream(TOY)
    assert stream.push([ids[0]]) + stream.push(event.released, event.hidden_bytes) + stream.finish() == " cata"


def test_stop_inside_one_token_hides_the_rest_of_it() -> None:
    shown, event, _ = scan(["b"], TOY.ids_of("a", "abc"))
    assert shown == TOY.ids_of("a", "abc")
    assert event == StopEvent(tuple(TOY.ids_of("abc")), "b", 2)


def test_broken_off_partial_match_is_released_as_soon_as_it_cannot_match() -> None:
    scanner = StopScanner(["aab"], TOY)
    a, b, space = TOY.ids_of("a", "b", " ")
    assert [scanner.push(id).released for id in (a, a, a)] == [(), (), (a,)]
    assert scanner.push(space).released == (a, a, space)
    assert scanner.push(b).released == (b,)


def test_waiting_tokens_come_out_at_the_end() -> None:
    shown, event, _ = scan(["abcSTOP"], TOY.ids_of("ab", "abc"))
    assert (shown, event) == (TOY.ids_of("ab", "abc"), None)


def test_shorter_stop_wins_when_it_completes_first_and_longer_when_both_end_together() -> None:
    _, event, _ = scan(["abcS", "b"], TOY.ids_of("abc", "STOP"))
    assert event is not None
    assert event.stopped == "b"
    _, event, _ = scan(["c", "bc"], TOY.ids_of("abc"))
    assert event is not None
    assert (event.stopped, event.hidden_bytes) == ("bc", 2)


def test_stop_string_of_multibyte_characters_over_byte_tokens() -> None:
    shown, event, _ = scan(["日🎉"], [*TOY.ids_of("é", "日"), *TOY.ids_of(b"\xf0\x9f", b"\x8e\x89")])
    assert shown == TOY.ids_of("é")
    assert event is not None
    assert event.stopped == "日🎉"
    assert len(event.dropped) == 3


def test_control_token_before_the_match_stays_and_inside_the_match_goes() -> None:
    a, b, turn = TOY.ids_of("a", "b", "<|turn|>")
    shown, event, _ = scan(["ab"], [turn, a, turn, b])
    assert shown == [turn]
    assert event is not None
    assert event.dropped == (a, turn, b)


def test_control_token_at_the_cut_stays_even_if_it_had_to_wait() -> None:
    a, b, turn = TOY.ids_of("a", "b", "<|turn|>")
    shown, event, _ = scan(["aax", "ab"], [a, turn, a, b])
    assert shown == [a, turn]
    assert event == StopEvent((a, turn), "ab", 0, (a, b))


def test_control_token_spelt_like_a_stop_string_stops() -> None:
    a, turn = TOY.ids_of("a", "<|turn|>")
    shown, event, _ = scan(["<|turn|>", "ab"], [a, turn])
    assert shown == [a]
    assert event == StopEvent((a,), "<|turn|>", 0, (turn,))


def test_scanner_remembers_no_text_that_cannot_match_any_more() -> None:
    scanner = StopScanner(["STOP"], TOY)
    for _ in range(10_000):
        assert len(scanner.push(TOY.id_of("ab")).released) == 1
    assert len(scanner._waiting) == 0


@pytest.mark.parametrize("stops", [[""], ["a", ""], "abc", ["\ud800"]])
def test_unusable_stop_strings_are_refused(stops: Sequence[str]) -> None:
    with pytest.raises(InvalidValue, match="allowed: "):
        StopScanner(stops, TOY)


LETTERS = st.text("abé", min_size=1, max_size=4)
TOKENS = st.sampled_from([*TOY.ids_of("a", "b", "ab", "abc", "é", "<|turn|>"), BYTE_0 + 0xC3, BYTE_0 + 0xA9])


@given(st.lists(LETTERS, max_size=4), st.lists(TOKENS, max_size=30))
def test_scanner_equals_searching_the_whole_text(stops: list[str], ids: list[int]) -> None:
    shown, event, pushed = scan(stops, ids)
    match = naive_match(spell(ids), stops)
    if match is None:
        assert event is None
        assert shown == ids
        return
    assert event is not None
    assert event.stopped is not None
    start, end = match
    assert event.stopped.encode() == spell(ids)[start:end]
    assert len(spell(ids[: pushed - 1])) < end <= len(spell(ids[:pushed]))
    ends = [len(spell(ids[:count])) for count in range(pushed + 1)]
    assert len(shown) == sum(ends[at] < start or ends[at + 1] <= start for at in range(pushed))
    text = spell(shown)
    assert text[: len(text) - event.hidden_bytes] == spell(ids)[:start]
    assert shown == ids[: len(shown)]
    assert [*shown, *event.dropped] == ids[:pushed]
    if event.hidden_bytes:
        assert event.hidden_bytes < len(TOY.piece(shown[-1]))


@given(st.lists(LETTERS, max_size=4), st.lists(TOKENS, max_size=30))
def test_scanner_holds_back_no_more_than_a_possible_match(stops: list[str], ids: list[int]) -> None:
    scanner = StopScanner(stops, TOY)
    released = 0
    for count, id in enumerate(ids, 1):
        event = scanner.push(id)
        if event.stopped is not None:
            return
        released += len(event.released)
        text = spell(ids[:count])
        tails = (text[at:] for at in range(len(text)))
        held = next((len(tail) for tail in tails if any(s.encode().startswith(tail) for s in stops)), 0)
        oldest_waiting = ids[released:count]
        assert not oldest_waiting or len(spell(ids[: released + 1])) > len(text) - held


def test_text_stream_joins_ids_and_hides_the_stop() -> None:
    stream = TextStream(TOY)
    text = stream.push(TOY.ids_of(" the", b"\xf0\x9f"))
    text += stream.push(TOY.ids_of(b"\x8e\x89", "abc"), hidden_bytes=2)
    assert text + stream.finish() == " the🎉a"


def test_text_stream_flushes_an_incomplete_character() -> None:
    stream = TextStream(TOY)
    assert stream.push(TOY.ids_of(b"\xf0\x9f")) == ""
    assert stream.finish() == "\ufffd"
