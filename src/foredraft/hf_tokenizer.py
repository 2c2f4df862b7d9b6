"""Tokenizers of exported models: a tokenizer.json run by the ``tokenizers`` package, behind the ``Tokenizer`` protocol.

``TokenizerFacts`` holds what tokenizer.json does not; it lies in the export's manifest. The room knows no GGUF and not
where the facts come from (``tokenizer_json``), and needs neither llama.cpp nor torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, Literal, NoReturn, TypeVar, cast

from foredraft.errors import MissingExtra, ModelFileError
from foredraft.tokens import Attribute, check_id

SPACE = "▁"
"""How SentencePiece vocabularies write a space (U+2581)."""
BYTE_ENTRY = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Kind = Literal["bpe", "spm"]

NORMAL, CONTROL, RESERVED, UNKNOWN, BYTE, USER_DEFINED, UNUSED, UNDEFINED = "ncrkbuxe"
"""Letters of ``TokenizerFacts.types``. Reserved: a control token that is unused too; undefined: adds no text."""
SPECIAL = frozenset((CONTROL, RESERVED, UNKNOWN))
"""Entries that show no text unless asked to, and are read from a text only on request."""

_NAMES = {
    NORMAL: "normal",
    CONTROL: "control",
    RESERVED: "reserved",
    UNKNOWN: "unknown",
    BYTE: "byte",
    USER_DEFINED: "user_defined",
    UNUSED: "unused",
    UNDEFINED: "undefined",
}
_LETTERS = {name: letter for letter, name in _NAMES.items()}
_ATTRIBUTES = {**_NAMES, RESERVED: "unused", UNDEFINED: "normal"}

_MAX_VOCABULARY = 1 << 24

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What the ``Tokenizer`` protocol needs beside a tokenizer.json.

    ``types`` has one letter per id, padding rows included (see ``NORMAL`` and its neighbours). ``kind`` is "bpe" for
    byte-level vocabularies, "spm" for those of SentencePiece.
    """

    kind: Kind
    types: str = field(repr=False)
    bos_id: int | None = None
    eos_id: int | None = None
    eog_ids: frozenset[int] = frozenset()
    add_bos: bool = False
    add_eos: bool = False
    chat_template: str | None = None

    @property
    def vocab_size(self) -> int:
        """Number of ids, padding rows included."""
        return len(self.types)

    def to_json(self) -> dict[str, object]:
        """A dict of JSON values; ``types`` as runs of [name, count]."""
        runs = [[_NAMES[letter], len(list(same))] for letter, same in groupby(self.types)]
        return {
            "kind": self.kind,
            "bos_id": self.bos_id,
            "eos_id": self.eos_id,
            "eog_ids": sorted(self.eog_ids),
            "add_bos": self.add_bos,
            "add_eos": self.add_eos,
            "chat_template": self.chat_template,
            "types": runs,
        }

    @classmethod
    def from_json(cls, data: object) -> TokenizerFacts:
        """The facts ``to_json`` wrote. ModelFileError, one line, for anything else."""
        if not isinstance(data, Mapping):
            _wrong("the whole", data, "an object")
        types = _types(data.get("types"))
        size = len(types)
        if data.get("kind") not in ("bpe", "spm"):
            _wrong("kind", data.get("kind"), "bpe, spm")
        ends = data.get("eog_ids")
        if not isinstance(ends, list):
            _wrong("eog_ids", ends, "a list of token ids")
        bos, eos = (_token_id(key, data.get(key), size, optional=True) for key in ("bos_id", "eos_id"))
        facts = cls(
            kind=cast(Kind, data["kind"]),
            types=types,
            bos_id=bos,
            eos_id=eos,
            eog_ids=frozenset(id for end in ends if (id := _token_id("eog_ids", end, size)) is not None),
            add_bos=_typed("add_bos", data.get("add_bos"), bool),
            add_eos=_typed("add_eos", data.get("add_eos"), bool),
            chat_template=None if (text := data.get("chat_template")) is None else _typed("chat_template", text, str),
        )
        for adds, key, id in ((facts.add_bos, "bos_id", bos), (facts.add_eos, "eos_id", eos)):
            if adds and id is None:
                _wrong(key, None, "a token id, because the tokenizer adds it to each prompt")
        return facts


def _wrong(key: str, value: object, allowed: str) -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:59] + "…"
    raise ModelFileError(f"tokenizer facts: {key} is {shown}; allowed: {allowed}; export the model again")


def _typed(key: str, value: object, kind: type[T]) -> T:
    if isinstance(value, kind):
        return value
    _wrong(key, value, f"a {kind.__name__}")


def _token_id(key: str, value: object, size: int, optional: bool = False) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size:
        return value
    if optional and value is None:
        return None
    _wrong(key, value, f"a token id in [0, {size})")


def _types(runs: object) -> str:
    letters, size = [], 0
    for run in runs if isinstance(runs, list) and runs else [runs]:
        match run:
            case [str(name), int(count)] if name in _LETTERS and 0 < count <= _MAX_VOCABULARY - size:
                letters.append(_LETTERS[name] * count)
                size += count
            case _:
                _wrong("types", run, f"runs of [name, count], names: {', '.join(_LETTERS)}")
    return "".join(letters)


