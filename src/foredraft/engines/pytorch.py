"""Decoders of ``models`` run by PyTorch: for training, for profiling on a workstation, and as a second witness.

Chains and trees, trimmed at will. Knows nothing about drafts or sampling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foredraft.engines.base import EngineInfo, check_extend
from foredraft.engines.slots import Layout, Slots
from foredraft.engines.torch_cache import TorchCache, attention
from foredraft.errors import EngineFailure, InvalidValue
from foredraft.models.decoder import Angles, Decoder, angle_tables
from foredraft.models.load import load_decoder
from foredraft.types import Ids, Logits, Scores

DEFAULT_CONTEXT = 4096
Table = tuple[Tensor, Tensor]
"""Cosines and sines of angles."""
PIECE = 512
"""Tokens fed at once: products q·k are float32[heads, PIECE, slots in use]."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class TorchConfig:
    """``context``: tokens a session holds (0 = what the model was trained with, at most 4096). ``threads``: 0 = as
    PyTorch is set; another number is set for the whole process. ``device``: cpu, cuda, cuda:1, mps. ``dtype``: of
    weights and cache, float32 or bfloat16.
    """

    context: int = 0
    threads: int = 0
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not 0 <= self.context <= 1 << 24:
            raise InvalidValue("context", self.context, "0 (from the model) or a positive number of tokens")
        if not 0 <= self.threads <= 1024:
            raise InvalidValue("threads", self.threads, "0 (as PyTorch is set) to 1024")
        if self.dtype not in DTYPES:
            raise InvalidValue("dtype", self.dtype, ", ".join(DTYPES))


def available_devices() -> list[str]:
    """What PyTorch can use here, in the words of ``TorchConfig.device``."""
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *(["cuda"] if cuda else []), *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


class TorchEngine:
    """One decoder: a GGUF file, a Hugging Face directory, or a ``Decoder``, which is used where and as it is.

    ``taps``: layers whose outputs are returned, side by side, as ``Scores.hidden``. Raises ModelFileError,
    MissingExtra, InvalidValue.
    """

    def __init__(self, model: Path | Decoder, config: TorchConfig | None = None, taps: Sequence[int] = ()) -> None:
        config = config or TorchConfig()
        if config.threads:
            torch.set_num_threads(config.threads)
        if isinstance(model, Path):
            if config.device not in available_devices():
                raise InvalidValue("device", config.device, f"{', '.join(available_devices())} (on this machine)")
            decoder = load_decoder(model, DTYPES[config.dtype])
            decoder.to(config.device)
        else:
            decoder = model
        shape = decoder.config
        if any(not 0 <= layer < shape.layers for layer in taps):
            raise InvalidValue("taps", list(taps), f"layers from 0 to {shape.layers - 1}")
        self._decoder: Decoder | None = decoder
        self._taps = tuple(taps)
        self.info = EngineInfo(
            name="pytorch",
            model=model.name if isinstance(model, Path) else shape.architecture,
            vocab_size=shape.vocab_size,
            max_context=config.context or min(shape.context_length, DEFAULT_CONTEXT),
            tree=True,
            rollback="trim",
            hidden_size=len(taps) * shape.hidden_size or None,
        )

    @property
    def decoder(self) -> Decoder:
        """The module itself. EngineFailure once closed."""
        if self._decoder is None:
            raise EngineFailure("the engine is closed")
        return self._decoder

    def open(self) -> TorchSession:
        """A new, empty session with its own cache."""
        return TorchSession(self.decoder, self.info, self._taps)

    def close(self) -> None:
        """Free the weights; close every session first. Idempotent."""
        self._decoder = None


