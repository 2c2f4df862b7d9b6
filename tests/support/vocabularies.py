"""Texts and checks for real tokenizers."""

from __future__ import annotations

from foredraft.tokens import TextStream, Tokenizer

SCRIPTS = (
    "The quick brown fox.",
    "def f(x):\n\treturn x ** 2  # ok\n\n\n",
    "naïve café — “quotes” …",
    "日本語のテキストです。",
    "Привет, как дела?",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "👩🏽‍🚀🎉 é e\u0301",
    "  two  spaces  ",
    "a\0b",
)


def text_of(vocab: Tokenizer, ids: list[int]) -> str:
    return b"".join(vocab.piece(id) for id in ids).decode()


def assert_round_trips(vocab: Tokenizer, text: str) -> None:
    ids = vocab.encode(text, add_special=False, parse_special=False)
    assert text_of(vocab, ids) == text
    stream = TextStream(vocab)
    assert "".join(stream.push([id]) for id in ids) + stream.finish() == text
