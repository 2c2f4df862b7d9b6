"""Tokenizers from GGUF headers and Hugging Face directories, on small made-up vocabularies."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from foredraft.errors import MissingExtra, ModelFileError
from foredraft.hf_tokenizer import HfTokenizer, byte_of_character
from foredraft.modelfile import read_gguf
from foredraft.tokenizer_json import Converted, TokenizerFacts, tokenizer_from_directory, tokenizer_from_gguf
from tests.support.gguf_writer import Typed, write_gguf

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CHARACTERS = list(byte_of_character())
A = 3 + 256
"""Id of "a", the first token behind the bytes of ``spm_keys``."""


def spm_keys(words: Sequence[str], scores: Sequence[float] | None = None, **more: object) -> dict[str, object]:
    """Keys of a SentencePiece vocabulary: 3 special tokens, 256 bytes, ``words``; scores fall with the id."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *words]
    behind = scores if scores is not None else [-float(i) for i in range(len(words))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array([0.0] * A + list(behind), np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * len(words), np.int32),
        **{f"tokenizer.{'ggml.' if key != 'chat_template' else ''}{key}": value for key, value in more.items()},
    }


def bpe_keys(words: Sequence[str], merges: Sequence[str], pre: object = "gpt-2", **more: object) -> dict[str, object]:
    """Keys of a byte-level vocabulary: the 256 characters, then ``words``."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*CHARACTERS, *words],
        "tokenizer.ggml.merges": Typed(8, list(merges), True),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def convert(folder: Path, keys: Mapping[str, object]) -> Converted:
    """Through a file, as a user has it."""
    return tokenizer_from_gguf(read_gguf(write_gguf(folder / "vocab.gguf", keys)))


def vocabulary(folder: Path, keys: Mapping[str, object]) -> HfTokenizer:
    """The same, ready to encode."""
    converted = convert(folder, keys)
    return HfTokenizer(converted.tokenizer, converted.facts)


def spelled(vocab: HfTokenizer, text: str, parse_special: bool = False) -> list[str]:
    """The tokens of ``text`` as the vocabulary spells them."""
    ids = vocab.encode(text, add_special=False, parse_special=parse_special)
    return [vocab.text_of(id).decode() for id in ids]


# --- SentencePiece ----------------------------------------------------------------------------------------------------


def test_best_score_merges_first_wherever_it_is(tmp_path: Path) -> None:
    words = ["a", "b", "c", "ab", "bc"]
    keys = spm_keys(words, [-9, -9, -9, -2, -1], add_space_prefix=False)
    assert spelled(vocabulary(tmp_path, keys), "abcab") == ["a", "bc", "ab"]
    keys = spm_keys(words, [-9, -9, -9, -1, -2], add_space_prefix=False)
    assert spelled(vocabulary(tmp_path, keys), "abcab") == ["ab", "c", "ab"]


def test_ties_of_runs_grow_from_the_left(tmp_path: Path) -> None:
    words = ["▁", "a", "▁▁", "▁▁▁", "▁▁▁▁", "▁a"]
    vocab = vocabulary(tmp_path, spm_keys(words, [-9, -9, -5, -5, -5, -1], add_space_prefix=False))
    assert spelled(vocab, " " * 7) == ["▁▁▁▁", "▁▁▁"]
    assert spelled(vocab, " " * 6 + "a") == ["▁▁▁▁", "▁", "▁a"]


def test_tokens_that_no_merge_reaches_are_not_used(tmp_path: Path) -> None:
    vocab = vocabulary(tmp_path, spm_keys(["a", "b", "c", "abc"], add_space_prefix=False))
    assert spelled(vocab, "abc") == ["a", "b", "c"]


def test_unknown_characters_become_bytes(tmp_path: Path) -> None:
    vocab = vocabulary(tmp_path, spm_keys(["a"], add_space_prefix=False))
    ids = vocab.encode("a€\0", add_special=False, parse_special=False)
    assert ids == [A, 3 + 0xE2, 3 + 0x82, 3 + 0xAC, 3]
    assert b"".join(vocab.piece(id) for id in ids) == b"a\xe2\x82\xac\0"


def test_every_stretch_of_text_begins_with_a_space_unless_the_file_says_no(tmp_path: Path) -> None:
    vocab = vocabulary(tmp_path, spm_keys(["a", "▁", "▁a"]))
    assert spelled(vocab, "a a</s>a", parse_special=True) == ["▁a", "▁a", "</s>", "▁a"]
    plain = vocabulary(tmp_path, spm_keys(["a", "▁", "▁a"], add_space_prefix=False))
    assert spelled(plain, "a a</s>a", parse_special=True) == ["a", "▁a", "</s>", "a"]


def test_defaults_of_sentencepiece_are_llama_cpps(tmp_path: Path) -> None:
    facts = convert(tmp_path, spm_keys(["a"], chat_template="{{ messages }}")).facts
    assert (facts.kind, facts.vocab_size, facts.bos_id, facts.eos_id) == ("spm", A + 1, 1, 2)
    assert (facts.add_bos, facts.add_eos, set(facts.eog_ids)) == (True, False, {2})
    assert (facts.types, facts.chat_template) == ("kcc" + "b" * 256 + "n", "{{ messages }}")


def test_other_readers_of_the_file_add_bos_and_decode(tmp_path: Path) -> None:
    converted = convert(tmp_path, spm_keys(["a", "▁", "▁a"], add_eos_token=True))
    converted.tokenizer.save(str(tmp_path / "tokenizer.json"))
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert read.encode("a a€").ids == [1, A + 2, A + 2, 3 + 0xE2, 3 + 0x82, 3 + 0xAC, 2]
    assert read.decode(read.encode("a a€").ids) == "a a€"


# --- byte-level BPE ---------------------------------------------------------------------------------------------------

LETTERS = ["He", "'s", "Ġ1", "12", "123", "ab", "!!"]
MERGES = ["H e", "' s", "Ġ 1", "1 2", "12 3", "a b", "! !"]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["He", "'s", "Ġ1", "2", "3", "4", "'", "S", "!!"]),
        ("smollm", ["He", "'s", "Ġ", "1", "2", "3", "4", "'", "S", "!!"]),
        ("qwen2", ["He", "'s", "Ġ", "1", "2", "3", "4", "'", "S", "!!"]),
        ("llama-bpe", ["He", "'s", "Ġ", "123", "4", "'", "S", "!!"]),
        ("default", ["He", "'", "s", "Ġ", "123", "4", "'", "S", "!!"]),
    ],
)
def test_pre_tokenizers_cut_words_differently(tmp_path: Path, pre: str, expected: list[str]) -> None:
    vocab = vocabulary(tmp_path, bpe_keys(LETTERS, MERGES, pre))
    assert spelled(vocab, "He's 1234'S!!") == expected
    assert vocab.add_bos == (pre == "llama-bpe")


def test_a_file_that_names_no_pre_tokenizer_gets_the_default(tmp_path: Path) -> None:
    keys = bpe_keys(LETTERS, MERGES)
    del keys["tokenizer.ggml.pre"]
    assert spelled(vocabulary(tmp_path, keys), "He's") == ["He", "'", "s"]


def test_whole_words_win_over_merges_only_where_the_model_says_so(tmp_path: Path) -> None:
    words, merges = ["bc", "abc"], ["b c"]
    assert spelled(vocabulary(tmp_path, bpe_keys(words, merges, "llama-bpe")), "abc") == ["abc"]
    assert spelled(vocabulary(tmp_path, bpe_keys(words, merges, "gpt-2")), "abc") == ["a", "bc"]


def test_a_byte_without_a_token_is_dropped_but_still_parts_the_word(tmp_path: Path) -> None:
    keys = bpe_keys(["!!"], ["! !"])
    keys["tokenizer.ggml.tokens"] = [character for character in CHARACTERS if character != "Ą"] + ["!!"]
    vocab = vocabulary(tmp_path, keys)
    assert spelled(vocab, "!!") == ["!!"]
    assert spelled(vocab, "!\x04!") == ["!", "!"]


def test_the_first_of_two_equal_merges_counts(tmp_path: Path) -> None:
    vocab = vocabulary(tmp_path, bpe_keys(["ab", "bc"], ["a b", "b c", "a b"]))
    assert spelled(vocab, "abc") == ["ab", "c"]


# --- special tokens ---------------------------------------------------------------------------------------------------


def facts_of(folder: Path, words: Mapping[str, int], **more: object) -> TokenizerFacts:
    """The facts of a byte-level vocabulary with ``words`` (text to GGUF type) behind the characters."""
    types = np.array([1] * 256 + list(words.values()), np.int32)
    return convert(folder, bpe_keys(list(words), [], token_type=types, **more)).facts


def test_ends_are_found_by_text_and_become_control_tokens(tmp_path: Path) -> None:
    words = {"<|im_end|>": 1, "<|endoftext|>": 4, "<|fim_pad|>": 5, "</s>": 3, "<reponame>": 1, "<|im_start|>": 3}
    facts = facts_of(tmp_path, words, bos_token_id=261, eos_token_id=256)
    assert facts.eog_ids == {256, 257, 258, 259, 260}
    assert facts.types[256:] == "ccrccc"
    assert (facts.bos_id, facts.eos_id) == (261, 256)


def test_keys_name_ends_that_no_text_tells(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, dict.fromkeys("①②③④", 3), eos_token_id=256, eot_token_id=257, fim_sep_token_id=258)
    assert facts.eog_ids == {256, 257, 258}
    assert facts.types[256:] == "cccc"


def test_ids_outside_the_vocabulary_do_not_count(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {"①": 1}, bos_token_id=9999, eot_token_id=9999)
    assert (facts.bos_id, facts.eos_id, set(facts.eog_ids)) == (11, 11, {11})


def test_types_of_gguf(tmp_path: Path) -> None:
    words = {"①": 0, "②": 1, "③": 2, "④": 3, "⑤": 4, "⑥": 5, "<0x0A>": 6, "⑦": 7, "<unused7>": 3}
    assert facts_of(tmp_path, words).types[256:] == "enkcuxber"


def test_the_end_of_gpt_oss_channels_is_no_end(tmp_path: Path) -> None:
    words = dict.fromkeys(("<|end|>", "<|return|>", "<|call|>", "<|channel|>"), 3)
    facts = facts_of(tmp_path, words, eos_token_id=257)
    assert facts.eog_ids == {257, 258}
    assert facts.types[256:] == "uccu"


def test_a_plain_end_mark_is_no_end_where_tools_answer(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {"</s>": 1, "<|tool_response>": 3}, eos_token_id=257)
    assert facts.eog_ids == {257}
    assert facts.types[256:] == "nc"


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(folder: Path, keys: Mapping[str, object]) -> str:
    """What is said about a file with ``keys``, without the path in front."""
    with pytest.raises(ModelFileError) as caught:
        convert(folder, keys)
    message = str(caught.value)
    assert message.isprintable()
    assert message.startswith(f"{folder / 'vocab.gguf'}: ")
    return message.removeprefix(f"{folder / 'vocab.gguf'}: ")


def test_an_unknown_pre_tokenizer_names_the_supported_ones(tmp_path: Path) -> None:
    said = refused(tmp_path, bpe_keys([], [], "tekken"))
    assert said.startswith("key tokenizer.ggml.pre is tekken; allowed: codeshell, command-r, dbrx, deepseek-r1-qwen, ")
    assert "llama-bpe" in said and "qwen2" in said and "smollm" in said


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model", "bert", "key tokenizer.ggml.model is bert; allowed: gpt2, llama"),
        ("model", 5, "key tokenizer.ggml.model is int; allowed: a text"),
        ("tokens", 5, "key tokenizer.ggml.tokens is 5; allowed: an array of strings"),
        ("tokens", ["a", "b", "a"], "key tokenizer.ggml.tokens is 'a' twice; allowed: each token once"),
        ("tokens", ["x" * 1025], "key tokenizer.ggml.tokens is a list with a token of 1025 characters"),
        ("tokens", Typed(8, [b"a", b"\xff"], True), "key tokenizer.ggml.tokens is not UTF-8 at id 1"),
        ("merges", 5, "key tokenizer.ggml.merges is 5; allowed: an array of strings"),
        ("merges", ["a b"], "its merges do not fit its tokens ("),
        ("token_type", np.array([1], np.int32), "key tokenizer.ggml.token_type is [1]; allowed: 256 numbers"),
        (
            "token_type",
            np.array([6] * 256, np.int32),
            "key tokenizer.ggml.tokens is '!' for a byte; allowed: <0x00> to",
        ),
        ("add_bos_token", 1, "key tokenizer.ggml.add_bos_token is 1; allowed: true, false"),
    ],
)
def test_damaged_keys_are_refused_in_one_line(tmp_path: Path, key: str, value: object, said: str) -> None:
    assert refused(tmp_path, {**bpe_keys([], []), f"tokenizer.ggml.{key}": value}).startswith(said)


@pytest.mark.parametrize("key", ["model", "tokens", "merges"])
def test_missing_keys_are_refused(tmp_path: Path, key: str) -> None:
    keys = bpe_keys([], [])
    del keys[f"tokenizer.ggml.{key}"]
    assert refused(tmp_path, keys).startswith(f"key tokenizer.ggml.{key} is missing")


def test_missing_package_names_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'foredraft\[executorch\]'"):
        convert(tmp_path, bpe_keys([], []))


def test_an_empty_entry_gets_a_name(tmp_path: Path) -> None:
    assert spelled(vocabulary(tmp_path, bpe_keys([""], [])), "a") == ["a"]
    assert vocabulary(tmp_path, bpe_keys([""], [])).text_of(256) == b"[EMPTY_256]"


# --- Hugging Face directories -----------------------------------------------------------------------------------------


def directory(folder: Path, keys: Mapping[str, object], **files: object) -> Path:
    """A model directory with the tokenizer of ``keys``; other files by their stem, as JSON."""
    convert(folder, keys).tokenizer.save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


CHAT = bpe_keys(
    ["ab", "<|im_start|>", "<|im_end|>", "<tool>"],
    ["a b"],
    "qwen2",
    token_type=np.array([1] * 257 + [3, 3, 4], np.int32),
)


def test_a_directory_gives_the_same_tokenizer_and_facts(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "<|im_end|>"}, "bos_token": None, "chat_template": "{{ 1 }}"}
    path = directory(tmp_path, CHAT, tokenizer_config=config, config={"vocab_size": 264})
    converted = tokenizer_from_directory(path)
    facts = converted.facts
    assert (facts.kind, facts.types) == ("bpe", "n" * 257 + "ccu" + "xxxx")
    assert (facts.bos_id, facts.eos_id, set(facts.eog_ids)) == (None, 258, {258})
    assert (facts.add_bos, facts.add_eos, facts.chat_template) == (False, False, "{{ 1 }}")
    vocab = HfTokenizer(converted.tokenizer, facts)
    assert vocab.encode("ab<|im_end|>", add_special=True, parse_special=True) == [256, 258]
    assert vocab.text_of(263) == b"[PAD263]"


def test_ends_of_the_generation_config_count(tmp_path: Path) -> None:
    path = directory(tmp_path, CHAT, generation_config={"eos_token_id": [259, 258, 9999]})
    assert tokenizer_from_directory(path).facts.eog_ids == {258, 259}
    path = directory(tmp_path, CHAT, generation_config={"eos_token_id": 257}, config={"eos_token_id": 257})
    facts = tokenizer_from_directory(path).facts
    assert (facts.eos_id, set(facts.eog_ids)) == (257, {257, 258})


def test_sentencepiece_directory_is_recognized(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    path = directory(tmp_path, spm_keys(["a", "▁a", "▁"]), tokenizer_config=config)
    converted = tokenizer_from_directory(path)
    facts = converted.facts
    assert (facts.kind, facts.types) == ("spm", "kcc" + "b" * 256 + "nnn")
    assert (facts.bos_id, facts.eos_id, facts.add_bos, facts.add_eos) == (1, 2, True, False)
    vocab = HfTokenizer(converted.tokenizer, facts)
    assert vocab.encode("a</s>é", add_special=True, parse_special=True) == [1, A + 1, 2, A + 2, 3 + 0xC3, 3 + 0xA9]


@pytest.mark.parametrize(("said", "adds"), [(True, True), (False, False), (None, True)])
def test_tokenizer_config_decides_on_bos_else_the_post_processor(tmp_path: Path, said: bool | None, adds: bool) -> None:
    config = {"bos_token": "<s>", "add_bos_token": said}
    path = directory(tmp_path, spm_keys(["a"]), tokenizer_config=config)
    assert tokenizer_from_directory(path).facts.add_bos is adds


def test_chat_template_file_comes_before_the_config(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    path = directory(tmp_path, CHAT, tokenizer_config={"chat_template": several})
    assert tokenizer_from_directory(path).facts.chat_template == "D"
    (path / "chat_template.jinja").write_text("{{ file }}")
    assert tokenizer_from_directory(path).facts.chat_template == "{{ file }}"


def test_added_tokens_behind_the_model_are_left_out(tmp_path: Path) -> None:
    path = directory(tmp_path, CHAT, config={"vocab_size": 260})
    data = json.loads((path / "tokenizer.json").read_text())
    data["added_tokens"].append({**data["added_tokens"][0], "id": 260, "content": "<image>"})
    (path / "tokenizer.json").write_text(json.dumps(data))
    converted = tokenizer_from_directory(path)
    assert converted.facts.vocab_size == 260
    assert max(HfTokenizer(converted.tokenizer, converted.facts).encode("<image>", **SPECIAL)) < 256


SPECIAL: dict[str, Any] = {"add_special": True, "parse_special": True}


def refused_directory(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        tokenizer_from_directory(path)
    message = str(caught.value)
    assert message.isprintable()
    assert message.startswith(str(path))
    return message.removeprefix(f"{path}/")


def test_directories_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    assert refused_directory(tmp_path).startswith("tokenizer.json: cannot be read (No such file or directory)")
    path = directory(tmp_path, CHAT, config={"vocab_size": 200})
    assert refused_directory(path).startswith("tokenizer.json: has ids up to 259, config.json only 200 rows")
    (path / "config.json").write_text("[]")
    assert refused_directory(path).startswith("config.json: holds no JSON object")
    (path / "config.json").write_text("{")
    assert refused_directory(path).startswith("config.json: is not JSON (")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (tokenizers.models.Unigram([("<unk>", 0.0)], 0), "Unigram"),
        (tokenizers.models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"), "WordPiece"),
        (tokenizers.models.BPE({"a": 0}, []), "BPE over characters"),
    ],
)
def test_other_kinds_of_tokenizers_are_named(tmp_path: Path, model: Any, name: str) -> None:
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    said = refused_directory(tmp_path)
    assert said.startswith(f"tokenizer.json: holds a tokenizer of type {name}; allowed: BPE over bytes, ")


def test_no_tokenizer_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 5}')
    assert "holds a tokenizer of type None" in refused_directory(tmp_path)
