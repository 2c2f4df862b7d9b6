"""The tokenizers of exports against llama.cpp's: same ids, same pieces, same facts.

Left out of the generated texts of byte-level models: the letters and digits that Unicode 16 (September 2024) added.
The ``tokenizers`` package knows them; llama.cpp's character table is older and takes them for unassigned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.engines.llama_vocab import LoadedVocab, load_vocab
from foredraft.hf_tokenizer import HfTokenizer, TokenizerFacts
from foredraft.modelfile import read_gguf
from foredraft.pair import check_pair
from foredraft.tokenizer_json import tokenizer_from_gguf
from foredraft.tokens import Tokenizer
from tests.support.gguf_writer import Typed, write_gguf
from tests.support.models import ensure_model
from tests.support.vocabularies import SCRIPTS

UNICODE_16 = (
    *(range(0x1C89, 0x1C8B), range(0xA7CB, 0xA7CE), range(0xA7DA, 0xA7DD), range(0x105C0, 0x105F4)),
    *(range(0x10D40, 0x10D86), range(0x10EC2, 0x10EC5), range(0x11380, 0x113D4), range(0x116D0, 0x116E4)),
    *(range(0x11BC0, 0x11BFA), range(0x13460, 0x143FB), range(0x16100, 0x1613A), range(0x16D40, 0x16D7A)),
    *(range(0x18CFF, 0x18D00), range(0x1CCF0, 0x1CCFA), range(0x1E5D0, 0x1E5FB)),
)

CODE = '''#include <stdio.h>
int main(int argc, char **argv) {
\tfor (int i = 0; i < 10; ++i) { printf("%d: %s\\n", i, argv[i]); }  /* done */
\treturn 0xFF & ~1;
}
class Foo(Bar[T], metaclass=Meta):
    """It's a "docstring"."""
    def __init__(self, *args: int, **kwargs) -> None:
        self.x_1 = [a if a != b else c for a, b in zip(args, range(1_000))]
        raise ValueError(f"{self.x_1!r:>10}")


