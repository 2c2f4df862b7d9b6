"""Prompts from CSV and plain text, and how a file's format is found out."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from foredraft.errors import PromptError
from foredraft.prompts import PromptFile, read_prompts, reading

CSV = "kind,prompt,system,max_tokens\n"


def read(folder: Path, content: str | bytes, name: str = "p.csv") -> PromptFile:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_prompts(path)


def texts(found: PromptFile) -> list[str]:
    return [prompt.messages[-1]["content"] for prompt in found.prompts]


# --- CSV ----------------------------------------------------------------------------------------------------


def test_a_record_becomes_a_prompt_and_knows_its_line(tmp_path: Path) -> None:
    found = read(tmp_path, CSV + 'chat,Hi,Be brief.,5\n\n,"a ""b"",\nc",,\ncode, d ,,7.0\n')
    first, second, third = found.prompts
    assert first.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    assert (first.line, first.kind, first.max_tokens) == (2, "chat", 5)
    assert second.messages == ({"role": "user", "content": 'a "b",\nc'},)
    assert (second.line, second.kind, second.max_tokens, second.where) == (4, "other", None, "line 4")
    assert (third.line, third.messages[0]["content"], third.max_tokens) == (6, " d ", 7)
    assert (found.format, found.notes) == ("csv", ())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\n\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_what_spreadsheets_write(end: str, mark: bytes, delimiter: str, tmp_path: Path) -> None:
    rows = [["Prompt ", "Kind", "", ""], ["Grüße; an, alle", "chat", "", ""], ["", "", "", ""], ["zwei", "", "", ""]]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerows(rows)
    found = read(tmp_path, mark + text.getvalue().encode())
    assert texts(found) == ["Grüße; an, alle", "zwei"]
    assert [prompt.kind for prompt in found.prompts] == ["chat", "other"] and not found.notes


def test_messages_are_json_text(tmp_path: Path) -> None:
    talk = [
        {"role": "user", "content": "a, b"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    text = io.StringIO()
    csv.writer(text).writerows([["messages", "id"], [json.dumps(talk), "7"]])
    found = read(tmp_path, text.getvalue())
    assert found.prompts[0].messages == tuple(talk)
    assert found.notes == ("columns of p.csv that mean nothing here: id",)


def test_columns_of_data_sets(tmp_path: Path) -> None:
    found = read(tmp_path, "instruction,input,output\nTranslate.,Hallo,Hello\nSay hello.,,Hello\n")
    assert texts(found) == ["Translate.\n\nHallo", "Say hello."]
    assert found.notes == (
        "instruction is read as the prompt, input below it (2 of 2 prompts)",
        "columns of p.csv that mean nothing here: output",
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("promt,kind\na,b\n", "line 1, the header row: give either prompt or messages; there are: promt, kind"),
        ("\n\nWhat is 2 + 2?\nWho?\n", "line 3, the header row: give either prompt or messages"),
        ("text,instruction\na,b\n", "line 1, the header row: instruction and text: which"),
        ("prompt,Prompt\na,b\n", "line 1, the header row: has the column prompt twice"),
        ("prompt,kind\nfine,x\nIf so, then what,x\n", "line 3: has 3 cells, the header row 2; put texts"),
        ('prompt\nfine\n"never closed\nnext\n', "line 3: is no CSV record (unexpected end of data)"),
        ('prompt\n"a" b\n', "line 2: is no CSV record"),
        ("prompt,kind\n,x\n", "line 2: give either prompt or messages; this one is empty"),
        (CSV + "x,a,,many\n", "line 2: max_tokens is 'many'"),
        (CSV + "x,a,,0\n", "line 2: max_tokens is 0"),
        (CSV + "x,a,,-1\n", "line 2: max_tokens is '-1'"),
        (CSV + "x,a,,99999999999999999999\n", "line 2: max_tokens is '99999999999999999999'"),
        ("messages\n\"[{'role': 'user'}]\"\n", "line 2: messages: not JSON: Expecting property name"),
        ("messages\nHi\n", "line 2: messages: not JSON"),
        ("messages\n7\n", "line 2: messages must be a list"),
        (b"prompt\nfine\ncaf\xe9\n", "line 3: not UTF-8 text (byte 0xe9)"),
        (b"prompt\nfi\0ne\n", "line 2: holds a NUL byte"),
        (b'prompt\n"fine\nfi\0ne"\n', "line 3: holds a NUL byte"),
    ],
)
def test_an_error_names_the_line(content: str | bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(PromptError) as found:
        read(tmp_path, content)
    assert str(found.value).startswith(f"p.csv {words}") and "\n" not in str(found.value)


def test_a_header_row_alone_holds_no_prompt(tmp_path: Path) -> None:
    for content in ("prompt,kind\n", "\n \n", "\ufeff"):
        with pytest.raises(PromptError, match="holds no prompt"):
            read(tmp_path, content)


def test_a_cell_of_10_mb_and_the_limit_of_other_readers(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    text = f"{'a, b' * 50}\n" * 60_000
    assert texts(read(tmp_path, f'prompt\n"{text}"\n')) == [text]
    assert csv.field_size_limit() == before < len(text)


# --- plain text ---------------------------------------------------------------------------------------------


def test_paragraphs(tmp_path: Path) -> None:
    content = "\n\nFix this:\n\n\n  def f():\n\treturn  \nplease\n \t\nWho?\n"
    found = read(tmp_path, content, "p.txt")
    assert texts(found) == ["Fix this:", "  def f():\n\treturn  \nplease", "Who?"]
    assert [prompt.line for prompt in found.prompts] == [3, 6, 10]
    assert found.notes == ("p.txt is plain text: 3 prompts, separated by blank lines",)
    assert (found.format, found.name) == ("text", "p.txt")


def test_without_blank_lines_every_line_is_a_prompt(tmp_path: Path) -> None:
    found = read(tmp_path, "\n\n Who? \nWhere?\n\n", "p.txt")
    assert texts(found) == ["Who?", "Where?"] and [prompt.line for prompt in found.prompts] == [3, 4]
    assert found.notes == ("p.txt is plain text: 2 prompts, one a line",)
    assert read(tmp_path, "Who?", "p.txt").notes == ("p.txt is plain text: one prompt",)


def test_windows_line_ends_change_nothing(tmp_path: Path) -> None:
    for content in ("a\nb\n\nc\nd\n", "a\nb\n"):
        unix = read(tmp_path, content, "p.txt").prompts
        windows = read(tmp_path, "\ufeff" + content.replace("\n", "\r\n"), "p.txt").prompts
        assert unix == windows


def test_a_repeated_paragraph_is_warm(tmp_path: Path) -> None:
    found = read(tmp_path, "a\n\nb\n\na\n", "p.txt")
    assert [prompt.warm for prompt in found.prompts] == [False, False, True] and found.distinct == 2
    assert len({prompt.key for prompt in found.prompts}) == 3


def test_bad_bytes_in_plain_text(tmp_path: Path) -> None:
    for content, words in ((b"a\n\ncaf\xe9", "line 3: not UTF-8"), (b"a\nb\0", "line 2: holds a NUL byte")):
        with pytest.raises(PromptError, match=words):
            read(tmp_path, content, "p.txt")
    with pytest.raises(PromptError, match="holds no prompt"):
        read(tmp_path, "\n \r\n", "p.txt")


# --- which format -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("p.jsonl", '{"prompt": "a"}', "jsonl"),
        ("P.JSONL", '{"prompt": "a"}', "jsonl"),
        ("p.ndjson", '{"prompt": "a"}', "jsonl"),
        ("p.json", '{"prompt": "a"}', "jsonl"),
        ("p", '\n {"prompt": "a"}', "jsonl"),
        ("p.log", '\ufeff{"id": 1, "prompt": "a"}', "jsonl"),
        ("p.txt", '{"prompt": "a"}', "jsonl"),
        ("p.tsv", "prompt\tkind\na\tb", "csv"),
        ("p", "kind,prompt\nb,a", "csv"),
        ("p.data", "kind;prompt\nb;a", "csv"),
        ("p.data", "Prompt\na", "csv"),
        ("p.txt", "prompt\na", "text"),
        ("p.md", "kind,prompt\nb,a", "text"),
        ("p", "Text\nand more", "text"),
        ("p", "{curly}", "text"),
        ("p", "[INST] a [/INST]", "text"),
        ("p", "Hello", "text"),
    ],
)
def test_the_format_is_found_out(name: str, content: str, expected: str, tmp_path: Path) -> None:
    assert read(tmp_path, content, name).format == expected


@pytest.mark.parametrize("name", ["p.json", "p", "p.txt"])
@pytest.mark.parametrize("content", ['[{"prompt": "a"}]', '\n[\n  {"prompt": "a"}\n]'])
def test_an_array_gets_the_command_that_unpacks_it(name: str, content: str, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=rf"begins a JSON array; .*jq -c '\.\[\]' {name} > lines.jsonl"):
        read(tmp_path, content, name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("prompt".encode("utf-16"), "UTF-16"),
        ("prompt".encode("utf-16-be"), "line 1: holds a NUL byte"),
        (b"\x1f\x8b\x08rest", "compressed with gzip"),
        (b"\x28\xb5\x2f\xfdrest", "compressed with zstd"),
        (b"PK\x03\x04rest", "a zip archive or a spreadsheet"),
        (b"GGUF\3\0\0\0", "line 1: holds a NUL byte"),
    ],
)
@pytest.mark.parametrize("name", ["p", "p.csv", "p.jsonl", "p.txt"])
def test_what_is_no_text_is_said_so(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=words):
        read(tmp_path, content, name)


@pytest.mark.parametrize("name", ["p.jsonl", "p.csv", "p.txt"])
def test_a_file_that_is_too_large_is_not_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(b"prompt\n")
        file.truncate(reading.MAX_BYTES + (1 << 20))  # a hole: takes no room on the disk
    with pytest.raises(PromptError, match=f"{name}: holds more than 256 MB of prompts"):
        read_prompts(path)
