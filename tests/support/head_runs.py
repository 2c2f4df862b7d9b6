"""A tiny target, its texts, and runs that train a head on them: what was told, kept and left on disk."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft.errors import TrainingDataError
from foredraft.models.decoder import Decoder
from foredraft.models.head import DraftHead, HeadConfig, begin
from foredraft.train.batches import Corpus
from foredraft.train.checkpoint import Checkpoint, load_checkpoint
from foredraft.train.frozen import Frozen
from foredraft.train.head import HeadTrainer, TrainSettings
from foredraft.train.loop import Event
from foredraft.train.measures import Measured
from foredraft.train.states import read_states
from foredraft.train.texts import SPLITS, DataSettings, part_files, write_about, write_part
from foredraft.train.writing import Job, Shelf, Writer
from foredraft.types import SamplingParams
from tests.support.training import VOCAB, Jobs, random_ids, text_of, tiny_decoder

TAPS = (0, 2)
SETTINGS = TrainSettings(
    depth=3, steps=28, batch_tokens=170, learning_rate=4e-3, warmup=4, every=6, patience=99, seed=5
)
CLOCK = ("seconds",)


def simple_target() -> Decoder:
    """It speaks of a dozen tokens, and what comes next is mostly, but not only, a matter of the last one: a few hundred
    tokens teach that."""
    target = tiny_decoder()
    for block in target.blocks:
        block.attention.out.weight *= 0.3
        block.ffn.down.weight *= 0.3
    target.head.weight[12:] *= 0.2
    target.head.weight[:12] *= 1.5
    return target


@dataclass(frozen=True)
class World:
    """A target and texts that it wrote, with states; 48 of 32 tokens, a few of them held out."""

    target: Decoder
    corpus: Corpus

    @staticmethod
    def of(directory: Path) -> World:
        target = simple_target()
        params = [SamplingParams(temperature=0.8 * (number % 2), seed=number) for number in range(48)]
        jobs = Jobs.of([Job(number, random_ids(4, number, 12), params[number], 28) for number in range(48)])
        list(Writer(target, frozenset(), Shelf(12, 48)).run(jobs))
        texts = []
        for number, one in sorted(jobs.written.items()):
            split = {6: SPLITS[1], 7: SPLITS[2]}.get(number // 2 % 8, SPLITS[0])
            ids = (*one.job.prompt, *one.ids)
            texts.append(text_of(number, ids, 4, split, one.job.params.temperature))
        write_about(directory, DataSettings("toy.gguf", "00"))
        for start in range(0, len(texts), 10):
            write_part(directory, texts[start : start + 10])
        read_states(target, TAPS, part_files(directory), lambda count: None)
        return World(target, Corpus.read(directory))

    def trainer(self, directory: Path, settings: TrainSettings = SETTINGS, rows: int = VOCAB) -> HeadTrainer:
        """A new head that would be trained into ``directory``; its first weights depend on the seed alone."""
        head = DraftHead(HeadConfig.of(self.target.config, TAPS, rows))
        begin(head, self.target, torch.Generator().manual_seed(settings.seed))
        directory.mkdir(exist_ok=True)
        return HeadTrainer(head, Frozen.of(self.target, range(rows)), self.corpus, settings, directory)


@dataclass
class Heard:
    """What a run, or several one after the other, told: its log, and the heads that were kept, the last one last."""

    events: list[Event] = field(default_factory=list)
    kept: list[tuple[Mapping[str, Tensor], Measured]] = field(default_factory=list)

    def told(self, event: Event) -> None:
        """A step has one event; what is told again takes its place."""
        self.events = [*(one for one in self.events if one.step != event.step), event]

    def keep_best(self, head: DraftHead, measured: Measured) -> None:
        self.kept.append((copy.deepcopy(head.state_dict()), measured))

    @property
    def log(self) -> list[Event]:
        """Without the time it took."""
        return [replace(event, seconds=0.0) for event in self.events]

    @property
    def measured(self) -> list[Measured]:
        return [event.measured for event in self.events if event.measured is not None]


def same(one: Any, other: Any) -> bool:
    """Bit for bit, through mappings and lists."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


@dataclass(frozen=True)
class Ended:
    """Where a run ended, on disk and in its own mind."""

    stored: Checkpoint
    weights: Mapping[str, Tensor]
    heard: Heard

    @staticmethod
    def of(trainer: HeadTrainer, heard: Heard) -> Ended:
        stored = load_checkpoint(trainer.directory, {})
        assert stored is not None and same(stored.weights, trainer.head.state_dict())
        return Ended(stored, copy.deepcopy(trainer.head.state_dict()), heard)

    def assert_same(self, other: Ended) -> None:
        for name in Checkpoint.__dataclass_fields__:
            if name not in CLOCK:
                assert same(getattr(self.stored, name), getattr(other.stored, name)), name
        assert self.heard.log == other.heard.log
        assert self.heard.kept[-1][1] == other.heard.kept[-1][1]
        assert same(self.heard.kept[-1][0], other.heard.kept[-1][0])


def whole_run(world: World, directory: Path, settings: TrainSettings = SETTINGS) -> Ended:
    trainer, heard = world.trainer(directory, settings), Heard()
    assert not trainer.resume()
    trainer.run(heard.told, heard.keep_best)
    return Ended.of(trainer, heard)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(TrainingDataError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and len(message) < 600
    return message