@cache
def byte_of_character() -> Mapping[str, int]:
    """The byte that each of the 256 characters of a byte-level vocabulary stands for.

    Printable Latin-1 stands for itself; the others, in order, are U+0100 and up (GPT-2, Radford et al. 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + i): byte for i, byte in enumerate(rest)}}


def tokenizers_package() -> ModuleType:
    """The ``tokenizers`` package, or MissingExtra with the command that installs it."""
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra(
            "exported models need the tokenizers package; install it with: pip install 'foredraft[executorch]'"
        ) from error
    package: ModuleType = tokenizers
    return package


def parse_tokenizer(path: Path, text: str) -> Any:
    """``text``, the content of the tokenizer.json ``path``, as a ``tokenizers.Tokenizer``; ModelFileError if it is
    none."""
    package = tokenizers_package()
    try:
        return package.Tokenizer.from_str(text)
    except Exception as error:  # the package raises nothing more precise
        raise ModelFileError(f"{path}: is no tokenizer.json ({first_line(error)}); export the model again") from error


def read_text(path: Path) -> str:
    """The UTF-8 text of ``path``; ModelFileError, one line, if there is none."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelFileError(f"{path}: cannot be read ({reason}); check the path or export the model again") from error
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: is not UTF-8 text; export the model again") from error


def first_line(error: Exception) -> str:
    """What ``error`` says, on one short line."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:120]


class HfTokenizer:
    """A ``tokenizers.Tokenizer`` with ``facts``, as a ``Tokenizer``; agrees with llama.cpp's tokenizers.

    It differs in three rare cases. Special tokens that overlap in a text: here the leftmost wins and of those the
    longest, in llama.cpp the longest wherever it is. A byte-level entry in characters that stand for no byte: here its
    piece is its text, in llama.cpp "[UNK_BYTE_...]". Letters and digits newer than Unicode 15: llama.cpp cuts words at
    them as at unassigned ones. Safe to share between threads.
    """

    def __init__(self, tokenizer: Any, facts: TokenizerFacts) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._facts = facts
        self._lock = Lock()  # for the mode in which the tokenizer stands: parse_special is an attribute of it
        self.vocab_size = facts.vocab_size
        self.bos_id = facts.bos_id
        self.eos_id = facts.eos_id
        self.eog_ids = facts.eog_ids
        self.add_bos = facts.add_bos
        self.add_eos = facts.add_eos
        self.kind: str = facts.kind
        self.chat_template = facts.chat_template

    @classmethod
    def load(cls, path: Path, facts: TokenizerFacts) -> HfTokenizer:
        """The tokenizer.json ``path``. ModelFileError, one line, if it is missing, damaged or another model's."""
        tokenizer = parse_tokenizer(path, read_text(path))
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        if size > facts.vocab_size:
            expected = f"at most {facts.vocab_size}, the size of the model's vocabulary"
            raise ModelFileError(f"{path}: has {size} tokens; allowed: {expected}; it belongs to another model")
        return cls(tokenizer, facts)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of ``text``; surrogate pairs are joined, lone surrogates become U+FFFD."""
        clean = _without_surrogates(text)
        with self._lock:
            self._tokenizer.encode_special_tokens = not parse_special
            ids: list[int] = self._tokenizer.encode(clean, add_special_tokens=False).ids
        before = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        after = [self.eos_id] if add_special and self.add_eos and self.eos_id is not None else []
        return before + ids + after

    def piece(self, id: int, *, special: bool = False) -> bytes:
        """The bytes of one token; empty for control tokens unless ``special``, and for padding rows."""
        kind = self._facts.types[check_id(id, self.vocab_size)]
        if kind in (UNUSED, UNDEFINED) or (kind in SPECIAL and not special):
            return b""
        text = self._text(id)
        if kind == BYTE and (match := BYTE_ENTRY.fullmatch(text)):
            return bytes([int(match[1], 16)])
        if kind != NORMAL:
            return text.encode()
        return _byte_level(text) if self.kind == "bpe" else text.replace(SPACE, " ").encode()

    def text_of(self, id: int) -> bytes:
        """The entry as the vocabulary spells it; ``[PAD<id>]`` for a row that tokenizer.json does not name."""
        return self._text(check_id(id, self.vocab_size)).encode()

    def attribute(self, id: int) -> Attribute:
        """What the entry is for."""
        return cast(Attribute, _ATTRIBUTES[self._facts.types[check_id(id, self.vocab_size)]])

    def _text(self, id: int) -> str:
        text: str | None = self._tokenizer.id_to_token(id)
        return f"[PAD{id}]" if text is None else text


def _byte_level(text: str) -> bytes:
    """The bytes behind a byte-level entry; an entry in other characters stands for itself."""
    table = byte_of_character()
    try:
        return bytes([table[character] for character in text])
    except KeyError:
        return text.encode()


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; ModelFileError, one line, if there is none."""
    try:
        data = json.loads(read_text(path))
    except ValueError as error:
        raise ModelFileError(f"{path}: is not JSON ({first_line(error)}); download it again") from error
    if not isinstance(data, dict):
        raise ModelFileError(f"{path}: holds no JSON object; download it again")
    return data
