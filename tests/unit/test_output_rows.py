"""Choosing a draft's output rows: which, from which text, and every refusal in one line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.errors import InvalidValue
from foredraft.export.output_rows import (
    OutputRows,
    choose_rows,
    count_tokens,
    coverage,
    needed_rows,
    parse_rows,
    read_texts,
    resolve_rows,
    with_needed_rows,
)
from foredraft.export.sample import sample_text
from tests.support.toy_tokenizer import BYTE_0, ToyToken, ToyTokenizer, toy_table

TOY = ToyTokenizer()
NEEDED = needed_rows(TOY)
WORDS = TOY.ids_of("abc", " the", " cat", "日", "🎉")
CHARACTERS = "".join(TOY.piece(id).decode() for id in TOY.ids_of("a", "b", " ", "\n"))
UNUSED = [id for id in range(TOY.vocab_size) if TOY.attribute(id) == "unused"]


def refusal(error: pytest.ExceptionInfo[InvalidValue]) -> str:
    message = str(error.value)
    assert message.isprintable() and len(message) < 400
    return message


# The sample


def test_the_sample_mixes_prose_and_code_from_its_beginning() -> None:
    text = sample_text()
    assert 5000 < len(text) < 10_000 and text.endswith("\n")
    start = text[:900]  # about 250 tokens
    assert "an old woman in a green coat" in start and "```python" in start
    assert all(
        part in text for part in ("\nUser: ", "\n- ", "\n1. ", "\n## ", "\n| ", "```c\n", "SELECT ", '"paths": [')
    )


# Needed rows


def test_needed_are_ends_bytes_and_what_the_template_names() -> None:
    ends, turn = {2, 4}, 3
    single = TOY.ids_of(*CHARACTERS)
    assert {*ends, turn, *range(BYTE_0, BYTE_0 + 256), *single} == NEEDED


def test_without_a_template_no_turns() -> None:
    assert NEEDED - needed_rows(replace(TOY, chat_template=None)) == {3}


def test_an_end_is_needed_whatever_it_is_called() -> None:
    plain = TOY.id_of(" the")
    assert plain in needed_rows(replace(TOY, eog_ids=frozenset({plain})))


def test_user_defined_tokens_count_as_special_where_the_template_names_them() -> None:
    start, other = TOY.id_of("ha"), TOY.id_of(" ha")
    tokenizer = TOY.with_token(start, b"<tool>", "user_defined").with_token(other, b"<other>", "user_defined")
    tokenizer = replace(tokenizer, chat_template=f"{TOY.chat_template}<tool>")
    assert needed_rows(tokenizer) - NEEDED == {start}


def test_a_byte_level_vocabulary_keeps_its_single_bytes() -> None:
    letters = [ToyToken(bytes([value])) for value in range(256)]
    tokenizer = ToyTokenizer((*letters, ToyToken(b"ab"), ToyToken(b"</s>", "control")), "bpe", None, 257)
    tokenizer = replace(tokenizer, eog_ids=frozenset({257}), chat_template=None)
    assert needed_rows(tokenizer) == {*range(256), 257}


# The choice


def test_the_most_frequent_come_first_then_the_sample_then_low_ids() -> None:
    counted = [*[WORDS[3]] * 3, *[WORDS[4]] * 2]
    rest = [id for id in range(TOY.vocab_size) if id not in {*NEEDED, *WORDS[3:]}]
    general = count_tokens([sample_text()], TOY)
    assert general[TOY.id_of(" the")] > general[TOY.id_of("ab")] > 0
    order = sorted(rest, key=lambda id: (-general[id], id in UNUSED or id < BYTE_0, id))
    expected = [*WORDS[3:], *order]
    for extra in range(len(expected) + 1):
        rows = choose_rows(len(NEEDED) + extra, counted, TOY)
        assert rows == tuple(sorted({*NEEDED, *expected[:extra]}))


def test_ids_and_their_counts_are_the_same() -> None:
    ids = [*WORDS, *WORDS[:2], WORDS[0]]
    count = len(NEEDED) + 3
    assert choose_rows(count, ids, TOY) == choose_rows(count, Counter(ids), TOY)


def test_rows_that_are_never_said_come_last() -> None:
    everything = choose_rows(TOY.vocab_size - len(UNUSED) - 2, [], TOY)  # without <unk>, <s>, padding
    assert not {0, 1, *UNUSED} & set(everything)
    assert choose_rows(TOY.vocab_size, [], TOY) == tuple(range(TOY.vocab_size))


@settings(derandomize=True, deadline=None, database=None, max_examples=40)
@given(
    ids=st.lists(st.integers(0, TOY.vocab_size + 5), max_size=30),
    size=st.integers(len(NEEDED), TOY.vocab_size),
)
def test_any_counts(ids: list[int], size: int) -> None:
    rows = choose_rows(size, ids, TOY)
    assert len(rows) == size and list(rows) == sorted(set(rows))
    assert set(rows) >= NEEDED and rows[-1] < TOY.vocab_size
    counts = Counter(ids)
    optional = [counts[row] for row in set(rows) - NEEDED]
    left = [counts[id] for id in set(range(TOY.vocab_size)) - set(rows)]
    assert not optional or not left or min(optional) >= max(left)


@pytest.mark.parametrize("count", [-1, 0, 1, len(NEEDED) - 1, TOY.vocab_size + 1, 10**9])
def test_a_count_that_cannot_be(count: int) -> None:
    with pytest.raises(InvalidValue) as error:
        choose_rows(count, [], TOY)
    least = f"{len(NEEDED)} (what ends texts and turns, and single bytes)"
    assert refusal(error) == f"--output-rows is {count}; allowed: {least} to {TOY.vocab_size} (the vocabulary)"


def test_given_rows_get_what_ends_a_text() -> None:
    assert with_needed_rows([9, 7], TOY) == (2, 4, 7, 9)
    with pytest.raises(InvalidValue) as error:
        with_needed_rows([9, TOY.vocab_size], TOY)
    assert refusal(error) == f"a token id in --output-rows is {TOY.vocab_size}; allowed: 0 to {TOY.vocab_size - 1}"


# Counting


def test_tokens_are_counted_without_bos_and_with_turns() -> None:
    counts = count_tokens(["abc abc", "<|turn|>abc"], TOY)
    assert counts == {TOY.id_of("abc"): 3, TOY.id_of(" "): 1, 3: 1}


def test_coverage_is_a_share_of_tokens() -> None:
    assert coverage([1, 2, 2, 7], {1: 3, 2: 1, 3: 4}) == 0.5
    assert coverage([], {1: 3}) == 0.0
    assert coverage([1], {}) is None


# --output-rows


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("32768", 32768), (" 7 ", 7), ("+5", 5), ("007", 7)])
def test_a_number(text: str, count: int) -> None:
    assert parse_rows(text) == count


@pytest.mark.parametrize("text", ["0", "-5", "-0"])
def test_a_number_below_one(text: str) -> None:
    with pytest.raises(InvalidValue) as error:
        parse_rows(text)
    assert refusal(error) == f"--output-rows is {int(text)}; allowed: 1 or more rows, or a file of token ids"


@pytest.mark.parametrize(
    "data", [b"[9, 2, 5]", b" [9,2,\n5]\n", b"9\n2\n5", b"9\r\n\r\n 2 \r\n5\r\n", b"\xef\xbb\xbf9\n2\n5\n"]
)
def test_a_file_of_ids(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "rows"
    file.write_bytes(data)
    assert parse_rows(str(file)) == (2, 5, 9)


@pytest.mark.parametrize("text", ["", "1e4", "32k", "4.5", "9" * 13, "none.txt", "٣"])
def test_neither_a_number_nor_a_file(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValue) as error:
        parse_rows(text)
    assert refusal(error).startswith(f"--output-rows is {str(Path(text))!r}; allowed: a number of rows or a file of ")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "a file with at least one token id"),
        (b"[]", "a file with at least one token id"),
        (b"\n \n", "a file with at least one token id"),
        (b"[1, 2", "a file with a JSON list of token ids; this is no JSON"),
        (b"[" * 100_000, "a file with a JSON list of token ids; this is no JSON"),
        (b"[" + b"9" * 5000 + b"]", "a file with a JSON list of token ids; this is no JSON"),
        (b"[1, -2]", "rows, item 2 is -2; allowed: a token id, 0 or more"),
        (b"[true]", "rows, item 1 is True; allowed: a token id, 0 or more"),
        (b'[1, 2, "3"]', "rows, item 3 is '3'; allowed: a token id, 0 or more"),
        (b"[1.0]", "rows, item 1 is 1.0; allowed: a token id, 0 or more"),
        (b"[[1]]", "rows, item 1 is [1]; allowed: a token id, 0 or more"),
        (b"1\n2 3\n", "rows, line 2 is '2 3'; allowed: one token id, 0 or more"),
        (b"1\n-2\n", "rows, line 2 is '-2'; allowed: one token id, 0 or more"),
        (b'{"ids": [1]}', "rows, line 1 is '{\"ids\": [1]}'; allowed: one token id, 0 or more"),
        (b"x" * 9999, "rows, line 1 is 'xxxx"),
        (b"1\n5\n1\n", "rows is 1; allowed: every id once"),
        (b"[5, 1, 5]", "rows is 5; allowed: every id once"),
        (b"\xff1\n", "in UTF-8; convert it, e.g. with iconv"),
    ],
)
def test_a_damaged_file_of_ids(tmp_path: Path, data: bytes, expected: str) -> None:
    file = tmp_path / "rows"
    file.write_bytes(data)
    with pytest.raises(InvalidValue) as error:
        parse_rows(str(file))
    assert expected in refusal(error)


def test_a_huge_file_of_ids(tmp_path: Path) -> None:
    with (tmp_path / "rows").open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(InvalidValue, match="a file of at most 16 MiB"):
        parse_rows(str(tmp_path / "rows"))


# --output-text


def lines(folder: Path, records: Iterable[object], name: str = "texts.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    return file


def test_a_plain_text_comes_in_whole_lines(tmp_path: Path) -> None:
    text = "".join(f"line {number} of a plain text\n" for number in range(1000)) + "end"
    (tmp_path / "text.md").write_bytes(b"\xef\xbb\xbf" + text.encode())
    parts = list(read_texts(tmp_path / "text.md", TOY))
    assert "".join(parts) == text and 3 < len(parts) < 20
    assert all(part.endswith("\n") for part in parts[:-1])


@pytest.mark.parametrize("name", ["texts.jsonl", "texts.ndjson", "TEXTS.JSONL"])
def test_fields_of_json_lines(tmp_path: Path, name: str) -> None:
    records = [
        {"text": "abc", "prompt": "not this"},
        {"prompt": "ab", "id": 3},
        {"prompt": "ab", "completion": "c"},
        {"messages": [{"role": "user", "content": "ha"}, {"role": "assistant", "content": "STOP"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "image"}, {"text": "a"}]}]},
        {"messages": [{"role": "assistant", "content": None}, {"role": "tool", "content": "a"}]},
    ]
    file = lines(tmp_path, records, name)
    file.write_text(file.read_text() + "\n  \n")
    assert list(read_texts(file, TOY)) == [
        *("abc", "ab", "abc", "<s><|turn|>user\nha<|end|>\n<|turn|>assistant\nSTOP<|end|>\n"),
        *("<s><|turn|>user\nha<|end|>\n", "<s><|turn|>tool\na<|end|>\n"),
    ]


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no') }}", "{% if %}"])
def test_a_conversation_without_a_template_that_takes_it(tmp_path: Path, template: str | None) -> None:
    record = {"messages": [{"role": "system", "content": "ab"}, {"role": "user", "content": "ha"}]}
    texts = read_texts(lines(tmp_path, [record]), replace(TOY, chat_template=template))
    assert list(texts) == ["ab\n\nha"]


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[]", "3", "null", '"text"', "{}", '{"text": 3}', '{"text": null}', '{"prompt": ["a"]}'),
        *('{"prompt": "a", "completion": 3}', '{"messages": "a"}', '{"messages": [3]}', '{"messages": [{}]}'),
        *('{"messages": [{"role": "user"}]}', '{"messages": [{"role": 1, "content": "a"}]}', "[" * 99_999),
        '{"messages": [{"role": "user", "content": 3}]}',
    ],
)
def test_a_line_without_a_text(tmp_path: Path, line: str) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(f'{{"text": "abc"}}\n\n{line}\n')
    with pytest.raises(InvalidValue) as error:
        list(read_texts(file, TOY))
    message = refusal(error)
    assert message.startswith(f"{file}, line 3 is ")
    assert message.endswith("allowed: a JSON object with a text in text, prompt or messages")


@pytest.mark.parametrize("name", ["text.txt", "text.jsonl"])
def test_a_text_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    with pytest.raises(InvalidValue, match=r"^--output-text is '.*(No such file or directory)") as error:
        list(read_texts(file, TOY))
    refusal(error)
    file.write_bytes(b"abc\n\xff\n")
    with pytest.raises(InvalidValue, match=r"in UTF-8; convert it, e\.g\. with iconv") as error:
        list(read_texts(file, TOY))
    refusal(error)
    file.unlink()
    file.mkdir()
    with pytest.raises(InvalidValue, match="Is a directory") as error:
        list(read_texts(file, TOY))
    refusal(error)


# All together


def test_rows_without_a_text() -> None:
    count = len(NEEDED) + 4
    assert resolve_rows(str(count), TOY) == OutputRows(choose_rows(count, [], TOY))


def test_rows_from_a_text_and_what_they_cover(tmp_path: Path) -> None:
    """The first and third text choose "日" and "🎉"; of the second one's 4 tokens they cover one."""
    file = lines(tmp_path, [{"text": "日日🎉"}, {"text": "日本abcabc日"}, {"text": "🎉"}])
    count = len(NEEDED) + 2
    rows = resolve_rows(str(count), TOY, file)
    assert rows.ids == tuple(sorted({*NEEDED, *TOY.ids_of("日", "abc")}))
    assert rows.coverage == 5 / 8 and rows.held_out == 1 / 4
    assert resolve_rows(str(TOY.vocab_size), TOY, file).coverage == 1.0


