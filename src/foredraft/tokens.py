"""Tokens and text: the tokenizer protocol, incremental detokenization and stop strings.

Everything works on bytes, so that characters and stop strings may span tokens. Knows no model format, no chat
template (``chat``), no pair rules (``pair``) and nothing about decoding.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from foredraft.errors import InvalidValue

Attribute = Literal["normal", "control", "unused", "unknown", "byte", "user_defined"]
"""What a vocabulary entry is for; the names are GGUF's token types."""


class Tokenizer(Protocol):
    """A model's vocabulary. Ids outside [0, vocab_size) raise InvalidValue in every method that takes one."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, padding rows included."""
        ...

    @property
    def bos_id(self) -> int | None:
        """Begin-of-text id, None if the vocabulary has none."""
        ...

    @property
    def eos_id(self) -> int | None:
        """End-of-text id, None if the vocabulary has none."""
        ...

    @property
    def eog_ids(self) -> frozenset[int]:
        """Every id that ends a generation: end of text, end of turn, end of message."""
        ...

    @property
    def add_bos(self) -> bool:
        """Whether a prompt starts with ``bos_id``."""
        ...

    @property
    def add_eos(self) -> bool:
        """Whether plain tokenization ends with ``eos_id``."""
        ...

    @property
    def kind(self) -> str:
        """Name of the vocabulary type, such as "bpe" or "spm"."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The model's Jinja chat template, None if it has none."""
        ...

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of ``text``. ``add_special`` adds BOS/EOS as the model asks; ``parse_special`` turns the text
        of control tokens into those tokens."""
        ...

    def piece(self, id: int, *, special: bool = False) -> bytes:
        """The bytes this token adds to a text, perhaps part of a character; control tokens add nothing unless
        ``special``."""
        ...

    def text_of(self, id: int) -> bytes:
        """The entry as the vocabulary spells it (escapes untouched), for comparing vocabularies."""
        ...

    def attribute(self, id: int) -> Attribute:
        """What the entry is for."""
        ...


def check_id(id: int, vocab_size: int) -> int:
    """``id`` itself, or InvalidValue if it is outside [0, vocab_size)."""
    if not 0 <= id < vocab_size:
        raise InvalidValue("token id", id, f"an integer in [0, {vocab_size})")
    return id


def shown_bytes(tokenizer: Tokenizer, id: int, *, special: bool = False) -> bytes:
    """The bytes a reader sees for this token; an end-of-generation token is never shown unless ``special``,
    even where the model file calls it a normal token."""
    if not special and id in tokenizer.eog_ids:
        return b""
    return tokenizer.piece(id, special=special)


class IncrementalDetokenizer:
    """Ids in, complete UTF-8 characters out; invalid bytes become U+FFFD and never raise.

    All pushes and the final flush concatenate to ``bytes.decode("utf-8", "replace")`` of the tokens' bytes.
    """

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """Text completed by this token; a character that is still incomplete is held back."""
        return self.push_bytes(shown_bytes(self._tokenizer, id, special=self._special))

    def push_bytes(self, data: bytes) -> str:
        """The same for bytes that are not a whole token."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is held back, an incomplete character as U+FFFD; the detokenizer is then as new."""
        tail = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return tail


@dataclass(frozen=True, slots=True)
class StopEvent:
    """What one pushed token settled.

    ``released``: ids, oldest first, that certainly belong to the shown text. ``stopped``: the stop string
    that is now complete, if any. Then ``hidden_bytes`` counts the trailing bytes of the last released token
    that lie behind the cut, and ``dropped`` holds the ids that lie wholly behind it.
    """

    released: tuple[int, ...] = ()
    stopped: str | None = None
    hidden_bytes: int = 0
    dropped: tuple[int, ...] = ()


