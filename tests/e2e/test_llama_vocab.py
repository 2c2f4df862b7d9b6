"""llama.cpp's tokenizers on real models: golden ids, round trips, templates, pairs."""

from __future__ import annotations

import os
import struct
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.chat import encode_messages, encode_prompt
from foredraft.engines.llama_vocab import LlamaVocab, LoadedVocab, load_vocab, quiet_native_log
from foredraft.errors import InvalidValue, MissingExtra, ModelFileError, PromptError
from foredraft.pair import check_pair, real_size
from foredraft.tokens import StopScanner, TextStream
from tests.support.models import ensure_model
from tests.support.vocabularies import SCRIPTS, assert_round_trips, text_of

SMOL_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def test_smollm2_vocabulary(smol: LoadedVocab) -> None:
    assert (smol.kind, smol.vocab_size, real_size(smol)) == ("bpe", 49152, 49152)
    assert (smol.bos_id, smol.eos_id, smol.add_bos, smol.add_eos) == (1, 2, False, False)
    assert smol.eog_ids == {0, 2, 4}
    assert (smol.text_of(2), smol.attribute(2), smol.attribute(504)) == (b"<|im_end|>", "control", "normal")
    assert (smol.piece(2), smol.piece(2, special=True)) == (b"", b"<|im_end|>")
    assert (smol.text_of(3575), smol.piece(3575)) == ("Ġcapital".encode(), b" capital")


def test_gemma_vocabulary(gemma: LoadedVocab) -> None:
    assert (gemma.kind, gemma.vocab_size, gemma.add_bos, gemma.add_eos) == ("spm", 262144, True, False)
    assert (gemma.bos_id, gemma.eos_id) == (2, 1)
    assert gemma.eog_ids == {1, 106, 212}
    assert gemma.chat_template is None
    kinds = [gemma.attribute(id) for id in (2, 6, 107, 238, 818)]
    assert kinds == ["control", "unused", "user_defined", "byte", "normal"]
    assert (gemma.piece(238 + 0xE9), gemma.piece(107)) == (b"\xe9", b"\n")
    assert gemma.text_of(real_size(gemma)) == b"<unused99>"


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("def fib(n):\n    return", [1604, 3987, 24, 94, 727, 472, 1003]),
        (
            "naïve café 日本語 🎉",
            [3546, 46494, 37366, 17097, 241, 115, 40993, 179, 120, 248, 15107, 232, 227],
        ),
        ("", []),
    ],
)
def test_smollm2_golden_ids(smol: LoadedVocab, text: str, ids: list[int]) -> None:
    assert smol.encode(text, add_special=True, parse_special=True) == ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("The capital of France is", [2, 818, 5279, 529, 7001, 563]),
        ("def fib(n):\n    return", [2, 2063, 10779, 236769, 236749, 1473, 107, 140, 2060]),
        ("naïve café 日本語 🎉", [2, 1789, 238527, 560, 33443, 33375, 238582, 204906]),
        ("", [2]),
    ],
)
def test_gemma_golden_ids(gemma: LoadedVocab, text: str, ids: list[int]) -> None:
    assert gemma.encode(text, add_special=True, parse_special=True) == ids
    assert gemma.encode(text, add_special=False, parse_special=True) == ids[1:]


def test_control_tokens_in_a_prompt_are_parsed_only_on_request(smol: LoadedVocab) -> None:
    """Case A13."""
    text = "<|im_start|>user\nHi<|im_end|>"
    assert smol.encode(text, add_special=True, parse_special=True) == [1, 4093, 198, 26843, 2]
    plain = smol.encode(text, add_special=True, parse_special=False)
    assert not {1, 2} & set(plain)
    assert text_of(smol, plain) == text


def test_control_tokens_of_gemma(gemma: LoadedVocab) -> None:
    text = "<start_of_turn>user\nHi<end_of_turn>"
    assert gemma.encode(text, add_special=True, parse_special=True) == [2, 105, 2364, 107, 10979, 106]


