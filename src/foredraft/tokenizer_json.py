"""Makes the tokenizer of an export, a tokenizer.json and its facts, from a GGUF header or a Hugging Face directory.

From a GGUF the ids are llama.cpp's: its pre-tokenizers, its merge order, its rules for what ends a generation
(``llama-vocab.cpp``). Knows no weights, and not how the tokenizer is run (``hf_tokenizer``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from foredraft.errors import ModelFileError
from foredraft.gguf_types import fail, printable
from foredraft.hf_tokenizer import (
    BYTE,
    BYTE_ENTRY,
    CONTROL,
    NORMAL,
    SPACE,
    SPECIAL,
    UNDEFINED,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Kind,
    TokenizerFacts,
    byte_of_character,
    first_line,
    parse_tokenizer,
    read_json,
    read_text,
    tokenizers_package,
)
from foredraft.modelfile import GGUFHeader, StringArray
from foredraft.token_roles import Entries

__all__ = ["Converted", "TokenizerFacts", "tokenizer_from_directory", "tokenizer_from_gguf"]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MODERN = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PRE_TOKENIZERS: Mapping[str, tuple[str, ...]] = {
    "default": (r"[\p{P}$+<=>\^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "modern-bert"), (_GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), (_MODERN % 1,)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2", "dbrx"), (_MODERN % 3,)),
}
"""``tokenizer.ggml.pre`` to the expressions that cut a text into words, each applied to the pieces of the last."""
_IGNORE_MERGES = frozenset(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"))
"""Where a word that is a token stays one, whatever the merges say; these models also begin with BOS by default."""

_MAX_TOKEN = 1024
"""Characters of a token. Real ones have up to 130; the time for a merge table grows with the square."""
_TYPES = {1: NORMAL, 2: UNKNOWN, 3: CONTROL, 4: USER_DEFINED, 5: UNUSED, 6: BYTE}

_KEYS = {
    role: tuple(f"tokenizer.ggml.{name}_token_id" for name in (role, *older))
    for role, older in {
        **dict.fromkeys(("bos", "eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"), ()),
        "unk": ("unknown",),
        "fim_pre": ("prefix",),
        "fim_suf": ("suffix",),
        "fim_mid": ("middle",),
    }.items()
}


@dataclass(frozen=True, slots=True)
class Converted:
    """``tokenizer``: a ``tokenizers.Tokenizer``, whose ``save(path, pretty=False)`` writes tokenizer.json."""

    tokenizer: Any
    facts: TokenizerFacts


# --- GGUF -------------------------------------------------------------------------------------------------------------


def tokenizer_from_gguf(header: GGUFHeader) -> Converted:
    """The tokenizer of a GGUF file, of kind "gpt2" (byte-level BPE) or "llama" (SentencePiece).

    Where SentencePiece scores tie, llama.cpp merges from left to right and this the longest token first; the two
    differ only in rare texts of overlapping ties. ModelFileError, one line, for other tokenizers and damaged files.
    """
    keys = _Keys(header)
    model = keys.text("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        keys.wrong("tokenizer.ggml.model", model or "missing", "gpt2, llama", "export a model with one of these")
    kind: Kind = "bpe" if model == "gpt2" else "spm"
    texts = keys.tokens()
    ids = {text: id for id, text in enumerate(texts)}
    if len(ids) != len(texts):
        twice = next(text for id, text in enumerate(texts) if ids[text] != id)
        keys.wrong("tokenizer.ggml.tokens", f"{twice!r} twice", "each token once")
    pre = keys.text("tokenizer.ggml.pre") or "default"
    defaults: dict[str, int | None] = {"bos": 11, "eos": 11} if kind == "bpe" else {"bos": 1, "eos": 2, "unk": 0}
    special = keys.special_ids(defaults, len(texts))
    entries = Entries(ids, keys.types(texts), special)
    ends = entries.apply_rules()
    adds_bos = kind == "spm" or pre in _IGNORE_MERGES
    facts = TokenizerFacts(
        kind=kind,
        types="".join(entries.types),
        bos_id=special["bos"],
        eos_id=special["eos"],
        eog_ids=ends,
        add_bos=keys.flag("tokenizer.ggml.add_bos_token", adds_bos) and special["bos"] is not None,
        add_eos=keys.flag("tokenizer.ggml.add_eos_token", False) and special["eos"] is not None,
        chat_template=keys.text("tokenizer.chat_template"),
    )
    return Converted(_build(keys, entries, facts, pre), facts)


def _build(keys: _Keys, entries: Entries, facts: TokenizerFacts, pre: str) -> Any:
    """The ``tokenizers.Tokenizer``: model, pre-tokenizer or normalizer, decoder, special tokens, BOS and EOS."""
    package = tokenizers_package()
    merges = keys.merges() if facts.kind == "bpe" else _merges_by_score(entries.ids, keys.scores(len(entries.ids)))
    unknown = next((text for text, id in entries.ids.items() if id == entries.special.get("unk")), None)
    options = {"byte_fallback": True, "unk_token": unknown} if facts.kind == "spm" else {}
    try:
        model = package.models.BPE(dict(entries.ids), merges, ignore_merges=pre in _IGNORE_MERGES, **options)
    except Exception as error:  # the package raises nothing more precise
        path = printable(str(keys.header.path))
        raise ModelFileError(f"{path}: its merges do not fit its tokens ({first_line(error)})") from error
    tokenizer = package.Tokenizer(model)
    if facts.kind == "bpe":
        tokenizer.pre_tokenizer = _words(package, _expressions(keys, pre), entries.ids)
        tokenizer.decoder = package.decoders.ByteLevel()
    else:
        _set_spaces(package, tokenizer, keys.flag("tokenizer.ggml.add_space_prefix", True))
    _add_special(package, tokenizer, entries)
    _set_ends(package, tokenizer, facts)
    return tokenizer


def _expressions(keys: _Keys, pre: str) -> tuple[str, ...]:
    if pre not in _PRE_TOKENIZERS:
        supported = ", ".join(sorted(_PRE_TOKENIZERS))
        keys.wrong("tokenizer.ggml.pre", pre, supported, "export a model with one of these")
    return _PRE_TOKENIZERS[pre]


def _words(package: Any, expressions: Sequence[str], ids: Mapping[str, int]) -> Any:
    """The pre-tokenizer: cut by each expression, write bytes as characters, and drop those without a token.

    What has no token must cut the word, as in llama.cpp: the tokens on both sides of it must not merge.
    """
    kinds = package.pre_tokenizers
    steps = [kinds.Split(package.Regex(expression), "isolated") for expression in expressions]
    steps.append(kinds.ByteLevel(add_prefix_space=False, use_regex=False))
    missing = [character for character in byte_of_character() if character not in ids]
    if missing:
        steps.append(kinds.Split(package.Regex("[" + "".join(f"\\x{{{ord(c):X}}}" for c in missing) + "]"), "removed"))
    return kinds.Sequence(steps)


def _set_spaces(package: Any, tokenizer: Any, prefix: bool) -> None:
    """SentencePiece's normalizer and decoder; ``prefix``: each stretch of text begins with a space."""
    normalizers, decoders = package.normalizers, package.decoders
    replace = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if prefix else replace
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)