class TorchSession:
    """One sequence. Kept token i lies in slot i, pending tokens behind them."""

    def __init__(self, decoder: Decoder, info: EngineInfo, taps: tuple[int, ...] = ()) -> None:
        self._decoder, self._info, self._taps = decoder, info, taps
        self._slots = Slots(info.max_context)
        self._cache: TorchCache | None = TorchCache(decoder.config, info.max_context, decoder.embedding.weight.detach())
        self._tables: tuple[Table, Table] = angle_tables(decoder.config, 0)
        self._failed = False

    @property
    def length(self) -> int:
        """Tokens kept."""
        return self._slots.length

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        """Feed ``tokens`` tentatively, score the last ``rows``."""
        cache = self._open()
        check_extend(tokens, parents, rows, self._info.vocab_size)
        first, total = self._slots.pending, len(tokens)
        layout = self._slots.add(parents.tolist())
        parts: list[Scores] = []
        with self._running():
            self._reserve(cache)
            for start in range(0, total, PIECE):
                end = min(start + PIECE, total)
                piece = layout.part(start, end)
                streams = self._forward(cache, tokens[start:end], piece, first + start)
                parts.append(self._scores(streams, max(0, end - max(start, total - rows))))
        return _joined(parts)

    def _reserve(self, cache: TorchCache) -> None:
        """Room for all tokens, and tables of their angles."""
        before = cache.capacity
        cache.reserve(self._slots.used)
        if cache.capacity != before:
            full, local = angle_tables(self._decoder.config, cache.capacity)
            self._tables = _moved(full, cache.device), _moved(local, cache.device)

    def _forward(self, cache: TorchCache, tokens: Ids, layout: Layout, first: int) -> list[Tensor]:
        """Residual streams [N, hidden] of pending tokens ``first`` and following: of the taps, and the last one."""
        config, base = self._decoder.config, int(layout.slots[0])
        unseen: dict[bool, Tensor] = {}
        for local in {config.is_local(layer) for layer in range(config.layers)}:
            window = config.window if local else None
            seen = self._slots.visible(first, len(tokens), base + len(tokens), window)
            unseen[local] = torch.from_numpy(~seen).to(cache.device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            rows = cache.write(layer, base, k, v)
            return attention(q, rows, unseen[config.is_local(layer)], config.attention_softcap)

        at = torch.from_numpy(layout.positions).to(cache.device)
        angles = Angles(*(_picked(table, at) for table in self._tables))
        ids = torch.from_numpy(tokens.astype(np.int64)).to(cache.device)
        return self._decoder.hidden(ids, angles, attend, self._taps)

    def _scores(self, streams: list[Tensor], rows: int) -> Scores:
        """Hidden states of all tokens, logits of the last ``rows``."""
        *taps, last = streams
        hidden = _host(torch.cat(taps, -1)) if taps else None
        return Scores(_host(self._decoder.logits(last[last.shape[0] - rows :])), hidden)

    def keep(self, path: Sequence[int]) -> None:
        """Keep a root-first path of the pending tokens, forget the others."""
        cache = self._open()
        moves = self._slots.keep(path)
        with self._running():
            cache.move(moves)

    def rewind(self, length: int) -> int:
        """Forget everything from ``length`` on."""
        self._open()
        self._slots.rewind(length)
        return length

    def close(self) -> None:
        """Free the cache. Idempotent."""
        self._cache = None

    def _open(self) -> TorchCache:
        if self._cache is None or self._failed:
            raise EngineFailure("the session is closed" if self._cache is None else "the session has failed")
        return self._cache

    @contextmanager
    def _running(self) -> Iterator[None]:
        """PyTorch reports everything, lack of memory too, as a RuntimeError: the session ends with it."""
        try:
            with torch.inference_mode():
                yield
        except RuntimeError as error:
            self._failed = True
            raise EngineFailure(f"PyTorch failed: {str(error).partition(chr(10))[0]}") from error


def _moved(table: Table, device: torch.device) -> Table:
    cos, sin = table
    return cos.to(device), sin.to(device)


def _picked(table: Table, at: Tensor) -> Table:
    """float32[N, 1, D/2] of the positions ``at``."""
    cos, sin = table
    return cos[at][:, None], sin[at][:, None]


def _host(rows: Tensor) -> Logits:
    array: Logits = rows.float().cpu().numpy()
    return array


def _joined(parts: list[Scores]) -> Scores:
    """The rows of several passes; a single one is not copied."""
    if len(parts) == 1:
        return parts[0]
    filled = [part.logits for part in parts if len(part.logits)] or [parts[0].logits]
    hidden = [part.hidden for part in parts if part.hidden is not None]
    logits = filled[0] if len(filled) == 1 else np.concatenate(filled)
    return Scores(logits, np.concatenate(hidden) if hidden else None)