class StopScanner:
    """Finds stop strings in a stream of tokens and trims ids and text alike.

    The match that completes first wins; among those that complete at the same byte, the longest. The cut is
    the match's first byte: a token with a byte before the cut stays, a token wholly behind it goes, a token
    without bytes stays if it came before the match began. The result does not depend on how the text is split
    into tokens. A control token whose own text equals a stop string stops too, although it is not shown.

    Aho-Corasick automaton over bytes (Aho and Corasick 1975): a token costs O(its bytes), whatever the length
    of the text; the depth of the current state is the number of last bytes that may still become a stop.
    """

    def __init__(self, stops: Sequence[str], tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._patterns = _stop_patterns(stops)
        self._automaton = _Automaton(self._patterns)
        self._state = 0
        self._length = 0  # bytes seen
        self._waiting: deque[tuple[int, int, int]] = deque()  # (id, offset of first byte, offset behind)
        self._stopped = False

    def push(self, id: int) -> StopEvent:
        """Take the next token of the text. After a stop nothing more may be pushed."""
        assert not self._stopped, "push after a stop"
        data = shown_bytes(self._tokenizer, id)
        start, self._length = self._length, self._length + len(data)
        if not data:
            name = self._patterns.get(self._tokenizer.piece(id, special=True))
            if name is not None:
                return self._stop(name, cut=start, dropped=[id])
        self._waiting.append((id, start, self._length))
        for end, byte in enumerate(data, start + 1):
            self._state = self._automaton.step(self._state, byte)
            match = self._automaton.match[self._state]
            if match is not None:
                return self._stop(self._patterns[match], cut=end - len(match), dropped=[])
        return StopEvent(self._release(self._length - self._automaton.depth[self._state]))

    def finish(self) -> tuple[int, ...]:
        """The ids still waiting, when the text has ended without a stop string."""
        return self._release(self._length)

    def _release(self, safe: int) -> tuple[int, ...]:
        """Take from the queue the tokens whose bytes all lie before offset ``safe``."""
        released = []
        while self._waiting and self._waiting[0][2] <= safe:
            released.append(self._waiting.popleft()[0])
        return tuple(released)

    def _stop(self, name: str, cut: int, dropped: list[int]) -> StopEvent:
        """Split the waiting tokens at offset ``cut``; ``dropped`` are tokens known to lie behind it."""
        self._stopped = True
        kept = [token for token in self._waiting if token[1] < cut or token[2] <= cut]
        behind = [id for id, _, _ in list(self._waiting)[len(kept) :]]
        hidden = max(0, kept[-1][2] - cut) if kept else 0
        self._waiting.clear()
        return StopEvent(tuple(id for id, _, _ in kept), name, hidden, tuple(behind + dropped))


def _stop_patterns(stops: Sequence[str]) -> dict[bytes, str]:
    """Stop strings by their UTF-8 bytes; InvalidValue for an empty one or one that is not text."""
    if isinstance(stops, str):
        raise InvalidValue("stop", stops, "a list of strings")
    patterns: dict[bytes, str] = {}
    for stop in stops:
        if not stop:
            raise InvalidValue("stop string", stop, "at least one character")
        try:
            patterns[stop.encode()] = stop
        except UnicodeEncodeError as error:
            raise InvalidValue("stop string", stop, "Unicode text without lone surrogates") from error
    return patterns


class _Automaton:
    """Aho-Corasick over bytes. State 0 is the root; ``depth[s]`` is the length of the longest suffix of the
    text that begins a pattern; ``match[s]`` the longest pattern that ends here."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._fail = [0]
        self.depth = [0]
        self.match: list[bytes | None] = [None]
        for pattern in patterns:
            self._insert(pattern)
        self._link()

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte."""
        while byte not in self._next[state]:
            if state == 0:
                return 0
            state = self._fail[state]
        return self._next[state][byte]

    def _insert(self, pattern: bytes) -> None:
        state = 0
        for depth, byte in enumerate(pattern, 1):
            if byte not in self._next[state]:
                self._next[state][byte] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self.depth.append(depth)
                self.match.append(None)
            state = self._next[state][byte]
        self.match[state] = pattern

    def _link(self) -> None:
        """Failure links, breadth first: the longest proper suffix that is also a prefix of a pattern."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for byte, child in self._next[state].items():
                self._fail[child] = self.step(self._fail[state], byte)
                self.match[child] = self.match[child] or self.match[self._fail[child]]
                queue.append(child)


class TextStream:
    """Turns the ids a decoder releases into text that can be printed at once, for the command line and the
    server. ``special`` shows control tokens too."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._detokenizer = IncrementalDetokenizer(tokenizer, special=special)

    def push(self, ids: Iterable[int], hidden_bytes: int = 0) -> str:
        """Text completed by ``ids``, without the last ``hidden_bytes`` bytes (those of a stop string)."""
        data = b"".join(shown_bytes(self._tokenizer, id, special=self._special) for id in ids)
        return self._detokenizer.push_bytes(data[: len(data) - hidden_bytes])

    def finish(self) -> str:
        """What is held back at the end of the text."""
        return self._detokenizer.flush()
