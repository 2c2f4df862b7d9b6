"""Rollouts of a head against their definition written out, and which law each of its guesses is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from foredraft.models.decoder import Decoder
from foredraft.models.head import DraftHead
from foredraft.train import measures
from foredraft.train.batch import Rotation
from foredraft.train.batches import collated
from foredraft.train.frozen import Frozen
from foredraft.train.head import TrainSettings, head_loss
from foredraft.train.losses import LOSSES, Loss
from foredraft.train.measures import Measured, Tally, measure, places
from foredraft.train.rollout import Batch, answers, rollout
from foredraft.train.states import TextStates
from tests.support.tiny_torch import forward
from tests.support.training import (
    VOCAB,
    SlowHead,
    random_ids,
    slow_rollout,
    states_and_logits,
    text_of,
    tiny_decoder,
    tiny_head,
)

DEPTH = 4
TAPS = (0, 2)
HEADS = {"one key for two": {}, "a key for each": {"num_key_value_heads": 4}, "wide": {"head_dim": 12}}
LENGTHS = (11, 2, 7, 11, 4)


def random_batch(state_size: int, lengths: Sequence[int], firsts: Sequence[int], seed: int = 0) -> Batch:
    """Random ids and states, padded on the right with numbers that show when they are used."""
    longest, generator = max(lengths), torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB, (len(lengths), longest), generator=generator)
    states = torch.randn(len(lengths), longest, state_size, generator=generator, dtype=torch.float64) * 3
    for row, length in enumerate(lengths):
        ids[row, length:] = VOCAB - 1
        states[row, length:] = 1e4
    zeros = torch.zeros(len(lengths), longest)
    return Batch(ids, states, zeros, zeros.long(), torch.tensor(list(firsts)), torch.tensor(list(lengths)))


def run(head: DraftHead, target: Decoder, batch: Batch, steps: int) -> Tensor:
    """float64[steps, B, N, h]."""
    embedding = target.embedding.weight
    rotation = Rotation(head.config.decoder(64), embedding, 64)
    with torch.no_grad():
        return torch.stack(list(rollout(head, embedding, batch, steps, rotation)))


# --- every output ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", HEADS)
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_every_output_is_the_definitions(shape: str, family: str) -> None:
    """Of all texts of a padded batch, at every index and step; Gemma scales its embeddings."""
    target = tiny_decoder(family, **HEADS[shape]).double()
    head = tiny_head(target, TAPS, VOCAB).double()
    batch = random_batch(head.config.state_size, LENGTHS, [1] * len(LENGTHS))
    got = run(head, target, batch, 6)
    slow = SlowHead.of(head, target.embedding.weight)
    for row, length in enumerate(LENGTHS):
        want = slow_rollout(slow, batch.ids[row, :length].tolist(), batch.states[row, :length], 6)
        there = ~want.isnan()
        assert there[0].all() and there.sum() == sum(max(0, length - 1 - j) for j in range(6)) * want.shape[-1]
        mine = got[:, row, : length - 1]
        torch.testing.assert_close(mine[there], want[there], rtol=2e-5, atol=2e-5)


def test_float32_is_as_good_as_its_rounding() -> None:
    target = tiny_decoder()
    head = tiny_head(target, TAPS, VOCAB)
    batch = random_batch(head.config.state_size, (12,), (1,))
    got = run(head, target, Batch(batch.ids, batch.states.float(), *_rest(batch)), DEPTH)
    want = slow_rollout(SlowHead.of(head, target.embedding.weight), batch.ids[0].tolist(), batch.states[0], DEPTH)
    there = ~want.isnan()
    torch.testing.assert_close(got[:, 0][there].double(), want[there], rtol=1e-4, atol=1e-4)


def _rest(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch.log_totals, batch.best, batch.first, batch.end


def test_only_what_lies_before_is_seen() -> None:
    """An output of index t and step j changes with the states up to t and the tokens up to t + 1 + j alone."""
    target = tiny_decoder()
    head = tiny_head(target, TAPS, VOCAB).double()
    target = target.double()
    batch = random_batch(head.config.state_size, (10,), (1,))
    before = run(head, target, batch, DEPTH)[:, 0]
    for place in range(10):
        states, ids = batch.states.clone(), batch.ids.clone()
        states[0, place] += 1.0
        moved = run(head, target, Batch(batch.ids, states, *_rest(batch)), DEPTH)[:, 0]
        other = (moved != before).any(-1)
        assert other.tolist() == [[place <= t for t in range(9)] for _ in range(DEPTH)]
        ids[0, place] = (ids[0, place] + 1) % VOCAB
        moved = run(head, target, Batch(ids, batch.states, *_rest(batch)), DEPTH)[:, 0]
        other = (moved != before).any(-1)
        for step in range(DEPTH):
            known = [t for t in range(9) if t + 1 + step < 10]
            assert [bool(other[step, t]) for t in known] == [1 <= place <= t + 1 + step for t in known]


# --- answers and places ------------------------------------------------------------------------------------


def test_the_places_of_answers() -> None:
    """Position x stands for the guess of token x + 1; an answer of one token has one place."""
    batch = random_batch(4, (9, 5, 6), (6, 2, 5))
    rows, positions = answers(batch)
    listed = list(zip(rows.tolist(), positions.tolist(), strict=True))
    assert listed == [(0, x) for x in (5, 6, 7)] + [(1, x) for x in (1, 2, 3)] + [(2, 4)]
    for depth in (1, 2, 3, 4):
        rows, positions = places(batch, depth)
        chosen = list(zip(rows.tolist(), positions.tolist(), strict=True))
        ends = {0: 9, 1: 5, 2: 6}
        assert chosen == [(row, x) for row, x in listed if x + depth < ends[row]]


# --- laws --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """A target, a head with a draft vocabulary, and texts with states."""

    target: Decoder
    head: DraftHead
    frozen: Frozen
    texts: list[TextStates]
    laws: list[Tensor]
    """The target's, float64[N, V'], of each text."""

    @staticmethod
    def of(family: str, lengths: Sequence[int], prompts: Sequence[int]) -> World:
        target = tiny_decoder(family)
        layers = target.config.layers
        ids = [id for id in range(VOCAB) if id % 4]
        texts, laws = [], []
        for number, (length, prompt) in enumerate(zip(lengths, prompts, strict=True)):
            tokens = random_ids(length, number)
            ((states, logits),) = states_and_logits(target, [tokens])
            text = text_of(number, tokens, prompt, temperature=0.8 * (number % 2))
            texts.append(TextStates(text, states.half(), logits.logsumexp(-1), logits.argmax(-1).int()))
            laws.append(logits.double().softmax(-1)[:, ids])
        head = tiny_head(target, range(layers), len(ids))
        return World(target, head, Frozen.of(target, ids), texts, laws)

    @property
    def rotation(self) -> Rotation:
        return Rotation(self.head.config.decoder(64), self.frozen.embedding, 64)

    def guesses(self) -> list[Tensor]:
        """The head's log laws float64[DEPTH, N - 1, V'] at every step and index of each text."""
        slow = SlowHead.of(self.head, self.frozen.embedding)
        found = []
        for text in self.texts:
            outputs = slow_rollout(slow, text.text.ids, text.states, DEPTH)
            normed = torch.stack([torch.stack([slow.norm("norm", x) for x in step]) for step in outputs])
            logits = normed @ self.frozen.weight.double().T
            cap = self.target.config.final_softcap
            found.append((logits if cap is None else cap * torch.tanh(logits / cap)).log_softmax(-1))
        return found


WORLD_LENGTHS, WORLD_PROMPTS = (12, 5, 9, 14), (4, 2, 8, 1)


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def world(request: pytest.FixtureRequest) -> World:
    return World.of(request.param, WORLD_LENGTHS, WORLD_PROMPTS)


def test_laws_come_from_the_last_layers_states(world: World) -> None:
    """As far as float16 keeps them, over the draft vocabulary."""
    batch = collated(world.texts, torch.device("cpu"), torch.float32)
    for row, (text, want) in enumerate(zip(world.texts, world.laws, strict=True)):
        positions = torch.arange(len(text.text))
        got = world.frozen.law(batch, torch.full_like(positions, row), positions)
        torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-4)
        assert (got.sum(-1) < 1.001).all() and got.sum(-1).min() < 0.9
        logits = forward(world.target, text.text.ids)
        np.testing.assert_array_equal(text.best, logits.argmax(-1))


@pytest.mark.parametrize("piece", [5, 256])
def test_what_is_measured_is_what_loops_find(world: World, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Position x, step j: the guess that reads token x + j is compared with the law there."""
    monkeypatch.setattr(measures, "PIECE", piece)
    got = measure(world.head, world.frozen, [world.texts[:3], world.texts[3:]], DEPTH, world.rotation)
    overlaps, chains, covered = [], [], []
    reached, hits = [0] * DEPTH, [0] * DEPTH
    for text, laws, guesses in zip(world.texts, world.laws, world.guesses(), strict=True):
        greedy, ids = text.text.temperature == 0, world.frozen.ids
        for x in range(max(1, text.text.prompt_tokens - 1), len(text.text) - DEPTH):
            shares = [float(torch.minimum(laws[x + j], guesses[j, x - 1].exp()).sum()) for j in range(DEPTH)]
            right = [bool(ids[guesses[j, x - 1].argmax()] == text.best[x + j]) for j in range(DEPTH)]
            overlaps.append(shares)
            chains.append(sum(math.prod((right if greedy else shares)[: j + 1]) for j in range(DEPTH)))
            covered.append(float(laws[x].sum()))
            for j in range(DEPTH if greedy else 0):
                reached[j] += all(right[:j])
                hits[j] += all(right[: j + 1])
    assert got.tokens == len(overlaps)
    assert got.overlap == pytest.approx(np.mean(overlaps, 0).tolist(), rel=5e-3)
    assert got.accepted == pytest.approx(float(np.mean(chains)), rel=5e-3)
    assert got.covered == pytest.approx(float(np.mean(covered)), rel=5e-3)
    want = [hit / count if count else 0.0 for hit, count in zip(hits, reached, strict=True)]
    assert got.greedy == pytest.approx(want, abs=1e-6)


