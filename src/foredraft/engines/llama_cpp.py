"""GGUF models through llama.cpp (llama-cpp-python's low-level API): chains, trees, rollback.

Trees are sequence ids (``llama_lines``). How the cache can be rolled back is probed at load, never assumed: trim, or
checkpoint and replay for recurrent layers, or not at all. Knows nothing about drafts or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from foredraft import modelfile
from foredraft.devices.machine import usable_cpus
from foredraft.engines.base import EngineInfo, Rollback, check_extend
from foredraft.engines.llama_kernels import remembered, repacking_works
from foredraft.engines.llama_lines import ROOT, Lines
from foredraft.engines.llama_native import KV_TYPES, ContextConfig, NativeContext, NativeModel
from foredraft.engines.llama_vocab import LlamaVocab
from foredraft.errors import ContextFull, EngineFailure, InvalidValue
from foredraft.noise import hash_ids
from foredraft.types import Ids, Logits, Scores

DEFAULT_CONTEXT = 4096
_SAMPLE = 272


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """``context``: tokens a session holds (0 = what the model was trained with, at most 4096). ``threads``: 0 = the
    CPUs this process may use, at most 8. ``lines``: leaves of the widest tree. ``kv_type``: f32, f16, q8_0, q4_0.
    ``repack``: see NativeModel; None = where it works (``llama_kernels``). ``strict``: the text is plain decoding's bit
    for bit: no repacking, chains only, and no pass wider than what the probe finds to give the bits of width 1.
    """

    context: int = 0
    threads: int = 0
    lines: int = 64
    kv_type: str = "f16"
    repack: bool | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.context <= 1 << 24:
            raise InvalidValue("context", self.context, "0 (from the model) or a positive number of tokens")
        if not 0 <= self.threads <= 1024:
            raise InvalidValue("threads", self.threads, "0 (automatic) to 1024")
        if not 1 <= self.lines <= 256:
            raise InvalidValue("lines", self.lines, "1 to 256")
        if self.kv_type not in KV_TYPES:
            raise InvalidValue("kv_type", self.kv_type, ", ".join(KV_TYPES))


def default_threads() -> int:
    """CPUs this process may use, at most 8 (more threads seldom help a memory-bound pass)."""
    return min(8, usable_cpus())


def _repacked(path: Path, config: LlamaConfig) -> bool:
    if config.strict:
        return False
    return repacking_works(modelfile.check_path(path)) if config.repack is None else config.repack


class LlamaEngine:
    """One GGUF model. Raises ModelFileError before native code sees a damaged file."""

    def __init__(self, path: Path, config: LlamaConfig | None = None) -> None:
        config = config or LlamaConfig()
        self.path = path
        self.repacked = _repacked(path, config)
        self._model = NativeModel(path, repack=self.repacked)
        self._context = ContextConfig(
            context=config.context or min(self._model.trained_context or DEFAULT_CONTEXT, DEFAULT_CONTEXT),
            threads=config.threads or default_threads(),
            lines=1 if self._model.recurrent else config.lines,
            kv_type=config.kv_type,
        )
        try:
            self._model.check_context(self._context.context)
            rollback, reason = self._probe()
            if config.strict:
                self._context = self._strict_context()
        except Exception:
            self._model.close()
            raise
        if reason is None and config.repack is None and not (self.repacked or config.strict):
            reason = "llama.cpp's fastest kernels crash on this processor and are off"
        self.info = EngineInfo(
            name="llama_cpp",
            model=path.name,
            vocab_size=self._model.vocab_size,
            max_context=self._context.context,
            tree=rollback == "trim" and self._context.lines > 1 and not config.strict,
            rollback=rollback,
            reason=reason,
            exact_width=self._context.exact or None,
        )

    @cached_property
    def tokenizer(self) -> LlamaVocab:
        """The model's own vocabulary."""
        return LlamaVocab(self._model.pointer)

    @property
    def threads(self) -> int:
        """CPU threads in use."""
        return self._context.threads

    @property
    def trained_context(self) -> int:
        """The context length the model was trained with, in tokens."""
        return self._model.trained_context

    def open(self) -> LlamaSession:
        """A new, empty session with its own cache."""
        return LlamaSession(NativeContext(self._model, self._context), self.info)

    def close(self) -> None:
        """Free the weights; close every session first. Idempotent."""
        self._model.close()

    def _strict_context(self) -> ContextConfig:
        """Chains only, in passes that keep the bits of one position."""
        pad = self._context.threads > 1 and not self._model.recurrent
        context = replace(self._context, lines=2 if pad else 1, pad=pad)
        question = f"exact width, {context.threads} threads, {context.kv_type}"
        width = remembered(self.path, question, lambda: self.exact_width(context))
        return replace(context, exact=width or 1)

    def exact_width(self, context: ContextConfig | None = None, most: int = 8) -> int:
        """The widest pass, up to ``most``, that gives every row the bits it has in a pass of its own; at least 1.

        Measured on pseudo-random tokens: ``most`` of them one at a time, then every width, from the same 272 tokens on
        (llama.cpp takes other paths for caches of more than 256).
        """
        shape = replace(context or self._context, context=_SAMPLE + most, rows=most, exact=0)
        native = NativeContext(self._model, shape)
        try:
            size = _SAMPLE + most
            tokens = (hash_ids(1, np.arange(size)) % np.uint64(self._model.vocab_size)).astype(np.int32)
            at = np.arange(size, dtype=np.int32)

            def scored(start: int, width: int) -> Logits:
                return native.run(tokens[start : start + width], at[start : start + width], None, width).copy()

            native.run(tokens[:_SAMPLE], at[:_SAMPLE], None, 0)
            single = np.concatenate([scored(start, 1) for start in range(_SAMPLE, size)])
            for width in range(2, most + 1):
                if not native.remove(ROOT, _SAMPLE):
                    native.clear()
                    native.run(tokens[:_SAMPLE], at[:_SAMPLE], None, 0)
                if not np.array_equal(scored(_SAMPLE, width), single[:width]):
                    return width - 1
            return most
        finally:
            native.close()

    def _probe(self) -> tuple[Rollback, str | None]:
        """Feed three tokens, forget the last, feed it again: the logits tell whether rolling back worked."""
        small = replace(self._context, context=256, chunk=8, rows=1)
        context = NativeContext(self._model, small)
        try:
            tokens = np.arange(3, dtype=np.int32) % self._model.vocab_size
            context.run(tokens[:2], np.arange(2, dtype=np.int32), None, 0)
            state = context.checkpoint() if self._model.recurrent else None
            last, at = tokens[2:], np.array([2], np.int32)
            before = context.run(last, at, None, 1).copy()
            how: Rollback = "trim"
            if not context.remove(ROOT, 2):
                if state is None or not context.restore(state) or not context.remove(ROOT, 2):
                    return "none", "llama.cpp can neither trim nor restore this model's state"
                how = "replay"
            after = context.run(last, at, None, 1)
            if float(np.abs(after - before).max()) > 1e-3 * max(1.0, float(np.abs(before).max())):
                return "none", f"rolling back by {how} changed the logits of this model"
            reason = "recurrent layers: no trees; rolled back by checkpoint and replay" if how == "replay" else None
            return how, reason
        finally:
            context.close()


