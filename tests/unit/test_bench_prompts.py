"""Prompts of a benchmark: what a line may hold, errors that name the line, repeated prompts, and the file we ship."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from foredraft.bench.prompts import BenchPrompt, chosen, read_prompts, unused_keys
from foredraft.errors import PromptError
from tests.support.scripted import TOY

KINDS = Path(__file__).parents[2] / "benchmarks" / "kinds.jsonl"


def read(tmp_path: Path, *lines: str | bytes) -> list[BenchPrompt]:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return read_prompts(path)


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


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    assert read(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}')[0].messages[0]["content"] == "a"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{prompt: 1}", "not JSON: Expecting property name"),
        ('{"prompt": "a"} {"prompt": "b"}', "not JSON: Extra data at column 17"),
        ('["a"]', "not an object"),
        ('"a"', "not an object"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "either prompt or messages"),
        ('{"prompt": "a", "messages": []}', "not both"),
        ('{"prompt": " "}', "prompt is ' '"),
        ('{"prompt": 3}', "prompt is 3"),
        ('{"prompt": "\\ud800"}', "no character"),
        ('{"messages": []}', "messages must be a list"),
        ('{"messages": "a"}', "messages must be a list"),
        ('{"messages": ["a"]}', "message 1 has the role 'a'"),
        ('{"messages": [{"role": "robot", "content": "a"}]}', "message 1 has the role 'robot'; allowed: system, user"),
        ('{"messages": [{"role": "user"}]}', "content of message 1 is None"),
        ('{"messages": [{"role": "system", "content": "a"}], "system": "b"}', "drop system"),
        ('{"prompt": "a", "system": 1}', "system is 1"),
        ('{"prompt": "a", "kind": ""}', "kind is ''"),
        ('{"prompt": "a", "kind": "all"}', "kind is 'all'"),
        ('{"prompt": "a", "kind": 1}', "kind is 1"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens is True"),
        ('{"prompt": "a", "max_tokens": 2.5}', "max_tokens is 2.5"),
        (b'{"prompt": "caf\xe9"}', "not UTF-8 text (byte 0xe9)"),
    ],
    ids=lambda value: None if isinstance(value, str) and len(value) < 60 else "long",
)
def test_an_error_names_the_line(line: str | bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(PromptError) as found:
        read(tmp_path, '{"prompt": "good"}', "", line)
    assert str(found.value).startswith("p.jsonl line 3: ") and words in str(found.value)
    assert "\n" not in str(found.value)


def test_no_file_and_no_prompt(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no such file"):
        read_prompts(tmp_path / "missing.jsonl")
    with pytest.raises(PromptError, match="holds no prompt"):
        read(tmp_path, "", "  ")


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
    prompts = read(tmp_path, '{"prompt": "a", "id": 1}', '{"prompt": "b", "max_new_tokens": 5, "id": 2}')
    assert unused_keys(prompts) == ["id", "max_new_tokens"]


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
    prompts = read_prompts(KINDS)
    counts = Counter(prompt.kind for prompt in prompts)
    assert counts.keys() == {"code", "edit", "summarise", "chat", "story"} and min(counts.values()) >= 6
    assert not any(prompt.warm for prompt in prompts) and not unused_keys(prompts)
    for kind in counts:
        lengths = [
            sum(len(message["content"].split()) for message in prompt.messages)
            for prompt in prompts
            if prompt.kind == kind
        ]
        assert min(lengths) <= 45 and max(lengths) >= 150, (kind, sorted(lengths))
    for line in KINDS.read_text(encoding="utf-8").splitlines():
        assert json.loads(line).keys() <= {"kind", "prompt", "messages", "system"}