@pytest.mark.parametrize("text", SCRIPTS)
def test_text_in_many_scripts_comes_back(smol: LoadedVocab, gemma: LoadedVocab, text: str) -> None:
    assert_round_trips(smol, text)
    assert_round_trips(gemma, text)


@given(text=st.text(max_size=60))
def test_any_text_comes_back_but_for_the_bytes_smollm2_lacks(smol: LoadedVocab, text: str) -> None:
    """SmolLM2's vocabulary has no token for some control characters and for planes 4 to 11."""
    kept = bytes(byte for byte in text.encode() if byte not in b"\x04\x06\x13\x14\x16\x1d\xf1\xf2")
    ids = smol.encode(text, add_special=False, parse_special=False)
    assert b"".join(smol.piece(id) for id in ids) == kept


@given(text=st.text(max_size=60))
def test_any_text_comes_back_but_for_gemmas_space_mark(gemma: LoadedVocab, text: str) -> None:
    """SentencePiece writes a space as U+2581 and cannot tell the two apart."""
    ids = gemma.encode(text, add_special=False, parse_special=False)
    assert text_of(gemma, ids) == text.replace("\u2581", " ")


def test_surrogates_are_joined_or_replaced(smol: LoadedVocab) -> None:
    ids = smol.encode("\ud83c\udf89 \ud800", add_special=False, parse_special=False)
    assert text_of(smol, ids) == "🎉 \ufffd"


@pytest.mark.parametrize("unit", ["a", "1", " ", "日", "\n", "<|im_end|>"])
def test_long_monotonous_text_is_tokenized(smol: LoadedVocab, gemma: LoadedVocab, unit: str) -> None:
    text = unit * 50_000
    for vocab in (smol, gemma):
        assert text_of(vocab, vocab.encode(text, add_special=False, parse_special=False)) == text


def test_pieces_longer_than_the_first_buffer_are_whole(smol: LoadedVocab) -> None:
    assert smol.piece(46778) == b"\n" + b" " * 80
    assert smol.text_of(46778).decode() == "Ċ" + "Ġ" * 80


class CrampedAPI:
    """The bindings, with a tokenizer that asks for a larger buffer first, or for an impossible one."""

    def __init__(self, api: ModuleType, answer: int) -> None:
        self._api = api
        self._answers = [answer]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def llama_tokenize(self, *arguments: Any) -> int:
        return self._answers.pop() if self._answers else self._api.llama_tokenize(*arguments)


def test_tokenizer_gets_the_buffer_it_asks_for(smol: LoadedVocab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smol, "_api", CrampedAPI(smol._api, -1000))
    assert smol.encode("Hi", add_special=True, parse_special=True) == [26843]


