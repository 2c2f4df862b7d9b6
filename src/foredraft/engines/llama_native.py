"""Thin, checked calls into llama.cpp: model, context, batch. Knows nothing about trees or rollback policy."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foredraft import modelfile
from foredraft.engines.llama_vocab import native_api, quiet_native_log
from foredraft.errors import ContextFull, EngineFailure, InvalidValue, ModelFileError
from foredraft.types import Ids, Logits


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """Shape of one llama.cpp context.

    ``context``: tokens it holds; ``chunk``: tokens per native pass; ``rows``: rows of logits one native pass can
    return; ``lines``: sequences, i.e. leaves of a tree; ``threads``: CPU threads; ``kv_type``: llama.cpp type name of
    the cached keys and values; ``exact``: passes that score rows are split so that none is wider (0 = never), see
    ``LlamaConfig.strict``; ``pad``: a pass that scores a single position gets a blind companion, because llama.cpp
    splits the cache among threads for single rows only, which changes their bits (needs a second line).
    """

    context: int
    threads: int
    chunk: int = 512
    rows: int = 64
    lines: int = 64
    kv_type: str = "f16"
    exact: int = 0
    pad: bool = False


_BLIND = 1
"""The line of a companion token, which sees nothing."""
KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "q4_0": 2}


class NativeModel:
    """Weights, loaded once. The file's header is checked in Python first. ``repack``: let llama.cpp rearrange
    weights for wide passes (faster, but the bits of a row then depend on the width it is scored at)."""

    def __init__(self, path: Path, *, repack: bool = True) -> None:
        self.path = path
        self.header = modelfile.read_gguf(modelfile.check_path(path))
        self.shape = modelfile.model_shape(self.header)
        self.api = native_api()
        log = quiet_native_log()
        log.clear()
        self.api.llama_backend_init()
        params = self.api.llama_model_default_params()
        params.use_extra_bufts = repack
        self.pointer: Any = self.api.llama_model_load_from_file(os.fsencode(path), params)
        if not self.pointer:
            reason = log.first_error() or "no reason given"
            raise ModelFileError(f"{path}: llama.cpp cannot load this model ({reason})")
        try:
            log.deliver_interrupt()
        except KeyboardInterrupt:
            self.close()
            raise
        if not self._decodes():
            self.close()
            raise ModelFileError(f"{path}: an encoder model; foredraft needs a decoder-only language model")

    def _decodes(self) -> bool:
        """True for a model that writes from left to right. llama.cpp calls BERT a decoder; its header does not."""
        api = self.api
        causal = self.header.metadata.get(f"{self.shape.architecture}.attention.causal", True)
        return bool(
            causal and api.llama_model_has_decoder(self.pointer) and not api.llama_model_has_encoder(self.pointer)
        )

    def check_context(self, context: int) -> None:
        """A model with learned positions ends the process beyond the last of them; rotary ones may go on."""
        learned = any(tensor.name == "position_embd.weight" for tensor in self.header.tensors)
        if learned and context > self.trained_context:
            allowed = f"at most {self.trained_context}: this model has learned positions"
            raise InvalidValue("context", context, allowed)

    @property
    def trained_context(self) -> int:
        """The context length the model was trained with, in tokens."""
        return int(self.api.llama_model_n_ctx_train(self.pointer))

    @property
    def vocab_size(self) -> int:
        """Rows of the output matrix."""
        return int(self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self.pointer)))

    @property
    def recurrent(self) -> bool:
        """True if some layers keep a running state instead of a cache of tokens."""
        api, model = self.api, self.pointer
        return bool(api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model))

    def close(self) -> None:
        """Free the weights. Idempotent."""
        if self.pointer:
            self.api.llama_model_free(self.pointer)
            self.pointer = None


class Batch:
    """Arguments of one native pass, in numpy memory that the struct points into."""

    def __init__(self, api: Any, tokens: int, lines: int) -> None:
        self._token = np.zeros(tokens, np.int32)
        self._pos = np.zeros(tokens, np.int32)
        self._count = np.ones(tokens, np.int32)
        self._lines = np.zeros((tokens, lines), np.int32)
        self._pointers = (self._lines.ctypes.data + self._lines.strides[0] * np.arange(tokens)).astype(np.uintp)
        self._logits = np.zeros(tokens, np.int8)
        self._tree = False
        self.struct = api.llama_batch()
        for name, array in (
            ("token", self._token),
            ("pos", self._pos),
            ("n_seq_id", self._count),
            ("seq_id", self._pointers),
            ("logits", self._logits),
        ):
            field = dict(api.llama_batch._fields_)[name]
            setattr(self.struct, name, ctypes.cast(array.ctypes.data, field))

    def fill(self, tokens: Ids, positions: Ids, sequences: Sequence[Sequence[int]] | None, rows: int) -> Any:
        """The struct for ``tokens``, of which the last ``rows`` are scored; ``sequences`` None: all on line 0."""
        count = len(tokens)
        self._token[:count] = tokens
        self._pos[:count] = positions
        self._logits[:count] = 0
        self._logits[count - max(rows, 1) : count] = 1  # never none: every pass then takes the same path
        if sequences is not None:
            for index, lines in enumerate(sequences):
                self._count[index] = len(lines)
                self._lines[index, : len(lines)] = lines
        elif self._tree:
            self._count[:] = 1
            self._lines[:, 0] = 0
        self._tree = sequences is not None
        self.struct.n_tokens = count
        return self.struct

    def fill_pair(self, token: int, position: int) -> Any:
        """One scored token on line 0, then the same token alone on a line of its own. The companion comes last, so that
        the cell it leaves behind is the next one to be used."""
        pair = np.full(2, token, np.int32), np.full(2, position, np.int32)
        struct = self.fill(*pair, [[0], [_BLIND]], 0)
        self._logits[:2] = (1, 0)
        return struct


class NativeContext:
    """One llama.cpp context: the cache of one sequence (and of the lines of its tree)."""

    def __init__(self, model: NativeModel, config: ContextConfig) -> None:
        self._model, self._api, self.config = model, model.api, config
        log = quiet_native_log()
        log.clear()
        params = self._api.llama_context_default_params()
        params.n_ctx = -(-(config.context + config.pad) // 256) * 256
        params.n_batch = params.n_ubatch = min(max(config.chunk, config.lines), params.n_ctx)
        params.n_seq_max = config.lines
        params.n_outputs_max = min(max(config.rows, config.lines), params.n_batch)  # llama.cpp asserts >= n_seq_max
        params.kv_unified = True
        params.swa_full = True
        params.n_threads = params.n_threads_batch = config.threads
        params.type_k = params.type_v = KV_TYPES[config.kv_type]
        params.no_perf = True
        self.pointer: Any = self._api.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            reason = log.first_error() or "not enough memory?"
            raise EngineFailure(f"llama.cpp cannot make a context of {config.context} tokens ({reason})")
        try:
            log.deliver_interrupt()
        except KeyboardInterrupt:
            self.close()
            raise
        self.memory = self._api.llama_get_memory(self.pointer)
        if not self.memory:
            self.close()
            raise ModelFileError(f"{model.path}: it keeps no cache; foredraft needs a left-to-right language model")
        self._chunk = int(params.n_batch)
        self._rows = int(params.n_outputs_max)
        self._batch = Batch(self._api, self._chunk, config.lines)
        self._vocab_size = model.vocab_size
        self._views: dict[int, Any] = {}  # rows -> the array type of that many logits rows

    def run(self, tokens: Ids, positions: Ids, sequences: Sequence[Sequence[int]] | None, rows: int) -> Logits:
        """Feed the tokens and return the logits of the last ``rows``, float32[rows, V]: a view into llama.cpp's own
        memory if one native pass holds them all, else a copy."""
        total = len(tokens)
        parts: list[Logits] = []
        start = 0
        chunk = self.config.exact if self.config.exact and rows else self._chunk
        while start < total:
            end = min(start + chunk, total)
            scored = max(0, end - max(start, total - rows))
            if scored > self._rows:
                end -= scored - self._rows
                scored = self._rows
            if self.config.pad and scored and end - start == 1:
                self._decode(self._batch.fill_pair(tokens[start], positions[start]))
                self.remove(_BLIND, 0)
            else:
                lines = sequences[start:end] if sequences is not None else None
                self._decode(self._batch.fill(tokens[start:end], positions[start:end], lines, scored))
            if scored:
                view = self._logits(scored)
                parts.append(view if scored == rows else view.copy())
            start = end
        if not parts:
            return np.empty((0, self._vocab_size), np.float32)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _decode(self, batch: Any) -> None:
        status = self._api.llama_decode(self.pointer, batch)
        if status == 1:
            raise ContextFull(f"llama.cpp found no room for {batch.n_tokens} more tokens in its cache")
        if status:
            reason = quiet_native_log().last_error() or "no reason given"
            raise EngineFailure(f"llama_decode returned {status} ({reason})")

    def _logits(self, rows: int) -> Logits:
        pointer = self._api.llama_get_logits(self.pointer)
        if not pointer:
            raise EngineFailure("llama.cpp returned no logits")
        kind = self._views.get(rows)
        if kind is None:
            kind = self._views[rows] = ctypes.c_float * (rows * self._vocab_size)
        address = ctypes.cast(pointer, ctypes.c_void_p).value or 0
        memory: Any = kind.from_address(address)
        return np.frombuffer(memory, np.float32).reshape(rows, self._vocab_size)

    def remove(self, line: int, start: int, end: int = -1) -> bool:
        """Take positions [start, end) out of ``line``; False if the memory cannot be cut there."""
        return bool(self._api.llama_memory_seq_rm(self.memory, line, start, end))

    def copy(self, source: int, line: int, start: int, end: int) -> None:
        """Make ``line`` see positions [start, end) of ``source`` too."""
        self._api.llama_memory_seq_cp(self.memory, source, line, start, end)

    def clear(self) -> None:
        """Forget everything."""
        self._api.llama_memory_clear(self.memory, False)

    def checkpoint(self) -> bytes | None:
        """The running state of the recurrent layers, None if llama.cpp gives none."""
        flags = self._api.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        size = self._api.llama_state_seq_get_size_ext(self.pointer, 0, flags)
        if not size:
            return None
        buffer = (ctypes.c_uint8 * size)()
        written = self._api.llama_state_seq_get_data_ext(self.pointer, buffer, size, 0, flags)
        return bytes(buffer[:written]) if written != size else bytes(buffer)

    def restore(self, state: bytes) -> bool:
        """Bring back a checkpoint; False if llama.cpp refuses it."""
        flags = self._api.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        return bool(self._api.llama_state_seq_set_data_ext(self.pointer, buffer, len(state), 0, flags))

    def close(self) -> None:
        """Free the context. Idempotent."""
        if self.pointer:
            self._api.llama_free(self.pointer)
            self.pointer = None