def _add_special(package: Any, tokenizer: Any, entries: Entries) -> None:
    """Tokens that are cut out of a text before anything else; the special ones only on request."""
    special, always = [], []
    for text, id in entries.ids.items():
        kind = entries.types[id]
        if kind in SPECIAL:
            special.append(package.AddedToken(text, special=True, normalized=False))
        elif kind == USER_DEFINED:
            always.append(package.AddedToken(text, special=False, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(always)


def _set_ends(package: Any, tokenizer: Any, facts: TokenizerFacts) -> None:
    """BOS and EOS for other readers of the tokenizer.json; HfTokenizer goes by the facts."""
    before = [tokenizer.id_to_token(facts.bos_id)] if facts.add_bos else []
    after = [tokenizer.id_to_token(facts.eos_id)] if facts.add_eos else []
    names = [*before, *after]
    if names and not any(":" in name or name.startswith("$") for name in names):  # the template's own signs
        tokenizer.post_processor = package.processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *before, "$B", *after],
            special_tokens=[(name, tokenizer.token_to_id(name)) for name in dict.fromkeys(names)],
        )


def _merges_by_score(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of entries that make an entry, in the order in which SentencePiece merges them: the best score first.

    The ``tokenizers`` package ranks pairs and llama.cpp results, so all pairs with one result follow each other.
    """
    ranked = sorted(ids, key=lambda text: (-scores[ids[text]], -len(text), ids[text]))
    return [pair for text in ranked for pair in _halves(text, ids)]


def _halves(text: str, ids: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for cut in range(1, len(text)):
        left = text[:cut]
        if left in ids and text[cut:] in ids:
            yield left, text[cut:]


class _Keys:
    """Typed access to the tokenizer's keys of a header."""

    def __init__(self, header: GGUFHeader) -> None:
        self.header, self.metadata = header, header.metadata

    def wrong(self, key: str, value: object, allowed: str, fix: str = "get another copy") -> NoReturn:
        fail(self.header.path, f"key {key} is {printable(str(value), 60)}; allowed: {allowed}; {fix}")

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        self.wrong(key, type(value).__name__, "a text")

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(key, default)
        if isinstance(value, bool):
            return value
        self.wrong(key, value, "true, false")

    def tokens(self) -> list[str]:
        """The vocabulary; an empty entry is called as in llama.cpp."""
        key = "tokenizer.ggml.tokens"
        values = self.metadata.get(key)
        if not isinstance(values, StringArray) or not len(values):
            self.wrong(key, "missing" if values is None else values, "an array of strings")
        texts = [text or f"[EMPTY_{id}]" for id, text in enumerate(values)]
        if (longest := max(map(len, texts))) > _MAX_TOKEN:
            self.wrong(key, f"a list with a token of {longest} characters", f"up to {_MAX_TOKEN} characters")
        for id, text in enumerate(texts):
            if "\ufffd" in text and "\ufffd".encode() not in values.raw(id):
                self.wrong(key, f"not UTF-8 at id {id}", "UTF-8 text")
        return texts

    def merges(self) -> list[tuple[str, str]]:
        """The merges of a BPE vocabulary, the first of those given twice; the first character is never the space
        between the two."""
        values = self.metadata.get("tokenizer.ggml.merges")
        if not isinstance(values, StringArray):
            self.wrong("tokenizer.ggml.merges", "missing" if values is None else values, "an array of strings")
        pairs = ((merge[: (at := merge.find(" ", 1))], merge[at + 1 :], at) for merge in values)
        return list(dict.fromkeys((left, right) for left, right, at in pairs if at > 0))

    def _numbers(self, key: str, size: int, kinds: str) -> list[Any] | None:
        values = self.metadata.get(key)
        if values is None:
            return None
        if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds or len(values) != size:
            self.wrong(key, values, f"{size} numbers, one per token")
        numbers: list[Any] = values.tolist()
        return numbers

    def scores(self, size: int) -> list[float]:
        """One score per token."""
        return self._numbers("tokenizer.ggml.scores", size, "fiu") or [0.0] * size

    def types(self, texts: Sequence[str]) -> list[str]:
        """One letter per token, see ``TokenizerFacts``."""
        numbers = self._numbers("tokenizer.ggml.token_type", len(texts), "iu")
        letters = [NORMAL] * len(texts) if numbers is None else [_TYPES.get(number, UNDEFINED) for number in numbers]
        for text, letter in zip(texts, letters, strict=True):
            if letter == BYTE and not BYTE_ENTRY.fullmatch(text):
                self.wrong("tokenizer.ggml.tokens", f"{text!r} for a byte", "<0x00> to <0xFF>")
        return letters

    def special_ids(self, defaults: Mapping[str, int | None], size: int) -> dict[str, int | None]:
        """Role to id; a key's value outside of the vocabulary does not count."""
        special: dict[str, int | None] = {}
        for role, names in _KEYS.items():
            given = (value for name in names if isinstance(value := self.metadata.get(name), int))
            special[role] = next(reversed(_inside((defaults.get(role), *given), size)), None)
        return special


def _inside(ids: Iterable[int | None], size: int) -> list[int]:
    return [id for id in ids if id is not None and 0 <= id < size]


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def tokenizer_from_directory(path: Path) -> Converted:
    """The tokenizer of a Hugging Face model directory: tokenizer.json, and what stands beside it.

    Read if present: tokenizer_config.json, generation_config.json, config.json, chat_template.jinja. The ids are those
    of tokenizer.json, what ends a generation is decided as for a GGUF. Added tokens behind the model's last row are
    left out. ModelFileError, one line, for a kind of tokenizer other than BPE and for damaged files.
    """
    file = path / "tokenizer.json"
    data = read_json(file)
    config, generation, model = (
        read_json(path / name) if (path / name).exists() else {}
        for name in ("tokenizer_config.json", "generation_config.json", "config.json")
    )
    kind = _kind(file, data)
    tokenizer, ids, size = _within_model(file, data, model.get("vocab_size"))
    special = {role: _named(config, model, role, ids) for role in ("bos", "eos", "unk")}
    entries = Entries(ids, _types_of(tokenizer, kind, ids, size), special)
    given = generation.get("eos_token_id", model.get("eos_token_id"))
    ends = entries.apply_rules() | set(_inside(given if isinstance(given, list) else [given], size))
    empty = tokenizer.encode("", add_special_tokens=True).ids
    facts = TokenizerFacts(
        kind=kind,
        types="".join(entries.types),
        bos_id=special["bos"],
        eos_id=special["eos"],
        eog_ids=ends,
        add_bos=_adds(config, "add_bos_token", special["bos"], empty[:1]),
        add_eos=_adds(config, "add_eos_token", special["eos"], empty[-1:]),
        chat_template=_template(path, config),
    )
    return Converted(tokenizer, facts)


def _kind(file: Path, data: Mapping[str, Any]) -> Kind:
    model = data.get("model")
    name = model.get("type") if isinstance(model, dict) else None
    if isinstance(model, dict) and name == "BPE":
        if model.get("byte_fallback"):
            return "spm"
        if "ByteLevel" in json.dumps([data.get("pre_tokenizer"), data.get("decoder")]):
            return "bpe"
        name = "BPE over characters"
    allowed = "BPE over bytes, BPE with byte_fallback"
    fail(file, f"holds a tokenizer of type {printable(str(name), 40)}; allowed: {allowed}; export another model")


def _within_model(file: Path, data: dict[str, Any], rows: object) -> tuple[Any, dict[str, int], int]:
    """The tokenizer without added tokens behind the model's ``rows``, its text to id, and the number of rows."""
    tokenizer = parse_tokenizer(file, json.dumps(data))
    ids = tokenizer.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    if isinstance(rows, int) and rows < size:
        data["added_tokens"] = [token for token in data.get("added_tokens", []) if token["id"] < rows]
        tokenizer = parse_tokenizer(file, json.dumps(data))
        ids = tokenizer.get_vocab(with_added_tokens=True)
        size = max(ids.values(), default=-1) + 1
        if rows < size:
            fail(file, f"has ids up to {size - 1}, config.json only {rows} rows; take both from one model")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, ids, max(size, rows if isinstance(rows, int) else 0)


def _types_of(tokenizer: Any, kind: Kind, ids: Mapping[str, int], size: int) -> list[str]:
    """One letter per id; ids without an entry are padding."""
    types = [UNUSED] * size
    for text, id in ids.items():
        types[id] = BYTE if kind == "spm" and BYTE_ENTRY.fullmatch(text) else NORMAL
    for id, token in tokenizer.get_added_tokens_decoder().items():
        types[id] = CONTROL if token.special else USER_DEFINED
    unknown = ids.get(tokenizer.model.unk_token or "")
    if kind == "spm" and unknown is not None:
        types[unknown] = UNKNOWN
    return types


def _named(config: Mapping[str, Any], model: Mapping[str, Any], role: str, ids: Mapping[str, int]) -> int | None:
    """The id of the token of this role: by text in tokenizer_config.json, else by number in config.json."""
    value = config.get(f"{role}_token")
    text = value.get("content") if isinstance(value, dict) else value
    if isinstance(text, str) and text in ids:
        return ids[text]
    number = model.get(f"{role}_token_id")
    number = number[0] if isinstance(number, list) and number else number
    return number if isinstance(number, int) and number in ids.values() else None


def _adds(config: Mapping[str, Any], key: str, id: int | None, seen: Sequence[int]) -> bool:
    """Whether the token ``id`` is added: as tokenizer_config.json says, else if the empty text has it at that end."""
    given = config.get(key)
    return id is not None and (given if isinstance(given, bool) else list(seen) == [id])


def _template(path: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template: its own file, else the one in tokenizer_config.json (of several the one named default)."""
    file = path / "chat_template.jinja"
    if file.exists():
        return read_text(file)
    value = config.get("chat_template")
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
