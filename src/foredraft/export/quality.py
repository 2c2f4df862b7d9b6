"""What quantization costs: a program's laws beside those of the weights it was made from, on a fixed text.

KL divergence is in nats per token, averaged; perplexity is exp of the mean negative log-probability of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from foredraft.engines.base import Engine
from foredraft.engines.pytorch import TorchEngine
from foredraft.export.program import Program
from foredraft.models.decoder import Decoder
from foredraft.types import Logits

PREFIX, SCORED = 64, 192
"""Tokens of the text that are only read, and those whose next-token laws are compared."""
SCORED_END = PREFIX + SCORED
ROUND_TRIP = 24


def reference_rows(decoder: Decoder, ids: Sequence[int]) -> Logits:
    """Logits float32[S, V] of the unquantized model for all but the first ``PREFIX`` of ``ids``."""
    engine = TorchEngine(decoder)
    try:
        return scored_rows(engine, ids)
    finally:
        engine.close()


def scored_rows(engine: Engine, ids: Sequence[int]) -> Logits:
    """The same rows from any engine."""
    return _rows(engine, ids, min(PREFIX, len(ids) - 1))


def all_rows(engine: Engine, ids: Sequence[int]) -> Logits:
    """Logits of every token of ``ids``, float32[len(ids), V]."""
    return _rows(engine, ids, 0)


def _rows(engine: Engine, ids: Sequence[int], prefix: int) -> Logits:
    session = engine.open()
    try:
        tokens = np.array(ids, np.int32)
        if prefix:
            session.extend(tokens[:prefix], np.arange(-1, prefix - 1, dtype=np.int32), 0)
            session.keep(range(prefix))
        count = len(ids) - prefix
        return session.extend(tokens[prefix:], np.arange(-1, count - 1, dtype=np.int32), count).logits.copy()
    finally:
        session.close()


def compare(reference: Logits, rows: Logits, ids: Sequence[int], kept: Sequence[int] | None) -> dict[str, float]:
    """``mean_kl``, ``perplexity`` of both on ``ids``, ``same_top``: share of positions with the same best token.

    With restricted output rows ``kept`` both laws are conditioned on them, and ``kept_mass`` is the probability the
    reference gives to them.
    """
    prefix = len(ids) - len(reference)
    columns = slice(None) if kept is None else np.array(kept)
    left, right = _log_softmax(reference), _log_softmax(rows[:, columns])
    result = {"perplexity_source": _perplexity(left, ids[prefix + 1 :])}
    if kept is None:
        result["perplexity"] = _perplexity(right, ids[prefix + 1 :])
    else:
        left = left[:, columns]
        mass = np.exp(left).sum(axis=1)
        result["kept_mass"] = float(mass.mean())
        left = left - np.log(mass)[:, None]
    result["mean_kl"] = float((np.exp(left) * (left - right)).sum(axis=1).mean())
    result["same_top"] = float((left.argmax(axis=1) == right.argmax(axis=1)).mean())
    return {name: round(value, 5) for name, value in result.items()}


def _log_softmax(rows: Logits) -> Logits:
    shifted = rows - rows.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)), np.float32)


def _perplexity(rows: Logits, following: Sequence[int]) -> float:
    scores = rows[np.arange(len(following)), np.array(following)]
    return float(np.exp(-scores.mean(dtype=np.float64)))


def eager_rows(program: Program, ids: Sequence[int]) -> Logits:
    """Logits of the torch module that is exported, run as it is, for ``ids`` in one pass: float32[N, V']."""
    count, config = len(ids), program.config
    caches = [torch.zeros(config.kv_heads, count, config.head_dim) for _ in range(2 * config.layers)]
    at = torch.arange(count)
    fed = (torch.tensor(list(ids)), at, at, at)
    with torch.no_grad():
        logits: Tensor = program(fed, _causal_masks(program, count), torch.ones(config.kv_heads, count, 1), caches)[0]
    return logits.numpy()  # type: ignore[no-any-return]


def _causal_masks(program: Program, count: int) -> list[Tensor]:
    back = torch.arange(count)[:, None] - torch.arange(count)[None]
    windows = (None, program.config.window) if program.windowed else (None,)
    return [torch.where((back >= 0) & (back < (window or count)), 0.0, -1e9).to(torch.float32) for window in windows]


def round_trip(eager: Logits, program: Logits) -> Mapping[str, float]:
    """How far the lowered program is from its torch module, on the same tokens: the largest difference, and the
    standard deviation of differences in units of that of the logits. Rounding to int8 makes it not zero."""
    off = program - eager
    return {
        "round_trip_largest": round(float(np.abs(off).max()), 5),
        "round_trip_relative": round(float(off.std() / eager.std()), 6),
    }
