"""One model with a text in its cache, behind which passes are timed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foredraft.doctor.settings import DoctorSettings
from foredraft.engines.base import Engine, EngineInfo
from foredraft.errors import InvalidValue
from foredraft.noise import hash_ids
from foredraft.types import Ids, Scores

_LEAST_CONTEXT = 8
_MOST_GROWN = 32
"""Tokens that may gather behind the text where forgetting them is dear."""


class Workbench:
    """One model with a text in its cache, behind which passes are timed; after each the cache is as before."""

    def __init__(self, engine: Engine, text: Sequence[int], settings: DoctorSettings) -> None:
        self.info = engine.info
        if self.info.max_context < _LEAST_CONTEXT:
            raise InvalidValue("context", self.info.max_context, f"at least {_LEAST_CONTEXT} tokens to measure with")
        self.session = engine.open()
        self._clock = settings.clock
        ids = np.array(text, np.int64) if len(text) else hash_ids(1, np.arange(1024)).astype(np.int64) & 0x7FFFFFFF
        self._ids: Ids = (ids % self.info.vocab_size).astype(np.int32)
        self.context = min(settings.context, max(1, self.info.max_context // 2))

    @property
    def room(self) -> int:
        """Tokens that fit behind the text."""
        return self.info.max_context - self.context - 1

    def text(self, start: int, count: int) -> Ids:
        """Ids ``start`` to ``start + count`` of the text, which repeats, int32[count]."""
        return self._ids[np.arange(start, start + count) % len(self._ids)]

    def read(self, length: int) -> None:
        """Keep the text up to ``length``."""
        start = self.session.length
        self._extend(range(-1, length - start - 1), 0)
        self.session.keep(range(length - start))

    def _extend(self, parents: Sequence[int], rows: int) -> Scores:
        tokens = self.text(self.session.length, len(parents))
        return self.session.extend(tokens, np.array(parents, np.int32), rows)

    def restore(self) -> None:
        """Exactly the text again."""
        self.session.rewind(min(self.context, self.session.length))
        if self.session.length < self.context:
            self.read(self.context)

    def forward(self, parents: Sequence[int]) -> float:
        """Seconds of a pass over such a tree, a row for each node; it is taken back, if the engine can."""
        start = self._clock()
        self._extend(parents, len(parents))
        seconds = self._clock() - start
        self.session.keep(() if self.info.rollback != "none" else range(len(parents)))
        self._tidy()
        return seconds

    def take_back(self, parents: Sequence[int]) -> float:
        """Seconds of keeping only the root of such a tree, as after a draft that was rejected whole."""
        self._extend(parents, len(parents))
        start = self._clock()
        self.session.keep((0,))
        seconds = self._clock() - start
        self._tidy()
        return seconds

    def _tidy(self) -> None:
        """Forget kept tokens: at once where that is cheap, else before they fill the context."""
        grown = self.session.length - self.context
        if grown and (self.info.rollback == "trim" or grown > min(_MOST_GROWN, self.room // 2)):
            self.restore()

    def close(self) -> None:
        """Free the cache."""
        self.session.close()


class Behind:
    """An engine for ``certify``: its only session begins behind the text of a bench, which it leaves as it was."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    @property
    def info(self) -> EngineInfo:
        """The engine's own."""
        return self._bench.info

    def open(self) -> Behind:
        """Begin behind the text."""
        self._bench.restore()
        return self

    @property
    def length(self) -> int:
        """Tokens kept behind the text."""
        return self._bench.session.length - self._bench.context

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        """The bench's own."""
        return self._bench.session.extend(tokens, parents, rows)

    def keep(self, path: Sequence[int]) -> None:
        """The bench's own."""
        self._bench.session.keep(path)

    def rewind(self, length: int) -> int:
        """The bench's own, counted from the text's end."""
        return self._bench.session.rewind(self._bench.context + length) - self._bench.context

    def close(self) -> None:
        """Nothing to free: the bench owns the session."""
