"""llama.cpp's tokenizers behind the ``Tokenizer`` protocol, over the package's low-level bindings.

Loads a vocabulary without weights where only the vocabulary is needed. Knows nothing about contexts or
decoding.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from ctypes import create_string_buffer
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from foredraft.errors import InvalidValue, MissingExtra, ModelFileError, PromptError
from foredraft.modelfile import read_gguf
from foredraft.tokens import Attribute, check_id

_MAX_BYTES = 2**31 - 1
_KINDS = {0: "none", 1: "spm", 2: "bpe", 3: "wpm", 4: "ugm", 5: "rwkv", 6: "plamo2"}
_ATTRIBUTES: tuple[tuple[int, Attribute], ...] = (
    (1, "unknown"),
    (32, "byte"),
    (2, "unused"),
    (8, "control"),
    (16, "user_defined"),
)
"""Bits of llama_token_attr, the telling one first: llama.cpp may set several (unused control tokens, say)."""


class NativeLog:
    """Keeps the last error lines of the native library instead of printing everything to stderr."""

    def __init__(self, api: ModuleType) -> None:
        self._error_level = 4  # GGML_LOG_LEVEL_ERROR; 5 continues the line before
        self._errors: deque[str] = deque(maxlen=8)
        self._first: str | None = None
        self._interrupted = False
        callback: Callable[..., Any] = api.llama_log_callback
        self._keep_alive = callback(self._take)
        api.llama_log_set(self._keep_alive, None)

    def _take(self, level: int, text: bytes, _user_data: object) -> None:
        try:
            if level == self._error_level and text.strip():
                line = text.decode("utf-8", "replace").strip()
                self._first = self._first or line
                self._errors.append(line)
        except KeyboardInterrupt:  # ctypes would swallow it: nothing passes through native code
            self._interrupted = True

    def deliver_interrupt(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C arrived while llama.cpp was writing its log; call it behind native calls
        that take long."""
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def first_error(self) -> str | None:
        """The first error line since ``clear``: the cause, where later ones only say that loading failed."""
        return self._first

    def last_error(self) -> str | None:
        """The last error line so far, None if there was none."""
        return self._errors[-1] if self._errors else None

    def clear(self) -> None:
        """Forget the lines so far, so that ``last_error`` belongs to the next call."""
        self._errors.clear()
        self._first = None


def native_api() -> ModuleType:
    """The low-level bindings, or MissingExtra with the command that installs them."""
    try:
        return import_module("llama_cpp.llama_cpp")
    except ImportError as error:
        raise MissingExtra(
            "the llama.cpp engine needs llama-cpp-python; install it with: pip install 'foredraft[llama]'"
        ) from error


@cache
def quiet_native_log() -> NativeLog:
    """Route llama.cpp's log to a NativeLog that lives as long as the process. Safe to call any number of
    times."""
    return NativeLog(native_api())


class LlamaVocab:
    """The vocabulary of a llama.cpp model that somebody else owns and keeps alive.

    ``model`` is a ``llama_model *``.
    """

    def __init__(self, model: Any) -> None:
        api = native_api()
        self._api = api
        self._model = model
        self._vocab = api.llama_model_get_vocab(model)
        self.vocab_size: int = api.llama_vocab_n_tokens(self._vocab)
        self.bos_id = self._id_or_none(api.llama_vocab_bos(self._vocab))
        self.eos_id = self._id_or_none(api.llama_vocab_eos(self._vocab))
        self.add_bos = bool(api.llama_vocab_get_add_bos(self._vocab))
        self.add_eos = bool(api.llama_vocab_get_add_eos(self._vocab))
        number = api.llama_vocab_type(self._vocab)
        self.kind = _KINDS.get(number, f"type{number}")
        template = api.llama_model_chat_template(model, None)
        self.chat_template = template.decode("utf-8", "replace") if template else None

    @cached_property
    def eog_ids(self) -> frozenset[int]:
        """Every id llama.cpp treats as the end of a generation; one pass over the vocabulary, done once."""
        is_eog, vocab = self._api.llama_vocab_is_eog, self._vocab
        return frozenset(id for id in range(self.vocab_size) if is_eog(vocab, id))

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of ``text``, which may hold NUL; surrogate pairs are joined, lone surrogates become U+FFFD.

        Raises PromptError beyond 2 GiB of UTF-8.
        """
        data = _utf8(text)
        if len(data) > _MAX_BYTES:
            raise PromptError(f"the prompt has {len(data)} bytes; allowed: up to {_MAX_BYTES}")
        capacity = len(data) + 8  # a token holds at least a byte, apart from BOS, EOS and a space prefix
        while True:
            ids = (self._api.llama_token * capacity)()
            count = self._api.llama_tokenize(self._vocab, data, len(data), ids, capacity, add_special, parse_special)
            if count >= 0:
                tokens: list[int] = ids[:count]
                return tokens
            if not capacity < -count < _MAX_BYTES:
                raise PromptError(f"llama.cpp cannot tokenize this prompt of {len(data)} bytes; shorten it")
            capacity = -count

    def piece(self, id: int, *, special: bool = False) -> bytes:
        """The bytes of one token; empty for control tokens unless ``special``."""
        check_id(id, self.vocab_size)
        size = 64
        while True:
            buffer = create_string_buffer(size)
            count = self._api.llama_token_to_piece(self._vocab, id, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def text_of(self, id: int) -> bytes:
        """The entry as the model file spells it."""
        text: bytes = self._api.llama_vocab_get_text(self._vocab, check_id(id, self.vocab_size))
        return text

    def attribute(self, id: int) -> Attribute:
        """What the entry is for."""
        bits = self._api.llama_vocab_get_attr(self._vocab, check_id(id, self.vocab_size))
        return next((name for bit, name in _ATTRIBUTES if bits & bit), "normal")

    def _id_or_none(self, id: int) -> int | None:
        return id if 0 <= id < self.vocab_size else None


class LoadedVocab(LlamaVocab):
    """A vocabulary that owns its model; a context manager. After ``close`` every method raises InvalidValue,
    because the vocabulary is then empty."""

    def close(self) -> None:
        """Free the model. Idempotent."""
        if self._model is not None:
            self._api.llama_model_free(self._model)
            self._model = self._vocab = None
            self.vocab_size = 0

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """As in LlamaVocab; InvalidValue after ``close``."""
        if self._vocab is None:
            raise InvalidValue("vocabulary", "closed", "an open one")
        return super().encode(text, add_special=add_special, parse_special=parse_special)

    def __enter__(self) -> LoadedVocab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError, TypeError):  # half-built, or the interpreter is shutting down
            self.close()


def load_vocab(path: Path) -> LoadedVocab:
    """Load only the vocabulary of a GGUF file (a fraction of a second, no weights).

    Raises ModelFileError for a missing, truncated or damaged file, before native code sees it where the
    header shows it.
    """
    read_gguf(path)
    api = native_api()
    log = quiet_native_log()
    log.clear()
    api.llama_backend_init()
    params = api.llama_model_default_params()
    params.vocab_only = True
    model = api.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        reason = log.first_error() or "no reason given"
        raise ModelFileError(f"{path}: llama.cpp cannot load its vocabulary ({reason})")
    loaded = LoadedVocab(model)
    try:
        log.deliver_interrupt()
    except KeyboardInterrupt:
        loaded.close()
        raise
    return loaded


def _utf8(text: str) -> bytes:
    """UTF-8 of any str: surrogate pairs are joined, lone ones replaced by U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