@pytest.mark.parametrize("answer", [-(2**31), -3])
def test_tokenizer_that_gives_up_is_a_clear_error(
    smol: LoadedVocab, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    monkeypatch.setattr(smol, "_api", CrampedAPI(smol._api, answer))
    with pytest.raises(PromptError, match="cannot tokenize this prompt of 2 bytes"):
        smol.encode("Hi", add_special=True, parse_special=True)


def test_missing_package_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
    with pytest.raises(MissingExtra, match=r"pip install 'foredraft\[llama\]'"):
        load_vocab(ensure_model("smollm2-135m"))


def test_file_that_only_llama_cpp_refuses_says_why(tmp_path: Path) -> None:
    key, value = b"general.architecture", b"nosuch"
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
    path = tmp_path / "foreign.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair + bytes(64))
    with pytest.raises(ModelFileError, match=r"foreign\.gguf: ") as caught:
        load_vocab(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("id", [-1, 49152, 2**31])
def test_ids_outside_the_vocabulary_never_reach_native_code(smol: LoadedVocab, id: int) -> None:
    for call in (smol.piece, smol.text_of, smol.attribute):
        with pytest.raises(InvalidValue, match=rf"token id is {id}; allowed: an integer in \[0, 49152\)"):
            call(id)


def test_an_interrupt_within_the_log_is_not_lost(smol: LoadedVocab) -> None:
    """Ctrl-C may arrive while llama.cpp calls back to write its log; nothing passes through native code."""

    class Interrupted(bytes):
        def strip(self, *_: object) -> bytes:
            raise KeyboardInterrupt

    log = quiet_native_log()
    log._take(4, Interrupted(b"loading"), None)
    with pytest.raises(KeyboardInterrupt):
        log.deliver_interrupt()
    log.deliver_interrupt()  # once


def test_stop_string_over_real_tokens(smol: LoadedVocab) -> None:
    """Case F3 on a real vocabulary."""
    ids = smol.encode("It is funny ha ha ha ha", add_special=False, parse_special=False)
    scanner, stream, shown, text = StopScanner([" ha ha ha"], smol), TextStream(smol), 0, ""
    for id in ids:
        event = scanner.push(id)
        shown += len(event.released)
        text += stream.push(event.released, event.hidden_bytes)
        if event.stopped:
            break
    assert text + stream.finish() == "It is funny"
    assert shown == len(smol.encode("It is funny", add_special=False, parse_special=False))


def test_smollm2_template(smol: LoadedVocab) -> None:
    encoded = encode_prompt(smol, "Hi!")
    assert encoded.rendered == (
        f"<|im_start|>system\n{SMOL_SYSTEM}<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"
    )
    golden = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407]
    assert encoded.ids == (*golden, 19712, 8182, 2, 198, 1, 4093, 198, 26843, 17, 2, 198, 1, 520, 9531, 198)
    assert encoded.notes == ()


def test_smollm2_conversation_with_system_text(smol: LoadedVocab) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye!"},
    ]
    assert encode_messages(smol, messages).rendered == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye!<|im_end|>\n<|im_start|>assistant\n"
    )


def test_gemma_base_has_no_template_and_gets_bos_once(gemma: LoadedVocab) -> None:
    encoded = encode_prompt(gemma, "The capital of France is")
    assert encoded.ids == (2, 818, 5279, 529, 7001, 563)
    assert encoded.notes == ("the model has no chat template: the prompt goes as plain text",)


def test_vocabulary_of_a_model_that_somebody_else_owns(smol: LoadedVocab) -> None:
    borrowed = LlamaVocab(smol._model)
    assert borrowed.encode("Hi", add_special=True, parse_special=True) == [26843]
    assert check_pair(smol, borrowed).ok


def test_closed_vocabulary_raises_and_closing_twice_is_harmless() -> None:
    vocab = load_vocab(ensure_model("smollm2-135m"))
    vocab.close()
    vocab.close()
    with pytest.raises(InvalidValue, match="vocabulary is 'closed'"):
        vocab.encode("Hi", add_special=True, parse_special=True)
    with pytest.raises(InvalidValue, match="token id is 0"):
        vocab.piece(0)


def test_unusable_files_raise_before_native_code(tmp_path: Path) -> None:
    """Case H9: truncated, foreign and missing files are clean errors."""
    with ensure_model("smollm2-135m").open("rb") as file:
        head = file.read(50_000)
    for name, data in {"1k.gguf": head[:1000], "50k.gguf": head, "noise.gguf": os.urandom(64)}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ModelFileError, match=name):
            load_vocab(tmp_path / name)
    with pytest.raises(ModelFileError, match=r"missing\.gguf"):
        load_vocab(tmp_path / "missing.gguf")


def test_native_log_is_silent_and_remembers_errors(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = quiet_native_log()
    assert quiet_native_log() is log
    with load_vocab(ensure_model("smollm2-135m")):
        pass
    log._keep_alive(4, b"went wrong\n", None)
    log._keep_alive(2, b"chatter\n", None)
    assert log.last_error() == "went wrong"
    log.clear()
    assert log.last_error() is None
    assert capfd.readouterr() == ("", "")


def test_tokenizing_from_several_threads_agrees(smol: LoadedVocab) -> None:
    expected = [smol.encode(text, add_special=True, parse_special=True) for text in SCRIPTS]
    results: list[list[list[int]]] = []

    def work() -> None:
        results.append([smol.encode(text, add_special=True, parse_special=True) for text in SCRIPTS * 20])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected * 20] * 4
