"""A draft head inside an exported program, run beside its target. Knows nothing about drafts or sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from foredraft.engines.base import check_extend
from foredraft.engines.executorch_program import UNSEEN, Caches, NativeProgram, Pass
from foredraft.engines.head_base import HeadInfo, HeadScores
from foredraft.engines.slots import Layout, Slots
from foredraft.errors import EngineFailure, InvalidValue
from foredraft.manifest import Manifest, Shape
from foredraft.types import Ids, Logits


class ExecutorchHead:
    """The methods ``head`` and ``fuse`` of a loaded program, which the target's engine owns."""

    def __init__(self, program: NativeProgram, manifest: Manifest, ids: Sequence[int], context: int) -> None:
        assert manifest.head is not None
        self.program, shape, facts = program, manifest.shape, manifest.head
        hidden = shape.hidden_size
        self.shape = Shape("head", shape.vocab_size, hidden, 1, facts.heads, facts.kv_heads, facts.head_dim)
        self.info = HeadInfo(
            np.array(ids, np.int32),
            shape.vocab_size,
            len(manifest.taps) * hidden,
            hidden,
            context,
            facts.share_ppm / 1e6,
        )

    def open(self) -> ExecutorchHeadSession:
        """A new, empty session."""
        return ExecutorchHeadSession(self)

    def close(self) -> None:
        """The program is the target's."""


class ExecutorchHeadSession:
    """See ``HeadSession``."""

    def __init__(self, engine: ExecutorchHead) -> None:
        self._engine, self._program = engine, engine.program
        self._slots = Slots(engine.info.max_context)
        self._caches: Caches | None = Caches(engine.shape, engine.program.bounds.context)
        self._failed = False

    @property
    def length(self) -> int:
        """Known entries."""
        return self._slots.length

    def read(self, states: Logits, tokens: Ids, rows: int) -> HeadScores:
        """Keep known entries, in passes within the program's bounds; score the last ``rows``."""
        info, bounds = self._engine.info, self._program.bounds
        if states.shape != (len(tokens), info.state_size):
            raise InvalidValue("states", list(states.shape), f"{len(tokens)} of {info.state_size} elements")
        if self._slots.pending:
            raise InvalidValue("own entries", self._slots.pending, "0 when known ones are read")
        if rows > bounds.rows:
            raise InvalidValue("rows", rows, f"at most {bounds.rows}")
        check_extend(tokens, np.arange(-1, len(tokens) - 1, dtype=np.int32), rows, info.vocab_size)
        whole = len(tokens) - rows
        for start in range(0, whole, bounds.width):
            end = min(whole, start + bounds.width)
            self._keep(states[start:end], tokens[start:end], 0)
        return self._keep(states[whole:], tokens[whole:], rows) if rows else _nothing(info)

    def _keep(self, states: Logits, tokens: Ids, rows: int) -> HeadScores:
        layout = self._slots.add(range(-1, len(tokens) - 1))
        scores = self._run(lambda: self._program.fuse(np.ascontiguousarray(states)), tokens, layout, (0, rows))
        self._slots.keep(range(len(tokens)))
        return scores

    def extend(self, outputs: Logits, tokens: Ids, parents: Ids) -> HeadScores:
        """Add own entries and score them."""
        info = self._engine.info
        if outputs.shape != (len(tokens), info.hidden_size):
            raise InvalidValue("outputs", list(outputs.shape), f"{len(tokens)} of {info.hidden_size} elements")
        check_extend(tokens, parents, len(tokens), info.vocab_size)
        first = self._slots.pending
        layout = self._slots.add(parents.tolist())
        return self._run(lambda: np.ascontiguousarray(outputs), tokens, layout, (first, len(tokens)))

    def _run(self, state: Callable[[], Logits], tokens: Ids, layout: Layout, place: tuple[int, int]) -> HeadScores:
        """``place``: number of the first pending entry, and how many of the last entries are scored."""
        caches, (first, rows) = self._open(), place
        caches.reserve(self._slots.used)
        count = len(tokens)
        mask = np.where(self._slots.visible(first, count, caches.capacity), np.float32(0), UNSEEN)
        scored = np.arange(count - max(rows, 1), count, dtype=np.int64)  # a program scores at least one row
        step = Pass(tokens.astype(np.int64), layout.positions, layout.slots, scored, (mask,))
        try:
            logits, outputs = self._program.run_head(step, state(), caches)
        except EngineFailure:
            self._failed = True
            raise
        return HeadScores(logits[max(rows, 1) - rows :], outputs[count - rows :])

    def forget(self) -> None:
        """Drop the own entries."""
        self._slots.rewind(self._slots.length)

    def rewind(self, length: int) -> None:
        """Drop own entries, and known ones from ``length`` on."""
        self._slots.rewind(length)

    def close(self) -> None:
        """Free the cache. Idempotent."""
        self._caches = None

    def _open(self) -> Caches:
        if self._caches is None or self._failed:
            raise EngineFailure("the session is closed" if self._caches is None else "the session has failed")
        return self._caches


def _nothing(info: HeadInfo) -> HeadScores:
    return HeadScores(np.empty((0, len(info.ids)), np.float32), np.empty((0, info.hidden_size), np.float32))
