"""Tiny targets, drafts and texts to train on: the target's next token depends on its last one, which is soon learnt."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from foredraft.models.config import DecoderConfig, Rope
from foredraft.models.decoder import Decoder
from foredraft.models.head import DraftHead, HeadConfig, begin
from foredraft.train.batch import Rotation, causal
from foredraft.train.batches import Corpus
from foredraft.train.draft import DraftSettings, DraftTrainer
from foredraft.train.frozen import Frozen
from foredraft.train.head import HeadTrainer, TrainSettings
from foredraft.train.loop import Event
from foredraft.train.states import read_states
from foredraft.train.team import Team
from foredraft.train.texts import SPLITS, Text, part_files, write_part

VOCAB = 40
TARGET = DecoderConfig(
    architecture="qwen2",
    vocab_size=VOCAB,
    hidden_size=32,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=8,
    ffn_size=48,
    context_length=64,
    norm_eps=1e-6,
    rope=Rope(10000.0),
    tied=False,
    query_scale=1 / 8**0.5,
    qkv_bias=True,
)
DRAFT = replace(TARGET, hidden_size=24, layers=2, heads=3, kv_heads=3, ffn_size=64, tied=True)


def made(config: DecoderConfig, seed: int = 0, blocks: float = 1.0) -> Decoder:
    """Random, always the same; ``blocks``: how much the layers add to the stream."""
    random = torch.Generator().manual_seed(seed)
    decoder = Decoder(config)
    with torch.no_grad():
        for name, weight in decoder.named_parameters():
            values = torch.randn(weight.shape, generator=random)
            if weight.dim() == 1:
                weight.copy_(0.1 * values + ("norm" in name))
            else:
                weight.copy_(values * (1.0 if "embedding" in name else weight.shape[-1] ** -0.5))
            if name.endswith(("out.weight", "down.weight")):
                weight.mul_(blocks)
    decoder.eval()
    return decoder


@cache
def target() -> Decoder:
    """Sure of itself: most of its laws have one likely token."""
    decoder = made(TARGET, blocks=0.2)
    with torch.no_grad():
        decoder.head.weight.mul_(3.0)
    return decoder


def written(decoder: Decoder, count: int, prompt: int = 4, answer: int = 20) -> list[Text]:
    """Texts by ``decoder``, every other greedy; one of four for validation, one for testing."""
    random = torch.Generator().manual_seed(7)
    ids = torch.randint(0, VOCAB, (count, prompt), generator=random)
    angles = Rotation(decoder.config, decoder.embedding.weight, prompt + answer)
    for length in range(prompt, prompt + answer):
        at = angles.at(torch.arange(length)[None])
        with torch.no_grad():
            logits = decoder.logits(decoder.hidden(ids, at, causal(decoder.config))[-1][:, -1])
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=random)
        greedy = (torch.arange(count) % 2 == 0)[:, None]
        ids = torch.cat([ids, torch.where(greedy, logits.argmax(-1, keepdim=True), drawn)], 1)
    splits = {1: SPLITS[1], 2: SPLITS[1], 3: SPLITS[2]}
    return [
        Text(
            number=row,
            kind="own",
            split=splits.get(row % 8, SPLITS[0]),
            temperature=0.0 if row % 2 == 0 else 1.0,
            prompt_tokens=prompt,
            ids=tuple(ids[row, : prompt + answer - row % 5].tolist()),
            ended=False,
        )
        for row in range(count)
    ]


def corpus(folder: Path, count: int = 96, decoder: Decoder | None = None) -> Corpus:
    """Texts by ``target`` and what it thinks of them, through files in ``folder``."""
    decoder = decoder or target()
    (folder / "texts").mkdir(parents=True)
    write_part(folder, written(decoder, count))
    read_states(decoder, (decoder.config.layers - 1,), part_files(folder), lambda tokens: None)
    return Corpus.read(folder)


def states_of_target(folder: Path) -> None:
    """Texts and states of ``corpus`` on disk."""
    corpus(folder)


def head_trainer(folder: Path, out: Path, team: Team, steps: int = 6) -> HeadTrainer:
    """Of a head that sees the last layer, on what ``states_of_target`` left in ``folder``."""
    head = DraftHead(HeadConfig.of(TARGET, (TARGET.layers - 1,), VOCAB))
    begin(head, target(), torch.Generator().manual_seed(5))
    settings = TrainSettings(depth=2, steps=steps, batch_tokens=300, learning_rate=1e-2, warmup=2, every=3, patience=9)
    return HeadTrainer(head, frozen(), Corpus.read(folder), settings, out, team=team)


def frozen(ids: tuple[int, ...] = tuple(range(VOCAB))) -> Frozen:
    """What a trainer knows of ``target``."""
    return Frozen.of(target(), ids)


SHORT = DraftSettings(depth=3, steps=12, batch_tokens=300, learning_rate=1e-2, warmup=2, every=5, patience=9, seed=3)
"""Three measurements on the way, in a fraction of a second."""
LONG = replace(SHORT, steps=80, batch_tokens=600, every=40)
"""Enough to learn something."""


def trainer(
    folder: Path, corpus: Corpus, settings: DraftSettings = SHORT, decoder: Decoder | None = None, **more: Any
) -> DraftTrainer:
    folder.mkdir(exist_ok=True)
    ids = more.pop("ids", tuple(range(VOCAB)))
    return DraftTrainer(decoder or made(DRAFT, 1), frozen(ids), corpus, settings, folder, **more)


def ran(one: DraftTrainer) -> list[Event]:
    events: list[Event] = []
    one.run(events.append)
    return events


def weights(decoder: Decoder) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in decoder.state_dict().items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
