"""A small tokenizer defined by a table, for tests of everything that handles tokens.

Its ids are easy to read: 0-4 special, 5-260 the 256 bytes, then words, two tokens that hold parts of
characters, and padding at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from foredraft.tokens import Attribute, check_id

BYTE_0 = 5
WORDS = (
    "a",
    "b",
    "ab",
    "abc",
    " ",
    " the",
    " cat",
    "ha",
    " ha",
    "STOP",
    "é",
    "日",
    "日本",
    "🎉",
    "\n",
    "\n\n",
)
PARTS = (b"\xf0\x9f", b"\x8e\x89")  # the two halves of "🎉"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class ToyToken:
    """One row of the table: the bytes it spells, and what it is for."""

    text: bytes
    attribute: Attribute = "normal"


def toy_table(padding: int = 3) -> tuple[ToyToken, ...]:
    """The default table; ``padding`` unused rows at the end."""
    special = [ToyToken(b"<unk>", "unknown")]
    special += [ToyToken(text, "control") for text in (b"<s>", b"</s>", b"<|turn|>", b"<|end|>")]
    byte_rows = [ToyToken(b"<0x%02X>" % value, "byte") for value in range(256)]
    words = [ToyToken(word.encode()) for word in WORDS] + [ToyToken(part) for part in PARTS]
    size = len(special) + len(byte_rows) + len(words)
    rows = [ToyToken(b"[PAD%d]" % (size + number), "unused") for number in range(padding)]
    return (*special, *byte_rows, *words, *rows)


@dataclass(frozen=True)
class ToyTokenizer:
    """Implements ``foredraft.tokens.Tokenizer``: greedy longest match, bytes where no word fits.

    Frozen: ``dataclasses.replace`` or ``with_token`` make variants.
    """

    table: tuple[ToyToken, ...] = toy_table()
    kind: str = "toy"
    bos_id: int | None = 1
    eos_id: int | None = 2
    eog_ids: frozenset[int] = frozenset({2, 4})
    add_bos: bool = True
    add_eos: bool = False
    chat_template: str | None = TEMPLATE

    @property
    def vocab_size(self) -> int:
        return len(self.table)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        ids = list(self._split(text.encode("utf-8", "replace"), parse_special))
        if add_special and self.add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def piece(self, id: int, *, special: bool = False) -> bytes:
        token = self.table[check_id(id, self.vocab_size)]
        if token.attribute == "byte":
            return bytes([int(token.text[3:5], 16)])
        hidden = token.attribute in ("control", "unknown", "unused")
        return b"" if hidden and not special else token.text

    def text_of(self, id: int) -> bytes:
        return self.table[check_id(id, self.vocab_size)].text

    def attribute(self, id: int) -> Attribute:
        return self.table[check_id(id, self.vocab_size)].attribute

    def with_token(self, id: int, text: bytes, attribute: Attribute | None = None) -> ToyTokenizer:
        """The same tokenizer with another row ``id``."""
        token = ToyToken(text, attribute or self.table[id].attribute)
        return replace(self, table=(*self.table[:id], token, *self.table[id + 1 :]))

    def with_padding(self, rows: int) -> ToyTokenizer:
        """The default table with another number of padding rows."""
        return replace(self, table=toy_table(rows))

    def id_of(self, text: str | bytes) -> int:
        """The id whose row spells ``text``."""
        data = text.encode() if isinstance(text, str) else text
        return next(id for id, token in enumerate(self.table) if token.text == data)

    def ids_of(self, *texts: str | bytes) -> list[int]:
        """Ids of several rows."""
        return [self.id_of(text) for text in texts]

    def _split(self, data: bytes, parse_special: bool) -> Iterator[int]:
        allowed = ("normal", "control") if parse_special else ("normal",)
        words = [(token.text, id) for id, token in enumerate(self.table) if token.attribute in allowed]
        words.sort(key=lambda word: -len(word[0]))
        while data:
            fitting = (word for word in words if word[0] and data.startswith(word[0]))
            text, id = next(fitting, (data[:1], BYTE_0 + data[0]))
            yield id
            data = data[len(text) :]