<table><tr><td>cell</td></tr></table>
SELECT * FROM t WHERE a >= 3.14e-10 AND b LIKE '%x%';
'''
TEXTS = (
    *SCRIPTS,
    CODE,
    CODE.replace("\n", "\r\n"),
    "",
    " ",
    "\n",
    "The quick brown fox jumps over Mr. O'Neill, who isn't amused; they'll say we've won, I'd bet it's 'quoted'.",
    "THEY'LL SAY WE'VE WON, I'D BET IT'S 'QUOTED'. 'S 't 'Re 'LL ''s s's",
    "0 1 12 123 1234 12345 1234567890 3.14159 1,000,000 ½ ² Ⅷ ٣٤٥ १२३ ㊿",
    "Ünïcödé ẞ ß ﬁ Ǆ ǅ e\u0301e\u0301 \u0301 a\u200db \u200b zero\u00adwidth \ufeffbom",
    "한국어 텍스트 ㄱㄴㄷ 漢字かな交じり文、句読点。 𠮷野家 ﷽ ქართული հայերեն አማርኛ ភាសាខ្មែរ தமிழ் বাংলা",
    "👩🏽‍🚀👨‍👩‍👧‍👦🇫🇷🏴󠁧󠁢󠁥󠁮󠁧󠁿 ☃️ ❤️‍🔥 \U0001fae8 \U0003134a \U000e0041 \U0010fffd",
    "a\u00a0b\u1680c\u2003d\u3000e\u2028f\u2029g\x85h\x0bi\x0cj\x1ck",
    "\0\0a\0 \x01\x04\x7f\x80\x9f",
    "<0x0A><0xE2>\u2581\u2581a \u2581 [PAD151700] [UNK_BYTE_0x]",
    "\ud800", "a\udfffb \ud83c\udf89", "\udf89\ud83c",
    *(unit * length for unit in (*" \n\t=-aé日\u2581", "\r\n", "ab") for length in (2, 3, 17, 70)),
    *(" " * length + "x" + " " * length for length in (1, 2, 5, 16, 33, 64)),
    "  \n \n\n  \t\n   x\n\n\n \n",
)  # fmt: skip
TURNS = (
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "<bos><eos><pad><unk><mask>[multimodal]<unused0><unused99>",
    "<|endoftext|><|fim_prefix|>a<|fim_suffix|>b<|fim_middle|><|fim_pad|><|repo_name|><|file_sep|><tool_call>{}</tool_call>",
    "<repo_name><reponame><file_sep><filename><gh_stars><issue_start><jupyter_code><empty_output>",
    "< |im_end|><|im_end |><|im_end<|im_end|>|><||im_end||>",
    "<s></s><unk>[INST] x [/INST] <|eot_id|><|begin_of_text|>",
)

FIELDS = ("vocab_size", "bos_id", "eos_id", "eog_ids", "add_bos", "add_eos", "kind", "chat_template")


@dataclass(frozen=True)
class Both:
    """llama.cpp's tokenizer of a model, and that of its export, read back from files."""

    llama: LoadedVocab
    ours: HfTokenizer


def exported(path: Path, folder: Path) -> HfTokenizer:
    """The tokenizer of the GGUF ``path`` through a tokenizer.json and a manifest."""
    converted = tokenizer_from_gguf(read_gguf(path))
    converted.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    return HfTokenizer.load(folder / "tokenizer.json", TokenizerFacts.from_json(converted.facts.to_json()))


def assert_same_ids(both: Both, text: str) -> None:
    for parse_special in (False, True):
        for add_special in (False, True):
            want = both.llama.encode(text, add_special=add_special, parse_special=parse_special)
            got = both.ours.encode(text, add_special=add_special, parse_special=parse_special)
            assert got == want, f"{text!r}, parse_special={parse_special}"


def row(vocab: Tokenizer, id: int) -> tuple[bytes, str, bytes, bytes]:
    return vocab.text_of(id), vocab.attribute(id), vocab.piece(id), vocab.piece(id, special=True)


def assert_agree(both: Both) -> None:
    """All but generated texts."""
    for name in FIELDS:
        assert getattr(both.ours, name) == getattr(both.llama, name), name
    different = [id for id in range(both.llama.vocab_size) if row(both.llama, id) != row(both.ours, id)]
    assert different == []
    for text in (*TEXTS, *TURNS):
        assert_same_ids(both, text)
    assert check_pair(both.llama, both.ours).ok


@pytest.fixture(scope="module")
def smol_both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    path = ensure_model("smollm2-135m")
    with load_vocab(path) as vocab:
        yield Both(vocab, exported(path, tmp_path_factory.mktemp("smol")))


@pytest.fixture(scope="module")
def gemma_both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    path = ensure_model("gemma3-270m")
    with load_vocab(path) as vocab:
        yield Both(vocab, exported(path, tmp_path_factory.mktemp("gemma")))


@pytest.fixture(scope="module")
def qwen_both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    path = ensure_model("qwen2.5-coder-0.5b")
    with load_vocab(path) as vocab:
        yield Both(vocab, exported(path, tmp_path_factory.mktemp("qwen")))


def mixtures(both: Both, avoid: Sequence[range], count: int) -> Iterator[str]:
    """Texts of random tokens, special ones too, between odd characters and runs."""
    random = Random(7)
    odd: list[str] = [
        *" \n\t\r'1aAé日🎉\u2581\u200d\0\x04\u3000\x85!<|>",
        "'S",
        "'ll",
        "22",
        "333",
        "  ",
        "\n\n",
        "?!",
        "\U0004f123",
    ]

    def unit() -> str:
        choice = random.random()
        if choice < 0.4:
            return random.choice(odd)
        if choice < 0.8:
            piece = both.llama.piece(random.randrange(both.llama.vocab_size), special=True)
            return piece.decode("utf-8", "replace")
        if choice < 0.9:
            run: str = random.choice([" ", "\n", "\t", "aba", "0", "\u2581", "-="]) * random.randrange(1, 50)
            return run
        return chr(random.choice([random.randrange(0x20, 0xD800), random.randrange(0x10000, 0x1FBFF)]))

    made = 0
    while made < count:
        text = "".join(unit() for _ in range(random.randrange(1, 12)))
        if not any(ord(character) in codes for character in text for codes in avoid):
            made += 1
            yield text


def test_smollm2_agrees(smol_both: Both) -> None:
    assert_agree(smol_both)
    for text in mixtures(smol_both, UNICODE_16, 2000):
        assert_same_ids(smol_both, text)


def test_gemma_agrees(gemma_both: Both) -> None:
    assert_agree(gemma_both)
    for text in mixtures(gemma_both, (), 2000):
        assert_same_ids(gemma_both, text)


@pytest.mark.bench
def test_qwen_agrees(qwen_both: Both) -> None:
    assert_agree(qwen_both)
    for text in mixtures(qwen_both, UNICODE_16, 2000):
        assert_same_ids(qwen_both, text)


def old_characters(text: str) -> bool:
    return not any(ord(character) in codes for character in text for codes in UNICODE_16)


ANY = st.text(max_size=60)


@given(text=ANY.filter(old_characters))
def test_any_text_has_smollm2s_ids(smol_both: Both, text: str) -> None:
    assert_same_ids(smol_both, text)


@given(text=ANY)
def test_any_text_has_gemmas_ids(gemma_both: Both, text: str) -> None:
    assert_same_ids(gemma_both, text)


@pytest.mark.bench
@given(text=ANY.filter(old_characters))
def test_any_text_has_qwens_ids(qwen_both: Both, text: str) -> None:
    assert_same_ids(qwen_both, text)


@pytest.mark.parametrize("unit", ["word ", "a", "1", " ", "日", "\n", "<|im_end|><eos>"])
def test_long_texts_have_the_same_ids(smol_both: Both, gemma_both: Both, unit: str) -> None:
    for both in (smol_both, gemma_both):
        assert_same_ids(both, unit * (20_000 if len(unit) < 8 else 1000))


# --- other vocabularies -----------------------------------------------------------------------------------------------

PRE_TOKENIZERS = (
    "default",
    "gpt-2",
    "smollm",
    "qwen2",
    "llama-bpe",
    "dbrx",
    "falcon3",
    "mpt",
    "command-r",
    "stablelm2",
)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_cuts_as_in_llama_cpp(smol_both: Both, tmp_path: Path, pre: str) -> None:
    """SmolLM2's tokens and merges, cut into words in another way."""
    metadata = read_gguf(ensure_model("smollm2-135m")).metadata
    keys: dict[str, object] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": Typed(8, list(metadata["tokenizer.ggml.tokens"]), True),  # type: ignore[call-overload]
        "tokenizer.ggml.merges": Typed(8, list(metadata["tokenizer.ggml.merges"]), True),  # type: ignore[call-overload]
        "tokenizer.ggml.token_type": metadata["tokenizer.ggml.token_type"],
        **vocabulary_only(),
    }
    path = write_gguf(tmp_path / "vocab.gguf", keys)
    with load_vocab(path) as vocab:
        both = Both(vocab, exported(path, tmp_path))
        for name in FIELDS:
            assert getattr(both.ours, name) == getattr(both.llama, name), name
        for text in (*TEXTS, *TURNS, *mixtures(smol_both, UNICODE_16, 300)):
            assert_same_ids(both, text)


def vocabulary_only() -> dict[str, object]:
    """The keys llama.cpp wants of a model of which it reads only the vocabulary."""
    numbers = {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 64}
    heads = {"attention.head_count": 2, "attention.layer_norm_rms_epsilon": 1e-5}
    return {f"llama.{key}": value for key, value in {**numbers, **heads}.items()}


@st.composite
def sentencepiece(draw: st.DrawFn) -> tuple[dict[str, object], list[str]]:
    """Keys of a small vocabulary over a, b, é and the space, whose scores are all different, and texts."""
    words = draw(st.lists(st.text(alphabet="abé▁", min_size=2, max_size=5), min_size=1, max_size=20, unique=True))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abé▁", *words]
    scores = draw(st.permutations(range(len(words))))
    keys: dict[str, object] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array([0.0] * 263 + [-float(score) for score in scores], np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * (4 + len(words)), np.int32),
        "tokenizer.ggml.add_space_prefix": draw(st.booleans()),
        **vocabulary_only(),
    }
    pieces = st.sampled_from(["a", "b", "é", " ", "ab", "aa", "x", "</s>", "<s>", "<unk>", "\u2581"])
    texts = st.lists(pieces, max_size=20).map("".join)
    return keys, draw(st.lists(texts, min_size=5, max_size=5))


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, object]], Path]:
    folder = tmp_path_factory.mktemp("made")
    return lambda keys: write_gguf(folder / "vocab.gguf", keys)


@settings(max_examples=60)
@given(made=sentencepiece())
def test_small_sentencepiece_vocabularies_agree(
    file_of: Callable[[dict[str, object]], Path], made: tuple[dict[str, object], list[str]]
) -> None:
    path = file_of(made[0])
    with load_vocab(path) as vocab:
        both = Both(vocab, exported(path, path.parent))
        assert [row(both.ours, id) for id in range(vocab.vocab_size)] == [
            row(vocab, id) for id in range(vocab.vocab_size)
        ]
        for text in made[1]:
            assert_same_ids(both, text)