def test_one_text_has_no_other_half(tmp_path: Path) -> None:
    rows = resolve_rows(str(len(NEEDED)), TOY, lines(tmp_path, [{"text": "日日a🎉"}]))
    assert (rows.coverage, rows.held_out) == (0.25, None)


def test_given_rows_and_what_they_cover(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("7\n9\n")
    assert resolve_rows(str(tmp_path / "rows"), TOY) == OutputRows((2, 4, 7, 9))
    text = lines(tmp_path, [{"text": "\x02\x02"}, {"text": "\x02日"}])
    assert resolve_rows(str(tmp_path / "rows"), TOY, text) == OutputRows((2, 4, 7, 9), 0.75, 0.75)


@pytest.mark.parametrize("data", ["", '{"text": ""}\n'])
def test_a_text_of_nothing(tmp_path: Path, data: str) -> None:
    file = tmp_path / "text.jsonl"
    file.write_text(data)
    with pytest.raises(InvalidValue) as error:
        resolve_rows("300", TOY, file)
    assert refusal(error) == f"--output-text is {str(file)!r}; allowed: a file with text in it"


def test_a_wider_padding_changes_nothing() -> None:
    count = len(NEEDED) + 5
    assert choose_rows(count, WORDS, TOY) == choose_rows(count, WORDS, replace(TOY, table=toy_table(50)))
