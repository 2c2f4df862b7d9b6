"""Writes many texts side by side with one torch decoder: a row that finishes is given the next text.

Sampling is the real one (``sampling``), with noise keyed by each text's own seed. Knows nothing about files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from foredraft.errors import InvalidValue
from foredraft.models.decoder import Decoder
from foredraft.sampling import History, Sampler
from foredraft.train.batch import RowCaches
from foredraft.types import SamplingParams


@dataclass(frozen=True)
class Job:
    """One text to be written behind ``prompt``; ``number``: whatever its source knows it by."""

    number: int
    prompt: tuple[int, ...]
    params: SamplingParams
    max_tokens: int


@dataclass(frozen=True)
class Written:
    """A finished text: ``ids`` without the prompt, the token that ended it included; ``ended``: there was one."""

    job: Job
    ids: tuple[int, ...]
    ended: bool


class Source(Protocol):
    """Hands out jobs and takes what was written."""

    def take(self) -> Job | None:
        """The next text to write, None if there is none now."""
        ...

    def done(self, written: Written) -> None:
        """One text is finished; there may be more to take then."""
        ...


@dataclass(frozen=True)
class Shelf:
    """``rows`` texts at once, of up to ``context`` tokens each, prompt included."""

    rows: int = 64
    context: int = 512

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= 1024:
            raise InvalidValue("texts at once", self.rows, "1 to 1024")
        if not 16 <= self.context <= 1 << 17:
            raise InvalidValue("context", self.context, "16 to 131072 tokens")


@dataclass
class _Row:
    job: Job
    history: History
    sampler: Sampler


class Writer:
    """Runs the jobs of a ``source`` until there are no more."""

    def __init__(self, decoder: Decoder, eog_ids: frozenset[int], shelf: Shelf) -> None:
        self._caches = RowCaches(decoder, shelf.rows, shelf.context)
        self._eog_ids, self._shelf = eog_ids, shelf
        self._rows: list[_Row | None] = [None] * shelf.rows

    def run(self, source: Source) -> Iterator[int]:
        """Yields after every pass: tokens written in it."""
        while True:
            begun = self._fill(source)
            if not begun and not any(self._rows):
                return
            yield begun + self._step(source)

    def _fill(self, source: Source) -> int:
        """New texts in empty rows, read together; their first tokens come with that. A few rows wait for others."""
        free = [index for index, row in enumerate(self._rows) if row is None]
        if len(free) < max(1, self._shelf.rows // 8) and len(free) < len(self._rows):
            return 0
        fresh = []
        for index in free:
            if (job := source.take()) is None:
                break
            room = self._shelf.context - len(job.prompt)
            if room < 1:
                raise InvalidValue("prompt tokens", len(job.prompt), f"less than the context, {self._shelf.context}")
            history = History(job.prompt, job.params.penalty_window)
            self._rows[index] = _Row(job, history, Sampler(job.params, eog_ids=self._eog_ids))
            fresh.append(index)
        if fresh:
            prompts = [row.job.prompt for index in fresh if (row := self._rows[index]) is not None]
            self._choose(fresh, self._caches.read(fresh, prompts).float().cpu().numpy(), source)
        return len(fresh)

    def _step(self, source: Source) -> int:
        busy = [index for index, row in enumerate(self._rows) if row is not None]
        if not busy:
            return 0
        tokens = [row.history.tokens[-1] if row is not None else 0 for row in self._rows]
        positions = [len(row.history) - 1 if row is not None else 0 for row in self._rows]
        logits = self._caches.step(tokens, positions)[busy].float().cpu().numpy()
        self._choose(busy, logits, source)
        return len(busy)

    def _choose(self, rows: list[int], logits: np.ndarray, source: Source) -> None:
        for index, values in zip(rows, logits, strict=True):
            row = self._rows[index]
            assert row is not None
            token = row.sampler.choose(values, row.history)
            row.history.push(token)
            ended, count = token in self._eog_ids, row.history.generated
            if ended or count >= row.job.max_tokens or len(row.history) >= self._shelf.context:
                self._rows[index] = None
                source.done(Written(row.job, tuple(row.history.tokens[-count:]), ended))
