"""Decoders with fewer layers: which ones go is measured, or the first ones stay.

Layers are residual: each adds to the stream of the ones before, so that a model without some of them still works, the
worse the more they said. Knows no files. Shapes: B texts, T tokens, h hidden size, V' draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from foredraft.errors import InvalidValue
from foredraft.models.config import DecoderConfig
from foredraft.models.decoder import Decoder
from foredraft.train.batch import Rotation, causal
from foredraft.train.batches import collated
from foredraft.train.frozen import Frozen
from foredraft.train.losses import PIECE, overlap
from foredraft.train.rollout import answers
from foredraft.train.states import TextStates


class Score(Protocol):
    """What a decoder with fewer layers is judged by: the mean over the places of some batches."""

    @property
    def batches(self) -> Sequence[Tensor]:
        """Token ids int64[B, T] of every batch."""
        ...

    @property
    def places(self) -> int:
        """Places in all batches."""
        ...

    def of(self, batch: int, last: Tensor) -> float:
        """The sum over the places of one batch; ``last``: the last residual stream [B, T, h]. More is better."""
        ...


@dataclass(frozen=True)
class Removal:
    """``layer`` went, counted in the whole decoder; ``score`` is that of the decoder without it and all before."""

    layer: int
    score: float


@dataclass(frozen=True)
class Kept:
    """``layers`` that stayed, ascending; ``whole``: the score with all of them; ``removals`` in order."""

    layers: tuple[int, ...]
    whole: float
    removals: tuple[Removal, ...]


def keep_layers(
    decoder: Decoder, count: int, score: Score, told: Callable[[Removal], None] = lambda removal: None
) -> Kept:
    """Choose ``count`` layers: one after the other goes, each time the one without which ``score`` is best.

    Of equal scores the lowest layer goes. A candidate costs only the layers behind it, because the stream in front of
    it is that of the one before. With m layers left that is m·(m+1)/2 layers and m times the output matrix, in all
    about (L³ - N³)/6 layers and (L² - N²)/2 times the matrix for L layers down to N: from 24 to 6 as much as 106 passes
    through 24 layers and 279 times the output matrix, over all tokens and places of ``score``. Memory: three streams of
    one batch. ``told`` hears of each removal.
    """
    kept = list(range(decoder.config.layers))
    _check(decoder.config, count)
    removals: list[Removal] = []
    with torch.no_grad():
        whole = _mean(decoder, kept, score)
        while len(kept) > count:
            scores = _without_each(decoder, kept, score)
            place = max(range(len(kept)), key=scores.__getitem__)
            removals.append(Removal(kept.pop(place), scores[place]))
            told(removals[-1])
    return Kept(tuple(kept), whole, tuple(removals))


def first_layers(target: Decoder, count: int) -> Decoder:
    """A draft cut out of the target: its first layers, copied, and its own embedding and output matrix, shared."""
    _check(target.config, count)
    return pruned(target, range(count))


def pruned(decoder: Decoder, layers: Iterable[int]) -> Decoder:
    """The decoder with these of its layers. Its blocks and last norm are copies, which may be trained; embedding and
    output matrix are the ones of ``decoder``."""
    chosen = tuple(layers)
    local = tuple(decoder.config.is_local(layer) for layer in chosen)
    window = decoder.config.window if any(local) else None
    config = replace(decoder.config, layers=len(chosen), window=window, local=local if any(local) else ())
    with torch.device("meta"):
        result = Decoder(config)
    state = {name: value for name, value in decoder.state_dict().items() if not name.startswith("blocks.")}
    state["norm.weight"] = state["norm.weight"].clone()
    for number, layer in enumerate(chosen):
        block = decoder.blocks[layer].state_dict()
        state |= {f"blocks.{number}.{name}": value.clone() for name, value in block.items()}
    result.load_state_dict(state, assign=True)
    if config.tied:
        result.head.weight = result.embedding.weight
    result.eval()
    return result


def _check(config: DecoderConfig, count: int) -> None:
    if not 1 <= count <= config.layers:
        raise InvalidValue("layers to keep", count, f"1 to {config.layers}, the model's")


def embedded(decoder: Decoder, tokens: Tensor) -> Tensor:
    """tokens int64[*] -> the first residual stream [*, h]."""
    x: Tensor = decoder.embedding(tokens)
    return x if decoder.config.embed_scale == 1.0 else x * decoder.config.embed_scale


class _Reader:
    """Runs single layers over one batch."""

    def __init__(self, decoder: Decoder, tokens: Tensor) -> None:
        self.first = embedded(decoder, tokens)
        self._blocks = decoder.blocks
        rotation = Rotation(decoder.config, decoder.embedding.weight, tokens.shape[1])
        self._angles = rotation.at(torch.arange(tokens.shape[1], device=tokens.device)[None])
        self._attend = causal(decoder.config)

    def through(self, layers: Sequence[int], x: Tensor) -> Tensor:
        """x [B, T, h] -> behind these layers."""
        for layer in layers:
            x = self._blocks[layer](x, self._angles, self._attend)
        return x


def _mean(decoder: Decoder, kept: Sequence[int], score: Score) -> float:
    total = 0.0
    for number, tokens in enumerate(score.batches):
        reader = _Reader(decoder, tokens)
        total += score.of(number, reader.through(kept, reader.first))
    return total / max(1, score.places)


def _without_each(decoder: Decoder, kept: Sequence[int], score: Score) -> list[float]:
    """The mean score without the first of ``kept``, without the second, …"""
    totals = [0.0] * len(kept)
    for number, tokens in enumerate(score.batches):
        reader = _Reader(decoder, tokens)
        x = reader.first
        for place in range(len(kept)):
            totals[place] += score.of(number, reader.through(kept[place + 1 :], x))
            x = reader.through(kept[place : place + 1], x)
    return [total / max(1, score.places) for total in totals]


class TargetScore:
    """Σ min(p, q), p the target's law and q that of a draft with the norm and output matrix of ``decoder``, at the
    places of the answers of ``texts``. Memory: the target's laws, 4·V' bytes a place."""

    def __init__(self, decoder: Decoder, target: Frozen, texts: Sequence[TextStates]) -> None:
        device = decoder.embedding.weight.device
        self._norm, self._rows = decoder.norm, draft_rows(decoder, target.ids)
        batches = [collated([text], device, torch.float32) for text in texts]
        self.batches = [batch.ids for batch in batches]
        self._at = [answers(batch) for batch in batches]
        self.places = sum(len(rows) for rows, _ in self._at)
        self._laws = [
            [target.law(batch, rows[piece], positions[piece]) for piece in _pieces(len(rows))]
            for batch, (rows, positions) in zip(batches, self._at, strict=True)
        ]

    def of(self, batch: int, last: Tensor) -> float:
        """See ``Score``."""
        rows, positions = self._at[batch]
        total = 0.0
        with torch.no_grad():
            normed = self._norm(last[rows, positions])
            for piece, p in zip(_pieces(len(rows)), self._laws[batch], strict=True):
                total += float(overlap(self._rows.logits(normed[piece]).log_softmax(-1), p).sum())
        return total


def _pieces(count: int) -> list[slice]:
    return [slice(start, start + PIECE) for start in range(0, count, PIECE)]


def draft_rows(decoder: Decoder, ids: Tensor) -> Frozen:
    """The embedding and the output rows of ``ids``, int64[V'], ascending, of a draft; not a copy if these are all.

    InvalidValue for an id that the draft does not have.
    """
    weight, size = decoder.head.weight.detach(), decoder.config.vocab_size
    if int(ids[-1]) >= size:
        raise InvalidValue("a token id of the draft vocabulary", int(ids[-1]), f"below {size}, what the draft knows")
    rows = weight if len(ids) == size else weight[ids.to(weight.device)]
    return Frozen(decoder.embedding.weight.detach(), decoder.norm, rows, ids, decoder.config.final_softcap)


def sample(texts: Sequence[TextStates], tokens: int) -> list[TextStates]:
    """Texts of at most ``tokens`` tokens in all, from all over ``texts``, always the same ones; the shortest if none is
    that short."""
    chosen: list[TextStates] = []
    for index in np.random.default_rng(0).permutation(len(texts)).tolist():
        if len(texts[index].text) <= tokens:
            chosen.append(texts[index])
            tokens -= len(texts[index].text)
    return chosen or sorted(texts, key=lambda text: len(text.text))[:1]
