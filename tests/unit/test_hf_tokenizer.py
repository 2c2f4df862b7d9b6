"""Tokenizers of exports: pieces, encoding, the facts' JSON, and what is said about bad files."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import InvalidValue, MissingExtra, ModelFileError
from foredraft.hf_tokenizer import HfTokenizer, TokenizerFacts, byte_of_character

VOCABULARY = ["<s>", "</s>", "<unk>", "<tool>", "a", "b", "ab", "Ġ", "Ġa", "Ã", "©", "Ċ", "日", "<reserved>"]
TYPES = "cckunnnnnnnnnr" + "xe"
FACTS = TokenizerFacts("bpe", TYPES, bos_id=0, eos_id=1, eog_ids=frozenset((1,)), add_bos=True, chat_template="{{ x }}")


def made(facts: TokenizerFacts = FACTS) -> HfTokenizer:
    """Byte-level, with 14 tokens and 2 rows of padding."""
    ids = {text: id for id, text in enumerate(VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [("a", "b"), ("Ġ", "a")]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    special = [text for text, letter in zip(VOCABULARY, TYPES, strict=False) if letter in "ckr"]
    tokenizer.add_special_tokens([tokenizers.AddedToken(text, normalized=False) for text in special])
    tokenizer.add_tokens([tokenizers.AddedToken("<tool>", normalized=False)])
    return HfTokenizer(tokenizer, facts)


def spm() -> HfTokenizer:
    """SentencePiece with byte fallback for three bytes."""
    texts = ["<unk>", "<s>", "</s>", "<0xE2>", "<0x82>", "<0xAC>", "▁", "a", "▁a", "▁▁"]
    ids = {text: id for id, text in enumerate(texts)}
    model = tokenizers.models.BPE(ids, [("▁", "a"), ("▁", "▁")], byte_fallback=True, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    return HfTokenizer(tokenizer, TokenizerFacts("spm", "kccbbbnnnu"))


def test_protocol_fields_are_the_facts() -> None:
    vocab = made()
    assert (vocab.vocab_size, vocab.bos_id, vocab.eos_id, set(vocab.eog_ids)) == (16, 0, 1, {1})
    assert (vocab.add_bos, vocab.add_eos, vocab.kind, vocab.chat_template) == (True, False, "bpe", "{{ x }}")


@pytest.mark.parametrize(
    ("id", "hidden", "shown", "attribute"),
    [
        (0, b"", b"<s>", "control"),
        (2, b"", b"<unk>", "unknown"),
        (3, b"<tool>", b"<tool>", "user_defined"),
        (8, b" a", b" a", "normal"),
        (9, b"\xc3", b"\xc3", "normal"),
        (11, b"\n", b"\n", "normal"),
        (12, "日".encode(), "日".encode(), "normal"),
        (13, b"", b"<reserved>", "unused"),
        (14, b"", b"", "unused"),
        (15, b"", b"", "normal"),
    ],
)
def test_pieces_of_a_byte_level_vocabulary(id: int, hidden: bytes, shown: bytes, attribute: str) -> None:
    vocab = made()
    assert (vocab.piece(id), vocab.piece(id, special=True), vocab.attribute(id)) == (hidden, shown, attribute)


def test_pieces_of_sentencepiece() -> None:
    vocab = spm()
    pieces = [vocab.piece(id) for id in range(vocab.vocab_size)]
    assert pieces == [b"", b"", b"", b"\xe2", b"\x82", b"\xac", b" ", b"a", b" a", "▁▁".encode()]
    assert vocab.encode("a a€", add_special=True, parse_special=False) == [7, 8, 3, 4, 5]


def test_text_of_spells_padding_by_its_id() -> None:
    assert [made().text_of(id) for id in (8, 12, 14)] == ["Ġa".encode(), "日".encode(), b"[PAD14]"]


def test_control_text_becomes_a_control_token_only_on_request() -> None:
    vocab = made()
    assert vocab.encode("a<s>b<tool>", add_special=False, parse_special=True) == [4, 0, 5, 3]
    assert vocab.encode("<s>ab<tool>ab", add_special=False, parse_special=False) == [6, 3, 6]
    assert vocab.encode("<unk>", add_special=False, parse_special=True) == [2]


@pytest.mark.parametrize(
    ("bos", "eos", "ids"), [(True, False, [0, 6]), (False, True, [6, 1]), (True, True, [0, 6, 1]), (False, False, [6])]
)
def test_bos_and_eos_are_added_as_the_model_asks(bos: bool, eos: bool, ids: list[int]) -> None:
    vocab = made(TokenizerFacts("bpe", TYPES, bos_id=0, eos_id=1, add_bos=bos, add_eos=eos))
    assert vocab.encode("ab", add_special=True, parse_special=False) == ids
    assert vocab.encode("ab", add_special=False, parse_special=False) == [6]


def test_surrogates_are_joined_or_replaced() -> None:
    vocab = made()
    lone = vocab.encode("a\ud800", add_special=False, parse_special=False)
    assert lone == vocab.encode("a\ufffd", add_special=False, parse_special=False)
    assert vocab.encode("\ud83c\udf89é", add_special=False, parse_special=False)[-2:] == [9, 10]


@pytest.mark.parametrize("id", [-1, 16, 2**40])
def test_ids_outside_the_vocabulary_are_refused(id: int) -> None:
    vocab = made()
    for call in (vocab.piece, vocab.text_of, vocab.attribute):
        with pytest.raises(InvalidValue, match=rf"token id is {id}; allowed: an integer in \[0, 16\)"):
            call(id)


class Slow:
    """A tokenizer that lets other threads run between being told how to read special tokens and reading them."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        object.__setattr__(self, "tokenizer", tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.tokenizer, name, value)
        time.sleep(0.002)


