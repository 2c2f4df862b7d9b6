"""Prompts: what a row may hold, errors that name the line, repeated prompts, choosing, and the file we ship.

JSONL stands for all formats here; what is special to the others is in test_prompts_texts and test_prompts_parquet.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from foredraft.errors import PromptError
from foredraft.prompts import Prompt, PromptFile, chosen, read_prompts
from tests.support.scripted import TOY

KINDS = Path(__file__).parents[2] / "benchmarks" / "kinds.jsonl"


def read_file(tmp_path: Path, *lines: str | bytes) -> PromptFile:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return read_prompts(path)


def read(tmp_path: Path, *lines: str | bytes) -> tuple[Prompt, ...]:
    return read_file(tmp_path, *lines).prompts


def contents(prompt: Prompt) -> list[str]:
    return [message["content"] for message in prompt.messages]


def test_lines_become_conversations(tmp_path: Path) -> None:
    first, second, third = read(
        tmp_path,
        '{"prompt": "Hi", "kind": "chat", "system": "Be brief.", "max_tokens": 5}',
        "",
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},'
        ' {"role": "user", "content": "c"}]}',
        '{"prompt": "Grüße"}\r',
    )
    assert first.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    assert (first.line, first.kind, first.max_tokens) == (1, "chat", 5)
    assert [message["role"] for message in second.messages] == ["user", "assistant", "user"]
    assert (second.line, second.kind, second.max_tokens) == (3, "other", None)
    assert third.messages[0]["content"] == "Grüße"


def test_a_byte_order_mark_is_no_part_of_a_line(tmp_path: Path) -> None:
    """Also not where two files were joined."""
    prompts = read(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}', b'\xef\xbb\xbf{"prompt": "b"}')
    assert [contents(prompt) for prompt in prompts] == [["a"], ["b"]]


def test_null_and_a_blank_system_text_are_as_good_as_missing(tmp_path: Path) -> None:
    first, second, third = read(
        tmp_path,
        '{"prompt": "a", "messages": null, "kind": null, "system": null, "max_tokens": null}',
        '{"prompt": "b", "system": " ", "max_tokens": 5.0}',
        '{"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "c"}], "system": "x"}',
    )
    assert (contents(first), first.kind, first.max_tokens) == (["a"], "other", None)
    assert (contents(second), second.max_tokens) == (["b"], 5)
    assert contents(third) == ["x", "c"]


def test_the_target_writes_the_last_answer_itself(tmp_path: Path) -> None:
    talk = [{"role": role, "content": role[0]} for role in ("user", "assistant", "user", "assistant", "assistant")]
    found = read_file(tmp_path, json.dumps({"messages": talk}), '{"prompt": "x"}')
    assert contents(found.prompts[0]) == ["u", "a", "u"]
    assert found.notes == ("the assistant's answer at the end of messages is left out (1 of 2 prompts)",)


def test_a_prompt_that_repeats_the_first_message_is_not_a_second_one(tmp_path: Path) -> None:
    """As in the data sets of H4: ``prompt`` beside ``messages``."""
    talk = [{"role": "system", "content": "s"}, {"role": "user", "content": "a "}]
    found = read_file(tmp_path, json.dumps({"prompt": "a", "messages": talk}))
    assert contents(found.prompts[0]) == ["s", "a "] and "prompt only repeats" in found.notes[0]
    with pytest.raises(PromptError, match="line 1: give either prompt or messages, not both"):
        read(tmp_path, json.dumps({"prompt": "b", "messages": talk}))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{prompt: 1}", "not JSON: Expecting property name"),
        ('{"prompt": "a"} {"prompt": "b"}', "not JSON: Extra data at column 17"),
        ('["a"]', "not an object"),
        ('"a"', "not an object"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"max_tokens": ' + "9" * 5000 + "}", "thousands of digits"),
        ('{"prompt": "a\0"}', "holds a NUL byte"),
        ('{"prompt": "a\\u0000b"}', "prompt holds a NUL character"),
        ("{}", "either prompt or messages; there are: none"),
        ('{"promt": "a", "kind": "x"}', "either prompt or messages; there are: promt, kind"),
        ('{"prompt": null}', "give either prompt or messages; this one is empty"),
        ('{"prompt": "a", "messages": []}', "not both"),
        ('{"prompt": " "}', "prompt is ' '"),
        ('{"prompt": 3}', "prompt is 3"),
        ('{"prompt": "\\ud800"}', "no character"),
        ('{"prompt": ["a"]}', "prompt is a list"),
        ('{"prompt": {"a": 1}}', "prompt is an object"),
        ('{"messages": []}', "messages must be a list"),
        ('{"messages": "a"}', "messages must be a list"),
        ('{"messages": ["a"]}', "message 1 has the role 'a'"),
        ('{"messages": [{"role": "robot", "content": "a"}]}', "message 1 has the role 'robot'; allowed: system, user"),
        ('{"messages": [{"role": "user"}]}', "content of message 1 is None"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "nothing to answer"),
        ('{"messages": [{"role": "system", "content": "a"}], "system": "b"}', "drop system"),
        ('{"prompt": "a", "system": 1}', "system is 1"),
        ('{"prompt": "a", "kind": ""}', "kind is ''"),
        ('{"prompt": "a", "kind": "all"}', "kind is 'all'"),
        ('{"prompt": "a", "kind": 1}', "kind is 1"),
        ('{"prompt": "a", "kind": "x\\u001b[2J"}', "kind is 'x\\x1b[2J'; allowed: at most 64 characters on one line"),
        ('{"prompt": "a", "kind": "' + "x" * 65 + '"}', "(65 characters); allowed: at most 64"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens is True"),
        ('{"prompt": "a", "max_tokens": 2.5}', "max_tokens is 2.5"),
        ('{"prompt": "a", "max_tokens": NaN}', "max_tokens is nan"),
        ('{"prompt": "a", "max_tokens": 1e300}', "max_tokens is a huge number"),
        ('{"prompt": "a", "max_tokens": "5"}', "max_tokens is '5'"),
        ('{"prompt": "a", "max_tokens": 1048577}', "a positive integer up to 1048576"),
        (b'{"prompt": "caf\xe9"}', "not UTF-8 text (byte 0xe9)"),
    ],
    ids=lambda value: None if isinstance(value, str) and len(value) < 60 else "long",
)
def test_an_error_names_the_line(line: str | bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(PromptError) as found:
        read(tmp_path, '{"prompt": "good"}', "", line)
    assert str(found.value).startswith("p.jsonl line 3: ") and words in str(found.value)
    assert "\n" not in str(found.value) and len(str(found.value)) < 200


def test_a_message_repeats_no_long_text(tmp_path: Path) -> None:
    for row in ({"prompt": " " * 10**6}, {"prompt": "a", "kind": "secret" * 20}, {"secret" * 10**5: 1}):
        with pytest.raises(PromptError) as found:
            read(tmp_path, json.dumps(row))
        assert len(str(found.value)) < 200


def test_a_prompt_of_10_mb_is_a_prompt(tmp_path: Path) -> None:
    text = "ü€𝄞 \n" * (1 << 20)
    (prompt,) = read(tmp_path, json.dumps({"prompt": text}, ensure_ascii=False))
    assert prompt.messages[0]["content"] == text and len(text.encode()) > 10 << 20


def test_no_file_and_no_prompt(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no such file"):
        read_prompts(tmp_path / "missing.jsonl")
    with pytest.raises(PromptError, match="is a directory; name a file with prompts"):
        read_prompts(tmp_path)
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(PromptError, match="is no regular file"):
        read_prompts(tmp_path / "pipe.jsonl")
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompts(tmp_path / ("x" * 1000))
    with pytest.raises(PromptError, match="holds no prompt"):
        read(tmp_path, "", "  ")
    with pytest.raises(PromptError, match="holds no prompt"):
        read(tmp_path)


def test_a_single_prompt_is_allowed_and_counted(tmp_path: Path) -> None:
    assert read_file(tmp_path, '{"prompt": "a"}').distinct == 1
    assert read_file(tmp_path, '{"prompt": "a"}', '{"prompt": "a"}').distinct == 1


def test_a_repeated_prompt_is_warm_and_has_a_key_of_its_own(tmp_path: Path) -> None:
    """Case G7: whatever caches an answer, a repeat is not counted."""
    prompts = read(
        tmp_path,
        '{"prompt": "a", "kind": "chat"}',
        '{"prompt": "b"}',
        '{"messages": [{"role": "user", "content": "a"}], "kind": "code", "max_tokens": 9}',
        '{"prompt": "a", "system": "other"}',
        '{"prompt": "a"}',
    )
    assert [prompt.warm for prompt in prompts] == [False, False, True, False, True]
    assert len({prompt.key for prompt in prompts}) == len(prompts)


def test_a_key_depends_on_the_text_only(tmp_path: Path) -> None:
    keys = [read(tmp_path, "", line)[0].key for line in ('{"kind": "x", "prompt": "a"}', '{"prompt": "a"}')]
    assert keys[0] == keys[1]
    assert read(tmp_path, '{"prompt": "a", "max_tokens": 3}')[0].key != keys[0]


def test_unknown_keys_are_named(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "c", "name": "Ada", "tool_calls": None}]
    found = read_file(
        tmp_path,
        '{"prompt": "a", "id": 1}',
        '{"prompt": "b", "max_new_tokens": 5, "id": 2, "nothing": null}',
        json.dumps({"messages": talk}),
    )
    assert found.notes == ("keys of p.jsonl that mean nothing here: id, max_new_tokens, name of a message",)


def test_names_of_keys_cannot_spoil_the_terminal(tmp_path: Path) -> None:
    keys = {"\x1b[2J": 1, "x" * 100: 1, **{f"k{number}": 1 for number in range(20)}}
    (note,) = read_file(tmp_path, json.dumps({"prompt": "a", **keys})).notes
    assert note.isprintable() and len(note) < 200 and note.endswith("k9, and 10 more")


@pytest.mark.parametrize(
    ("row", "texts", "note"),
    [
        ({"instruction": "a"}, ["a"], "instruction is read as the prompt (1 of 1 prompts)"),
        ({"instruction": "a", "input": ""}, ["a"], "instruction is read as the prompt, input below it"),
        ({"instruction": "a", "input": "b"}, ["a\n\nb"], "instruction is read as the prompt, input below it"),
        ({"instruction": "a", "context": "b"}, ["a\n\nb"], "instruction is read as the prompt, context below it"),
        ({"text": "a", "system": "s"}, ["s", "a"], "text is read as the prompt"),
        (
            {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "h"}]},
            ["s", "h"],
            "conversations is read as messages",
        ),
        ({"conversations": [{"role": "user", "content": "h"}]}, ["h"], "conversations is read as messages"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_names_of_data_sets(row: dict[str, object], texts: list[str], note: str, tmp_path: Path) -> None:
    found = read_file(tmp_path, json.dumps(row))
    assert contents(found.prompts[0]) == texts and found.notes[0].startswith(note)


def test_who_speaks_in_sharegpt(tmp_path: Path) -> None:
    talk = [{"from": who, "value": who} for who in ("human", "gpt", "tool", "user", "assistant", "human")]
    (prompt,) = read(tmp_path, json.dumps({"conversations": talk}))
    roles = [message["role"] for message in prompt.messages]
    assert roles == ["user", "assistant", "tool", "user", "assistant", "user"]
    with pytest.raises(PromptError, match="message 1 has the role 'bing'"):
        read(tmp_path, json.dumps({"conversations": [{"from": "bing", "value": "a"}]}))


def test_names_that_leave_a_doubt_are_listed(tmp_path: Path) -> None:
    for row, words in (
        ({"instruction": "a", "text": "b"}, "instruction and text: which"),
        ({"conversations": [], "text": "b"}, "conversations and text: which"),
        ({"instruction": "a", "input": "b", "context": "c"}, "instruction and context: which"),
        ({"text": None}, "prompt or messages; this one is empty"),
    ):
        with pytest.raises(PromptError, match=f"line 1: .*{words}"):
            read(tmp_path, json.dumps(row))


def test_own_names_win_over_those_of_data_sets(tmp_path: Path) -> None:
    found = read_file(tmp_path, '{"prompt": "a", "text": "b", "instruction": "c"}')
    assert contents(found.prompts[0]) == ["a"] and found.notes[0].endswith("nothing here: text, instruction")
    with pytest.raises(PromptError, match="this one is empty"):
        read(tmp_path, '{"prompt": null, "text": "b"}')


def test_kinds_and_limit(tmp_path: Path) -> None:
    prompts = read(tmp_path, *(f'{{"prompt": "{kind}{n}", "kind": "{kind}"}}' for n in range(3) for kind in ("x", "y")))
    assert [prompt.kind for prompt in chosen(prompts, limit=2)] == ["x", "y", "x", "y"]
    assert [prompt.messages[0]["content"] for prompt in chosen(prompts, ("y",))] == ["y0", "y1", "y2"]
    with pytest.raises(PromptError, match="kind 'z'; there are: x, y"):
        chosen(prompts, ("z",))


def test_prompts_are_encoded_like_everywhere_else(tmp_path: Path) -> None:
    single, talk = read(tmp_path, '{"prompt": "ab"}', '{"prompt": "ab", "system": "x"}')
    assert single.encoded(TOY).rendered == "<s><|turn|>user\nab<|end|>\n<|turn|>assistant\n"
    assert single.encoded(TOY, raw=True).ids == (1, *TOY.ids_of("ab"))
    with pytest.raises(PromptError, match=r"line 2: .*cannot be fed raw"):
        talk.encoded(TOY, raw=True)


def test_the_prompts_we_ship() -> None:
    found = read_prompts(KINDS)
    prompts = found.prompts
    counts = Counter(prompt.kind for prompt in prompts)
    assert counts.keys() == {"code", "edit", "summarise", "chat", "story"} and min(counts.values()) >= 6
    assert not any(prompt.warm for prompt in prompts) and not found.notes
    for kind in counts:
        lengths = [
            sum(len(message["content"].split()) for message in prompt.messages)
            for prompt in prompts
            if prompt.kind == kind
        ]
        assert min(lengths) <= 45 and max(lengths) >= 150, (kind, sorted(lengths))
    for line in KINDS.read_text(encoding="utf-8").splitlines():
        assert json.loads(line).keys() <= {"kind", "prompt", "messages", "system"}