class LlamaSession:
    """One sequence. Position = index in the kept text; pending tokens live on lines behind it."""

    def __init__(self, context: NativeContext, info: EngineInfo) -> None:
        self._context: NativeContext | None = context
        self._info = info
        self._length = 0
        self._lines = Lines(context.config.lines)
        self._tokens: list[int] = []  # pending tokens, needed to replay
        self._state: bytes | None = None
        self._failed = False

    @property
    def length(self) -> int:
        """Tokens kept."""
        return self._length

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        """Feed ``tokens`` tentatively; the logits are a view that the next call overwrites."""
        context = self._open()
        check_extend(tokens, parents, rows, self._info.vocab_size)
        total = self._length + len(self._lines) + len(tokens)
        if total > self._info.max_context:
            raise ContextFull(f"{total} tokens do not fit into a context of {self._info.max_context}")
        if self._info.rollback == "replay" and not self._tokens:
            self._state = context.checkpoint()
        copies, sequences = self._lines.add(parents.tolist())
        for copy in copies:
            context.copy(copy.source, copy.line, 0, copy.end)
        first = len(self._lines) - len(tokens)
        positions = np.array([self._lines.position(first + i) for i in range(len(tokens))], np.int32)
        self._tokens += tokens.tolist()
        single = self._lines.used == 1
        return Scores(self._run(context, tokens, positions, None if single else sequences, rows))

    def _run(
        self,
        context: NativeContext,
        tokens: Ids,
        positions: Ids,
        sequences: Sequence[Sequence[int]] | None,
        rows: int,
    ) -> Logits:
        try:
            return context.run(tokens, positions, sequences, rows)
        except (ContextFull, EngineFailure):
            self._failed = True
            raise

    def keep(self, path: Sequence[int]) -> None:
        """Keep a root-first path of the pending tokens, forget the others."""
        context = self._open()
        self._lines.check_path(path)
        end = self._length + len(path)
        if len(path) < len(self._lines):
            if self._info.rollback == "trim":
                self._trim(context, path, end)
            else:
                self._replay(context, [self._tokens[node] for node in path])
        self._forget_pending(end)

    def _trim(self, context: NativeContext, path: Sequence[int], end: int) -> None:
        """Everything a kept token is seen by is on the line of the path's last token."""
        line = self._lines.line(path[-1] if path else -1)
        if line == ROOT:
            self._remove(context, ROOT, end)
        else:
            self._remove(context, ROOT, self._length)
            context.copy(line, ROOT, self._length, end)
        for other in range(1, self._lines.used):
            self._remove(context, other, 0)

    def _remove(self, context: NativeContext, line: int, start: int) -> None:
        if not context.remove(line, start):
            self._failed = True
            raise EngineFailure(f"llama.cpp could not forget positions from {start} on")

    def _replay(self, context: NativeContext, tokens: list[int]) -> None:
        """Back to the checkpoint, then run the kept tokens again."""
        if self._info.rollback == "none":
            raise EngineFailure("this model cannot forget tokens; only plain decoding is possible")
        if self._length == 0:
            context.clear()
        elif self._state is None or not context.restore(self._state) or not context.remove(ROOT, self._length):
            self._failed = True
            raise EngineFailure("llama.cpp did not restore its own checkpoint")
        if tokens:
            positions = np.arange(self._length, self._length + len(tokens), dtype=np.int32)
            self._run(context, np.array(tokens, np.int32), positions, None, 0)

    def _forget_pending(self, length: int) -> None:
        self._length = length
        self._lines.clear(length)
        self._tokens = []
        self._state = None

    def rewind(self, length: int) -> int:
        """Forget everything from ``length`` on; a model that cannot be trimmed goes back to 0."""
        context = self._open()
        if not 0 <= length <= self._length:
            raise InvalidValue("length", length, f"0 to {self._length}")
        if length == self._length and not self._tokens:
            return length
        if length and self._info.rollback == "trim":
            for line in range(1, self._lines.used):
                self._remove(context, line, 0)
            self._remove(context, ROOT, length)
        elif length == self._length and self._info.rollback == "replay":
            self._replay(context, [])
        else:
            context.clear()
            length = 0
        self._forget_pending(length)
        return length

    def close(self) -> None:
        """Free the cache. Idempotent."""
        if self._context is not None:
            self._context.close()
            self._context = None

    def _open(self) -> NativeContext:
        if self._context is None or self._failed:
            raise EngineFailure("the session is closed" if self._context is None else "the session has failed")
        return self._context