def test_a_tally_by_hand() -> None:
    """Three places of greedy texts and one of another, in two batches: of three first guesses two are right, of those
    two one second guess, of that one no third."""
    tally = Tally(3)
    certain = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    overlaps = torch.tensor([[0.5, 0.25, 0.0], [1.0, 0.0, 0.5], [0.0, 0.5, 0.25]])
    tally.add(certain, overlaps, torch.tensor([True] * 3), torch.tensor([1.0, 0.5, 0.75]))
    soft = torch.tensor([[0.5, 0.5, 0.25]])
    tally.add(soft, soft, torch.tensor([False]), torch.tensor([0.75]))
    found = tally.measured()
    assert found.greedy == pytest.approx((2 / 3, 1 / 2, 0.0)) and found.overlap == pytest.approx((0.5, 0.3125, 0.25))
    assert found.accepted == pytest.approx((2 + 1 + 0 + 0.5 + 0.25 + 0.0625) / 4)
    assert (found.tokens, found.covered) == (4, 0.75)
    assert Tally(2).measured() == Measured((0.0, 0.0), (0.0, 0.0), 0.0, 0, 0.0)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_loss_is_what_loops_find(world: World, kind: Loss) -> None:
    """A weighted mean over steps of means over the answers' places; where a step would begin before the text, there is
    no place."""
    settings = TrainSettings(loss=kind, depth=DEPTH, decay=0.7)
    batch = collated(world.texts, torch.device("cpu"), torch.float32)
    with torch.no_grad():
        got = float(head_loss(world.head, world.frozen, batch, settings, world.rotation))
    steps: list[list[float]] = [[] for _ in range(DEPTH)]
    for text, laws, guesses in zip(world.texts, world.laws, world.guesses(), strict=True):
        for x in range(text.text.prompt_tokens - 1, len(text.text) - 1):
            for j in range(min(DEPTH, x)):
                p, log_q = laws[x], guesses[j, x - 1 - j]
                share = float(torch.minimum(p, log_q.exp()).sum())
                steps[j].append(-math.log(share) if kind == "lk" else float((p * (p.log() - log_q)).sum()))
    weights = [0.7**j for j in range(DEPTH)]
    want = sum(weight * float(np.mean(step)) for weight, step in zip(weights, steps, strict=True)) / sum(weights)
    assert got == pytest.approx(want, rel=5e-3)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_slope_of_the_loss(world: World, kind: Loss) -> None:
    """By each weight matrix, along a random direction, against finite differences in float64."""
    target, head = tiny_decoder(world.target.config.architecture).double(), world.head
    head = tiny_head(target, head.config.taps, head.config.rows, seed=1).double()
    frozen = Frozen.of(target, world.frozen.ids.tolist())
    batch = collated(world.texts, torch.device("cpu"), torch.float64)
    settings = TrainSettings(loss=kind, depth=3)
    rotation = Rotation(head.config.decoder(64), frozen.embedding, 64)

    def value() -> Tensor:
        return head_loss(head, frozen, batch, settings, rotation)

    value().backward()
    generator = torch.Generator().manual_seed(3)
    for name, weight in head.named_parameters():
        way = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        step = 3e-3 / float(way.norm())
        along = float((weight.grad * way).sum())
        with torch.no_grad():
            weight.add_(step * way)
            ahead = float(value())
            weight.sub_(2 * step * way)
            behind = float(value())
            weight.add_(step * way)
        assert along == pytest.approx((ahead - behind) / (2 * step), rel=0.03, abs=0.03), name
