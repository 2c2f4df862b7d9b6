"""A draft head run by PyTorch, beside a target on the pytorch engine. Knows nothing about drafts or sampling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from foredraft.engines.base import check_extend
from foredraft.engines.head_base import HeadInfo, HeadScores
from foredraft.engines.slots import Layout, Slots
from foredraft.engines.torch_cache import TorchCache, attention
from foredraft.errors import EngineFailure, InvalidValue
from foredraft.models.config import DecoderConfig
from foredraft.models.decoder import Angles, Decoder, angle_tables
from foredraft.models.head import DraftHead
from foredraft.types import Ids, Logits


class TorchHead:
    """``head`` with the embedding and the output rows ``ids`` of ``target``, on whose device and in whose type it
    runs."""

    def __init__(self, head: DraftHead, ids: Sequence[int], target: Decoder, context: int) -> None:
        config = head.config
        weight = target.embedding.weight
        if (config.vocab_size, config.hidden_size) != tuple(weight.shape):
            found = f"{weight.shape[0]} tokens of {weight.shape[1]} elements"
            raise InvalidValue("target of this head", found, f"{config.vocab_size} of {config.hidden_size}")
        self.head = head.to(weight).requires_grad_(False).eval()
        self.embedding = weight.detach()
        chosen = torch.tensor(list(ids), device=weight.device)
        self.rows = target.head.weight.detach()[chosen]
        self.softcap = target.config.final_softcap
        self.info = HeadInfo(
            np.array(ids, np.int32),
            config.vocab_size,
            config.state_size,
            config.hidden_size,
            context,
            config.pass_size / target.config.pass_size,
        )

    def open(self) -> TorchHeadSession:
        """A new, empty session."""
        return TorchHeadSession(self)

    def close(self) -> None:
        """The weights go with the object."""


class TorchHeadSession:
    """See ``HeadSession``."""

    def __init__(self, engine: TorchHead) -> None:
        self._engine = engine
        self._config = engine.head.config.decoder(engine.info.max_context)
        self._slots = Slots(engine.info.max_context)
        self._cache: TorchCache | None = TorchCache(self._config, engine.info.max_context, engine.embedding)
        self._tables: tuple[Tensor, Tensor] = _tables(self._config, engine.embedding, 0)
        self._failed = False

    @property
    def length(self) -> int:
        """Known entries."""
        return self._slots.length

    def read(self, states: Logits, tokens: Ids, rows: int) -> HeadScores:
        """Keep known entries, score the last ``rows``."""
        info = self._engine.info
        if states.shape != (len(tokens), info.state_size):
            raise InvalidValue("states", list(states.shape), f"{len(tokens)} of {info.state_size} elements")
        if self._slots.pending:
            raise InvalidValue("own entries", self._slots.pending, "0 when known ones are read")
        parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
        scores = self._run(states, tokens, parents, rows, known=True)
        self._slots.keep(range(len(tokens)))
        return scores

    def extend(self, outputs: Logits, tokens: Ids, parents: Ids) -> HeadScores:
        """Add own entries and score them."""
        if outputs.shape != (len(tokens), self._engine.info.hidden_size):
            raise InvalidValue("outputs", list(outputs.shape), f"{len(tokens)} of {self._engine.info.hidden_size}")
        return self._run(outputs, tokens, parents, len(tokens), known=False)

    def _run(self, inputs: Logits, tokens: Ids, parents: Ids, rows: int, *, known: bool) -> HeadScores:
        cache, engine = self._open(), self._engine
        check_extend(tokens, parents, rows, engine.info.vocab_size)
        first = self._slots.pending
        layout = self._slots.add(parents.tolist())
        with self._running():
            self._reserve(cache)
            state = torch.tensor(inputs).to(engine.embedding)
            state = engine.head.fused(state) if known else state
            last = self._forward(cache, tokens, layout, (first, state))[len(tokens) - rows :]
            logits = engine.head.norm(last) @ engine.rows.T
            if engine.softcap is not None:
                logits = engine.softcap * torch.tanh(logits / engine.softcap)
            return HeadScores(_host(logits), _host(last))

    def _forward(self, cache: TorchCache, tokens: Ids, layout: Layout, fed: tuple[int, Tensor]) -> Tensor:
        """``fed``: number of the first pending entry, and the states [N, h]."""
        first, state = fed
        base = int(layout.slots[0])
        seen = self._slots.visible(first, len(tokens), base + len(tokens))
        unseen = torch.from_numpy(~seen).to(cache.device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(q, cache.write(layer, base, k, v), unseen, None)

        at = torch.from_numpy(layout.positions).to(cache.device)
        cos, sin = self._tables
        angles = (cos[at][:, None], sin[at][:, None])
        ids = torch.from_numpy(tokens.astype(np.int64)).to(cache.device)
        embedded = self._engine.embedding[ids] * self._config.embed_scale
        return self._engine.head(embedded, state, Angles(angles, angles), attend)

    def _reserve(self, cache: TorchCache) -> None:
        before = cache.capacity
        cache.reserve(self._slots.used)
        if cache.capacity != before:
            self._tables = _tables(self._config, self._engine.embedding, cache.capacity)

    def forget(self) -> None:
        """Drop the own entries."""
        self._slots.rewind(self._slots.length)

    def rewind(self, length: int) -> None:
        """Drop own entries, and known ones from ``length`` on."""
        self._slots.rewind(length)

    def close(self) -> None:
        """Free the cache. Idempotent."""
        self._cache = None

    def _open(self) -> TorchCache:
        if self._cache is None or self._failed:
            raise EngineFailure("the session is closed" if self._cache is None else "the session has failed")
        return self._cache

    @contextmanager
    def _running(self) -> Iterator[None]:
        try:
            with torch.inference_mode():
                yield
        except RuntimeError as error:
            self._failed = True
            raise EngineFailure(f"PyTorch failed: {str(error).partition(chr(10))[0]}") from error


def _tables(config: DecoderConfig, weight: Tensor, length: int) -> tuple[Tensor, Tensor]:
    cos, sin = angle_tables(config, length)[0]
    return cos.to(weight), sin.to(weight)


def _host(rows: Tensor) -> Logits:
    array: Logits = rows.float().cpu().numpy()
    return array
