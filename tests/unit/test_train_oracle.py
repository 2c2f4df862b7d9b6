"""A head that knows what comes is always accepted, one that is early or late never: which law is compared with what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from foredraft.models.decoder import Angles, Attend, Decoder, RmsNorm
from foredraft.models.head import DraftHead, HeadConfig
from foredraft.train.batch import Rotation
from foredraft.train.batches import collated
from foredraft.train.frozen import Frozen
from foredraft.train.head import TrainSettings, head_loss
from foredraft.train.losses import LOSSES, Loss
from foredraft.train.measures import Measured, measure
from foredraft.train.states import TextStates
from tests.support.training import (
    VOCAB,
    random_ids,
    states_and_logits,
    text_of,
    tiny_decoder,
)

DEPTH = 4


# --- a head that knows -------------------------------------------------------------------------------------


class Oracle:
    """A head for a target whose law depends on the last token alone, and whose states are that token's embedding: its
    output for a token is that embedding. ``late``: it answers that many places late."""

    def __init__(self, config: HeadConfig, norm: RmsNorm, late: int = 0) -> None:
        self.config, self.norm, self._late = config, norm, late

    def fused(self, states: Tensor) -> Tensor:
        return states

    def __call__(self, embedded: Tensor, state: Tensor, angles: Angles, attend: Attend) -> Tensor:
        return torch.roll(embedded, self._late, dims=1)


def markov_target(sharp: float) -> Decoder:
    """Token x is followed by x + 1. Blocks pass everything on, embeddings are rows of ±1, which float16 keeps and norms
    leave alone."""
    target = tiny_decoder()
    with torch.no_grad():
        for block in target.blocks:
            block.attention.out.weight.zero_()
            block.ffn.down.weight.zero_()
        target.norm.weight.fill_(1.0)
        rows = torch.randn(VOCAB, 32, generator=torch.Generator().manual_seed(2)).sign()
        target.embedding.weight.copy_(rows)
        target.head.weight.copy_(rows.roll(1, 0) * sharp)
    return target


def markov_texts(target: Decoder, temperature: float) -> Iterator[TextStates]:
    """Of several lengths: the cycle at temperature 0, anything otherwise."""
    for number, (length, prompt) in enumerate(((12, 3), (9, 2), (15, 6))):
        start = 7 * number
        cycle = [(start + step) % VOCAB for step in range(length)]
        tokens = cycle if temperature == 0 else random_ids(length, number)
        ((states, logits),) = states_and_logits(target, [tokens])
        text = text_of(number, tokens, prompt, temperature=temperature)
        last = states[:, -target.config.hidden_size :].half()
        yield TextStates(text, last, logits.logsumexp(-1), logits.argmax(-1).int())


@dataclass(frozen=True)
class Asked:
    """An oracle over texts."""

    frozen: Frozen
    config: HeadConfig
    texts: list[TextStates]

    @staticmethod
    def of(sharp: float, temperature: float) -> Asked:
        target = markov_target(sharp)
        config = HeadConfig.of(target.config, (target.config.layers - 1,), VOCAB)
        return Asked(Frozen.of(target, range(VOCAB)), config, list(markov_texts(target, temperature)))

    def oracle(self, late: int) -> DraftHead:
        oracle: DraftHead = Oracle(self.config, self.frozen.norm, late)  # type: ignore[assignment]
        return oracle

    @property
    def rotation(self) -> Rotation:
        return Rotation(self.config.decoder(64), self.frozen.embedding, 64)

    def measured(self, late: int = 0) -> Measured:
        found: Measured = measure(self.oracle(late), self.frozen, [self.texts], DEPTH, self.rotation)
        return found

    def loss(self, kind: Loss, late: int = 0) -> float:
        batch = collated(self.texts, torch.device("cpu"), torch.float32)
        settings = TrainSettings(loss=kind, depth=DEPTH)
        return float(head_loss(self.oracle(late), self.frozen, batch, settings, self.rotation))


def test_who_knows_the_next_token_is_always_accepted() -> None:
    found = Asked.of(sharp=2.0, temperature=0.0).measured()
    assert found.greedy == (1.0,) * DEPTH and found.accepted == DEPTH
    assert found.tokens == sum(length - DEPTH - prompt + 1 for length, prompt in ((12, 3), (9, 2), (15, 6)))
    assert found.overlap == pytest.approx((1.0,) * DEPTH, abs=1e-5) and found.covered == pytest.approx(1.0, abs=1e-5)


def test_who_knows_the_next_law_is_always_accepted() -> None:
    """Soft laws, sampled texts."""
    asked = Asked.of(sharp=0.05, temperature=0.8)
    found = asked.measured()
    assert found.overlap == pytest.approx((1.0,) * DEPTH, abs=1e-5) and found.accepted == pytest.approx(DEPTH, abs=1e-4)
    assert found.greedy == (0.0,) * DEPTH  # no text of temperature 0
    for kind in LOSSES:
        assert asked.loss(kind) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("late", [1, -1, 2])
def test_who_is_late_or_early_by_one_is_never_accepted(late: int) -> None:
    found = Asked.of(sharp=2.0, temperature=0.0).measured(late)
    assert found.greedy == (0.0,) * DEPTH and found.accepted == 0.0
    assert found.overlap == pytest.approx((0.0,) * DEPTH, abs=1e-6)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("late", [1, -1])
def test_who_is_late_or_early_by_one_loses(kind: Loss, late: int) -> None:
    asked = Asked.of(sharp=2.0, temperature=0.0)
    assert asked.loss(kind) == pytest.approx(0.0, abs=1e-4)
    assert asked.loss(kind, late) > 10.0


def test_no_law_of_the_draft_vocabulary_is_no_chance() -> None:
    """A head that can say every second token is accepted there alone."""
    target = markov_target(2.0)
    ids = [id for id in range(VOCAB) if id % 2 == 0]
    asked = Asked.of(sharp=2.0, temperature=0.0)
    half = Asked(Frozen.of(target, ids), asked.config, asked.texts)
    found = half.measured()
    assert found.covered == pytest.approx(found.greedy[0], abs=1e-5) == pytest.approx(found.overlap[0], abs=1e-5)
    assert 0.3 < found.greedy[0] < 0.7 and found.greedy[1] == 0.0  # behind an even token comes an odd one
