"""Engines that take a known time by a clock of their own: what measures them can be checked to the last digit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foredraft.engines.base import Engine, EngineInfo, Session
from foredraft.engines.scripted import ScriptedEngine
from foredraft.types import Ids, Scores


@dataclass
class Clock:
    """Stands still but for what engines take. ``speed``: how much longer everything takes at a given time.
    ``interrupt_at``: Ctrl-C comes when this time is reached."""

    time: float = 0.0
    speed: Callable[[float], float] = lambda now: 1.0
    interrupt_at: float = float("inf")

    def __call__(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        """Work of ``seconds`` on an undisturbed machine."""
        self.time += seconds * self.speed(self.time)
        if self.time >= self.interrupt_at:
            raise KeyboardInterrupt


@dataclass(frozen=True)
class Pass:
    """One ``extend``: who, tokens fed, rows scored, parents."""

    who: str
    width: int
    rows: int
    parents: tuple[int, ...]


@dataclass
class TimedEngine:
    """``inner``, whose passes take ``time(width)`` and whose ``keep`` takes ``back`` where it forgets something. All of
    them are written to ``log``; ``changes`` replaces fields of ``info``."""

    inner: Engine
    clock: Clock
    time: Callable[[int], float]
    back: float = 0.0
    name: str = "target"
    log: list[Pass] = field(default_factory=list)
    changes: dict[str, object] = field(default_factory=dict)
    open_sessions: int = 0

    @property
    def info(self) -> EngineInfo:
        return replace(self.inner.info, **self.changes)  # type: ignore[arg-type]

    def open(self) -> TimedSession:
        self.open_sessions += 1
        return TimedSession(self, self.inner.open())

    def close(self) -> None:
        self.inner.close()


@dataclass
class TimedSession:
    """Hands everything on and advances the clock."""

    engine: TimedEngine
    inner: Session
    pending: int = 0
    closed: bool = False

    @property
    def length(self) -> int:
        return self.inner.length

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        self.engine.log.append(Pass(self.engine.name, len(tokens), rows, tuple(parents.tolist())))
        scores = self.inner.extend(tokens, parents, rows)
        self.pending += len(tokens)
        self.engine.clock.advance(self.engine.time(len(tokens)))
        return scores

    def keep(self, path: Sequence[int]) -> None:
        forgotten, self.pending = self.pending - len(path), 0
        self.inner.keep(path)
        self.engine.clock.advance(self.engine.back if forgotten else 0.0)

    def rewind(self, length: int) -> int:
        self.pending = 0
        return self.inner.rewind(length)

    def close(self) -> None:
        self.engine.open_sessions -= not self.closed
        self.closed = True
        self.inner.close()


@dataclass
class Replaying:
    """A session that can only be cut to nothing, as those of recurrent models."""

    inner: Session

    @property
    def length(self) -> int:
        return self.inner.length

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        return self.inner.extend(tokens, parents, rows)

    def keep(self, path: Sequence[int]) -> None:
        self.inner.keep(path)

    def rewind(self, length: int) -> int:
        return self.inner.rewind(length if length == self.inner.length else 0)

    def close(self) -> None:
        self.inner.close()


class ReplayEngine(ScriptedEngine):
    """Opens such sessions."""

    def open(self) -> Any:
        return Replaying(super().open())


class RoundingEngine(ScriptedEngine):
    """Logits move by .25 if a pass scores more than 4 rows."""

    def open(self) -> Any:
        session = super().open()
        extend = session.extend

        def rounded(tokens: Ids, parents: Ids, rows: int) -> Scores:
            logits = extend(tokens, parents, rows).logits
            if rows > 4:
                logits[:, ::2] += 0.25
            return Scores(logits)

        session.extend = rounded  # type: ignore[method-assign]
        return session