def test_threads_that_ask_in_both_ways_get_their_own_answer() -> None:
    vocab = HfTokenizer(Slow(made()._tokenizer), FACTS)
    wrong: list[list[int]] = []

    def work(parse_special: bool, expected: list[int]) -> None:
        for _ in range(20):
            got = vocab.encode("a<s>b", add_special=False, parse_special=parse_special)
            if got != expected:
                wrong.append(got)

    threads = [threading.Thread(target=work, args=args) for args in ((True, [4, 0, 5]), (False, [6]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_alphabet_of_bytes_is_complete() -> None:
    table = byte_of_character()
    assert sorted(table.values()) == list(range(256))
    assert [table[character] for character in "Ġ Ċ!ÿĀŃ".replace(" ", "")] == [32, 10, 33, 255, 0, 173]


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_saved_tokenizer_comes_back(tmp_path: Path) -> None:
    made()._tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocab = HfTokenizer.load(tmp_path / "tokenizer.json", TokenizerFacts.from_json(FACTS.to_json()))
    assert vocab.encode("<s>ab\n", add_special=True, parse_special=True) == [0, 0, 6, 11]


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path: Path) -> None:
    tokenizer = made()._tokenizer
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8, pad_id=3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocab = HfTokenizer.load(tmp_path / "tokenizer.json", FACTS)
    assert vocab.encode("aaaa", add_special=False, parse_special=False) == [4] * 4
    assert vocab.encode("a", add_special=False, parse_special=False) == [4]


def refused(path: Path, facts: TokenizerFacts = FACTS) -> str:
    """What is said about ``path``, without the path in front."""
    with pytest.raises(ModelFileError) as caught:
        HfTokenizer.load(path, facts)
    message = str(caught.value)
    assert message.isprintable()
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_bad_files_are_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    assert "cannot be read (No such file or directory)" in refused(file)
    assert "cannot be read (Is a directory)" in refused(tmp_path)
    for data, words in {
        b"\xff\xfe": "is not UTF-8",
        b"": "is no tokenizer.json",
        b"{}": "is no tokenizer.json",
        b'{"model": {"type": "BPE"}}': "is no tokenizer.json",
    }.items():
        file.write_bytes(data)
        assert words in refused(file)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    made()._tokenizer.save(str(tmp_path / "tokenizer.json"))
    said = refused(tmp_path / "tokenizer.json", TokenizerFacts("bpe", "nnn"))
    assert said.startswith("has 14 tokens; allowed: at most 3, the size of the model's vocabulary")


def test_missing_package_names_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'foredraft\[executorch\]'"):
        HfTokenizer.load(tmp_path / "tokenizer.json", FACTS)


# --- facts ------------------------------------------------------------------------------------------------------------


@given(
    types=st.text(alphabet="ncrkbuxe", min_size=1, max_size=40),
    ends=st.frozensets(st.integers(0, 0)),
    template=st.none() | st.text(max_size=5),
)
def test_facts_survive_json(types: str, ends: frozenset[int], template: str | None) -> None:
    facts = TokenizerFacts("spm", types, bos_id=0, eog_ids=ends, add_bos=True, chat_template=template)
    assert TokenizerFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_types_are_written_as_runs() -> None:
    assert TokenizerFacts("bpe", "ccnnnx").to_json()["types"] == [["control", 2], ["normal", 3], ["unused", 1]]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("kind", "wpm", "kind is 'wpm'; allowed: bpe, spm"),
        ("types", [["normal", -1]], "types is ['normal', -1]; allowed: runs of [name, count]"),
        ("types", [["plain", 1]], "types is ['plain', 1]"),
        ("types", [["normal", 10**12]], "types is ['normal', 1000000000000]"),
        ("types", [], "types is []"),
        ("types", None, "types is None"),
        ("bos_id", 16, "bos_id is 16; allowed: a token id in [0, 16)"),
        ("bos_id", None, "bos_id is None; allowed: a token id, because the tokenizer adds it"),
        ("eos_id", True, "eos_id is True"),
        ("eog_ids", [1, None], "eog_ids is None; allowed: a token id in [0, 16)"),
        ("eog_ids", 1, "eog_ids is 1; allowed: a list"),
        ("add_bos", 1, "add_bos is 1; allowed: a bool"),
        ("add_eos", "x" * 100, f"add_eos is '{'x' * 58}…; allowed: a bool"),
        ("chat_template", 5, "chat_template is 5; allowed: a str"),
    ],
)
def test_damaged_facts_are_refused_in_one_line(key: str, value: object, said: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        TokenizerFacts.from_json({**FACTS.to_json(), key: value})
    message = str(caught.value)
    assert message.startswith(f"tokenizer facts: {said}")
    assert message.isprintable()


@pytest.mark.parametrize("key", sorted(set(FACTS.to_json()) - {"bos_id", "eos_id", "chat_template"}))
def test_facts_with_a_missing_key_are_refused(key: str) -> None:
    data = FACTS.to_json()
    del data[key]
    with pytest.raises(ModelFileError, match=f"tokenizer facts: {key} is None"):
        TokenizerFacts.from_json(data)


def test_facts_that_are_no_object_are_refused() -> None:
    with pytest.raises(ModelFileError, match="the whole is 3; allowed: an object"):
        TokenizerFacts.from_json(3)
