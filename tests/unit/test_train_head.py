"""Training a head: it learns, it is interrupted and goes on to the same bits, and it refuses what is not its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from foredraft.errors import InvalidValue, TrainingDataError
from foredraft.models.decoder import Decoder
from foredraft.models.head import DraftHead, HeadConfig, begin, default_taps
from foredraft.train import checkpoint as checkpoint_room
from foredraft.train import head as head_room
from foredraft.train import loop as loop_room
from foredraft.train.batch import Rotation
from foredraft.train.batches import Batches, Corpus, collated
from foredraft.train.checkpoint import CHECKPOINT, Checkpoint, load_checkpoint, save_checkpoint
from foredraft.train.frozen import Frozen
from foredraft.train.head import Event, HeadTrainer, TrainSettings, head_loss
from foredraft.train.measures import Measured
from foredraft.train.states import read_states
from foredraft.train.texts import SPLITS, DataSettings, part_files, write_about, write_part
from foredraft.train.writing import Job, Shelf, Writer
from foredraft.types import SamplingParams
from tests.support.tiny_torch import VARIANTS
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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.of(tmp_path_factory.mktemp("data"))


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


@pytest.fixture(scope="module")
def whole(world: World, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run that nothing interrupts."""
    return whole_run(world, tmp_path_factory.mktemp("whole"))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(TrainingDataError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and len(message) < 600
    return message


# --- learning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["lk", "kl"])
def test_it_learns(loss: Any, world: World, tmp_path: Path) -> None:
    """The loss falls, and held-out texts are guessed better at every depth than by a head that was not trained."""
    settings = replace(SETTINGS, loss=loss, learning_rate=1e-2, batch_tokens=256, steps=60, every=20)
    trainer, heard = world.trainer(tmp_path, settings), Heard()
    before = {split: trainer.measured(split) for split in SPLITS}
    trainer.run(heard.told, heard.keep_best)
    assert heard.events[-1].loss < 0.75 * heard.events[0].loss
    for split, gain in zip(SPLITS, (0.3, 0.1, 0.2), strict=True):
        after = trainer.measured(split)
        assert after.accepted > before[split].accepted + gain
        assert all(new > old + 0.05 for new, old in zip(after.overlap, before[split].overlap, strict=True))
        assert after.greedy[0] > before[split].greedy[0]
        assert after.tokens == before[split].tokens > 100 and after.covered == before[split].covered


def test_events(whole: Ended) -> None:
    """Every ten steps, and with what was measured every six and at the end; the loss is the mean since the measurement
    before."""
    events = whole.heard.events
    assert [event.step for event in events] == [6, 10, 12, 18, 20, 24, 28]
    assert [event.step for event in events if event.measured is not None] == [6, 12, 18, 24, 28]
    assert [event.rate for event in events] == [SETTINGS.rate(event.step - 1) for event in events]
    for values in ([event.seconds for event in events], [event.tokens for event in events]):
        assert values == sorted(values) and values[0] > 0
    assert all(math.isfinite(event.loss) for event in events)


def test_tokens_are_those_that_were_predicted(whole: Ended, world: World) -> None:
    """28 steps are several times all texts."""
    answers = sum(len(one.text) - one.text.prompt_tokens for one in world.corpus.texts["train"])
    epoch = len(Batches(world.corpus.texts["train"], SETTINGS.batch_tokens, SETTINGS.seed).epoch(0))
    assert epoch < SETTINGS.steps / 3
    assert whole.heard.events[-1].tokens == pytest.approx(answers * SETTINGS.steps / epoch, rel=0.1)


def test_an_event_is_one_line_of_json(whole: Ended) -> None:
    line = whole.heard.events[0].as_json()
    assert line["step"] == 6 and isinstance(line["measured"], dict)
    assert set(line) == {item.name for item in fields(Event)} and set(line["measured"]) == {
        item.name for item in fields(Measured)
    }
    assert whole.heard.events[1].as_json()["measured"] is None


def test_steps_are_adamw_with_clipped_slopes(world: World, tmp_path: Path) -> None:
    """Three steps written out (arXiv 1711.05101, algorithm 2): warm-up, decay of matrices alone, slopes cut to length."""
    settings = replace(SETTINGS, steps=3, warmup=2, clip=0.1, weight_decay=0.3)
    trainer, by_hand = world.trainer(tmp_path, settings), world.trainer(tmp_path, settings)
    losses, head = list[float](), by_hand.head
    moments = {name: (torch.zeros_like(weight), torch.zeros_like(weight)) for name, weight in head.named_parameters()}
    groups = Batches(world.corpus.texts["train"], settings.batch_tokens, settings.seed).epoch(0)
    for step, texts in enumerate(groups[:3]):
        batch = collated(texts, torch.device("cpu"), torch.float32)
        rotation = Rotation(head.config.decoder(64), by_hand.frozen.embedding, 64)
        value = head_loss(head, by_hand.frozen, batch, settings, rotation)
        losses.append(float(value.detach()))
        slopes = dict(zip(moments, torch.autograd.grad(value, list(head.parameters())), strict=True))
        length = float(torch.cat([slope.flatten() for slope in slopes.values()]).norm())
        assert length > settings.clip
        with torch.no_grad():
            for name, weight in head.named_parameters():
                slope, (first, second) = slopes[name] * settings.clip / length, moments[name]
                first.mul_(0.9).add_(slope, alpha=0.1)
                second.mul_(0.95).add_(slope**2, alpha=0.05)
                mean, size = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.95 ** (step + 1))
                decay = settings.weight_decay * weight if weight.dim() > 1 else 0.0
                weight -= settings.rate(step) * (mean / (size.sqrt() + 1e-8) + decay)
    heard = Heard()
    trainer.run(heard.told, heard.keep_best)
    assert heard.events[-1].loss == pytest.approx(sum(losses) / 3, rel=1e-5)
    for name, weight in trainer.head.named_parameters():
        torch.testing.assert_close(weight, dict(head.named_parameters())[name], rtol=1e-4, atol=2e-5)


def test_bfloat16(world: World, tmp_path: Path) -> None:
    """Products are rounded, weights and moments are not; runs are repeated and taken up again to the bit."""
    target = copy.deepcopy(world.target).bfloat16()

    def trainer(directory: Path) -> HeadTrainer:
        directory.mkdir(exist_ok=True)
        head = world.trainer(directory).head
        return HeadTrainer(head, Frozen.of(target, range(VOCAB)), world.corpus, SETTINGS, directory, torch.bfloat16)

    wide = world.trainer(tmp_path)
    one, two, exact = trainer(tmp_path / "1"), trainer(tmp_path / "2"), wide.measured("validation")
    assert one.measured("validation").overlap == pytest.approx(exact.overlap, abs=0.02)
    heard, again = Heard(), Heard()
    one.run(heard.told, heard.keep_best)
    two.run(again.told, again.keep_best, lambda: two.loop.step >= 11)
    two = trainer(tmp_path / "2")
    assert two.resume()
    two.run(again.told, again.keep_best)
    Ended.of(one, heard).assert_same(Ended.of(two, again))
    assert {weight.dtype for weight in one.head.state_dict().values()} == {torch.float32}
    assert heard.events[-1].loss < 0.9 * heard.events[0].loss


# --- the same bits -----------------------------------------------------------------------------------------


def test_two_runs_of_one_seed_agree(whole: Ended, world: World, tmp_path: Path) -> None:
    whole.assert_same(whole_run(world, tmp_path))


def test_another_seed_differs(whole: Ended, world: World, tmp_path: Path) -> None:
    other = whole_run(world, tmp_path, replace(SETTINGS, seed=6))
    assert not any(same(whole.weights[name], other.weights[name]) for name in whole.weights if "norm" not in name)


def test_the_seed_of_batches_alone_makes_a_difference(whole: Ended, world: World, tmp_path: Path) -> None:
    trainer, heard = world.trainer(tmp_path, replace(SETTINGS, seed=6)), Heard()
    begin(trainer.head, world.target, torch.Generator().manual_seed(SETTINGS.seed))
    trainer.run(heard.told, heard.keep_best)
    assert not same(whole.weights["fuse.weight"], trainer.head.state_dict()["fuse.weight"])


class Interrupted(Exception):
    pass


Break = Callable[[HeadTrainer, Heard, pytest.MonkeyPatch], None]
"""Makes a run end by ``Interrupted`` (or at its own wish) at a certain moment."""


def counted(limit: int, call: Callable[..., Any], *, first: bool) -> Callable[..., Any]:
    """``call`` that raises at its ``limit``-th time: before it does anything (``first``), or when it is done."""
    left = [limit]

    def calls(*values: Any, **named: Any) -> Any:
        left[0] -= 1
        if first and left[0] == 0:
            raise Interrupted
        result = call(*values, **named)
        if not first and left[0] == 0:
            raise Interrupted
        return result

    return calls


def in_told(limit: int) -> Break:
    """Behind the line of the log."""

    def broken(trainer: HeadTrainer, heard: Heard, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(heard, "told", counted(limit, heard.told, first=False))

    return broken


def before_step(limit: int) -> Break:
    def broken(trainer: HeadTrainer, heard: Heard, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(trainer.loop, "_train", counted(limit, trainer.loop._train, first=True))

    return broken


def in_step(limit: int, name: str, *, first: bool) -> Break:
    """In the optimizer, before or behind the change of the weights."""

    def broken(trainer: HeadTrainer, heard: Heard, patch: pytest.MonkeyPatch) -> None:
        optimizer = trainer.loop._optimizer
        patch.setattr(optimizer, name, counted(limit, getattr(optimizer, name), first=first))

    return broken


def in_keep_best(limit: int, *, first: bool) -> Break:
    def broken(trainer: HeadTrainer, heard: Heard, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(heard, "keep_best", counted(limit, heard.keep_best, first=first))

    return broken


def in_measuring(limit: int, *, first: bool = True) -> Break:
    def broken(trainer: HeadTrainer, heard: Heard, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(head_room, "measure", counted(limit, head_room.measure, first=first))

    return broken


def in_saving(limit: int) -> Break:
    """Before the checkpoint is written; it is written after all when the run ends."""

    def broken(trainer: HeadTrainer, heard: Heard, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(trainer.loop, "save", counted(limit, trainer.loop.save, first=True))

    return broken


BREAKS: dict[str, Break] = {
    **{f"told {limit}": in_told(limit) for limit in (1, 2, 7)},
    **{f"before step {limit}": before_step(limit) for limit in (1, 7, 8, 28)},
    "before the optimizer's step 9": in_step(9, "step", first=True),
    "behind the optimizer's step 1": in_step(1, "step", first=False),
    "behind the optimizer's step 9": in_step(9, "step", first=False),
    "behind the last step": in_step(28, "zero_grad", first=False),
    "before measuring 2": in_measuring(2),
    "behind measuring 2": in_measuring(2, first=False),
    "before the last measuring": in_measuring(5),
    "while the second measurement is saved": in_saving(2),
    "before keeping 1": in_keep_best(1, first=True),
    "behind keeping 1": in_keep_best(1, first=False),
}


def interrupted_run(world: World, directory: Path, breaks: list[Break], settings: TrainSettings = SETTINGS) -> Ended:
    """A run that breaks, and others that go on from what it left, each with a new trainer. What was told before a
    checkpoint is the log; what came behind it is told again, so it is dropped as ``head_run`` does it."""
    heard = Heard()
    for broken in [*breaks, None]:
        trainer = world.trainer(directory, settings)
        trainer.resume()
        heard.events = [event for event in heard.events if event.step <= trainer.loop.step]
        with pytest.MonkeyPatch.context() as patch:
            if broken is not None:
                broken(trainer, heard, patch)
            with suppress(Interrupted):
                trainer.run(lambda event: heard.told(event), lambda head, found: heard.keep_best(head, found))
    return Ended.of(trainer, heard)


@pytest.mark.parametrize("where", BREAKS)
def test_interrupted_and_taken_up_again(where: str, whole: Ended, world: World, tmp_path: Path) -> None:
    """Weights, moments, log and the best head are those of the run that nothing interrupted."""
    whole.assert_same(interrupted_run(world, tmp_path, [BREAKS[where]]))


def test_interrupted_again_and_again(whole: Ended, world: World, tmp_path: Path) -> None:
    breaks = [before_step(3), before_step(1), in_told(2), in_step(2, "step", first=False), before_step(9), in_told(1)]
    whole.assert_same(interrupted_run(world, tmp_path, breaks))


def test_interrupted_where_losses_begin_to_be_averaged_anew(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a line of the log that closes a span of losses, between two measurements."""
    monkeypatch.setattr(loop_room, "_REPORTED", 20)
    settings = replace(SETTINGS, steps=32, every=32)
    whole = whole_run(world, tmp_path / "whole", settings)
    assert [event.step for event in whole.heard.events] == [10, 20, 30, 32]
    whole.assert_same(interrupted_run(world, tmp_path / "parts", [in_told(2)], settings))


@pytest.mark.parametrize("steps", [1, 5, 6, 13])
def test_stopped_between_steps(steps: int, whole: Ended, world: World, tmp_path: Path) -> None:
    heard = Heard()
    for limit in (steps, 99):
        trainer = world.trainer(tmp_path)
        trainer.resume()
        end = trainer.loop.step + limit
        trainer.run(heard.told, heard.keep_best, lambda: trainer.loop.step >= end)  # noqa: B023  called in this run alone
        assert trainer.finished == (limit == 99)
    whole.assert_same(Ended.of(trainer, heard))


def test_a_finished_run_does_nothing_more(whole: Ended, world: World, tmp_path: Path) -> None:
    whole_run(world, tmp_path)
    trainer, heard = world.trainer(tmp_path), Heard()
    assert trainer.resume() and trainer.finished and trainer.loop.step == 28
    trainer.run(heard.told, heard.keep_best)
    assert not heard.events and not heard.kept
    assert same(trainer.head.state_dict(), whole.weights)


def test_time_and_tokens_are_of_all_runs(world: World, tmp_path: Path) -> None:
    first = world.trainer(tmp_path)
    first.run(lambda event: None, lambda head, found: None, lambda: first.loop.step >= 8)
    then = world.trainer(tmp_path)
    assert (
        then.resume()
        and (then.loop.seconds, then.loop.tokens) == (first.loop.seconds, first.loop.tokens)
        and then.loop.step == 8
    )
    then.run(lambda event: None, lambda head, found: None)
    assert then.loop.seconds > first.loop.seconds and then.loop.tokens > first.loop.tokens


# --- the best head, and early stopping ---------------------------------------------------------------------


def test_the_best_head_is_the_one_that_was_kept(whole: Ended, world: World, tmp_path: Path) -> None:
    """Each was better than those before; the last one measures what it did then."""
    accepted = [found.accepted for _, found in whole.heard.kept]
    assert accepted == sorted(set(accepted)) and len(accepted) > 1
    assert whole.heard.kept[-1][1] == whole.stored.best == max(whole.heard.measured, key=lambda one: one.accepted)
    trainer = world.trainer(tmp_path)
    for weights, found in whole.heard.kept:
        trainer.head.load_state_dict(weights)
        assert trainer.measured("validation") == found


def scripted(values: list[float]) -> Callable[[str], Measured]:
    """Measurements that come out as planned."""
    waiting = iter(values)
    return lambda split: Measured((0.5,), (0.5,), next(waiting), 10, 1.0)


@pytest.mark.parametrize(
    ("values", "patience", "kept", "steps"),
    [
        ([1, 2, 3, 2, 3, 3, 9, 9], 3, [2, 4, 6], 12),
        ([1, 1, 1, 1], 1, [2], 4),
        ([3, 1, 2, 4, 1, 1, 9], 2, [2], 6),
        ([1, 2, 3, 4, 5, 6], 1, [2, 4, 6, 8, 10, 12], 12),
    ],
)
def test_early_stopping(
    values: list[float], patience: int, kept: list[int], steps: int, world: World, tmp_path: Path
) -> None:
    """After so many measurements without a better one; as good is not better."""
    trainer = world.trainer(tmp_path, replace(SETTINGS, steps=12, every=2, patience=patience))
    trainer.loop.measured = scripted(values)  # type: ignore[method-assign,assignment]
    heard, steps_kept = Heard(), list[int]()
    trainer.run(heard.told, lambda head, found: steps_kept.append(trainer.loop.step))
    assert trainer.loop.step == steps and steps_kept == kept and trainer.finished
    again = world.trainer(tmp_path, replace(SETTINGS, steps=12, every=2, patience=patience))
    assert again.resume() and again.finished
    again.run(heard.told, heard.keep_best)
    assert again.loop.step == steps and not heard.kept


def test_patience_is_kept_over_an_interruption(world: World, tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=20, every=2, patience=3)
    values = [3.0, 1.0, 2.0, 1.0, 9.0]
    for limit in (5, 99):
        trainer = world.trainer(tmp_path, settings)
        trainer.resume()
        trainer.loop.measured = scripted(values[trainer.loop.step // 2 :])  # type: ignore[method-assign,assignment]
        trainer.run(lambda event: None, lambda head, found: None, lambda: trainer.loop.step >= limit)  # noqa: B023
    assert trainer.loop.step == 8 and trainer.loop.best is not None and trainer.loop.best.accepted == 3.0


def test_real_early_stopping(world: World, tmp_path: Path) -> None:
    """A learning rate that changes nothing."""
    settings = replace(SETTINGS, learning_rate=1e-30, weight_decay=0.0, steps=40, every=3, patience=2)
    ended = whole_run(world, tmp_path, settings)
    assert ended.stored.step == 9 and ended.stored.waited == 2 and len(ended.heard.kept) == 1


def test_a_head_that_was_trained_before(world: World, tmp_path: Path) -> None:
    """It is measured as it came: if training only harms it, it is the best one."""
    good = world.trainer(tmp_path / "good", replace(SETTINGS, steps=20, every=20))
    good.run(lambda event: None, lambda head, found: None)
    came = copy.deepcopy(good.head.state_dict())
    settings = replace(SETTINGS, learning_rate=0.9, warmup=0, every=3, patience=2)
    heard = Heard()
    for broken in (in_told(1), None):
        trainer = world.trainer(tmp_path / "bad", settings)
        trainer.head.load_state_dict(came)
        trainer.trained_before = True
        trainer.resume()
        with pytest.MonkeyPatch.context() as patch, suppress(Interrupted):
            if broken is not None:
                broken(trainer, heard, patch)
            trainer.run(lambda event: heard.told(event), heard.keep_best)
    assert [event.step for event in heard.events if event.measured is not None] == [0, 3, 6]
    assert len(heard.kept) == 1 and same(heard.kept[0][0], came) and heard.kept[0][1] == good.measured("validation")


def test_some_texts_of_a_split(world: World, tmp_path: Path) -> None:
    trainer = world.trainer(tmp_path)
    some, every = trainer.measured("train", 4), trainer.measured("train")
    assert some.tokens == sum(28 - SETTINGS.depth + 1 for _ in range(4)) < every.tokens
    assert trainer.measured("train", 999) == every


# --- checkpoints -------------------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "loss": "kl",
    "depth": 2,
    "decay": 0.7,
    "steps": 29,
    "batch_tokens": 128,
    "learning_rate": 3e-3,
    "warmup": 5,
    "weight_decay": 0.02,
    "clip": 0.5,
    "every": 5,
    "patience": 98,
    "seed": 6,
}


@pytest.fixture
def begun(world: World, tmp_path: Path) -> Path:
    """A directory with the checkpoint of a run of 4 steps."""
    trainer = world.trainer(tmp_path)
    trainer.run(lambda event: None, lambda head, found: None, lambda: trainer.loop.step >= 4)
    return tmp_path


@pytest.mark.parametrize("name", [item.name for item in fields(TrainSettings)])
def test_a_run_of_other_settings_is_refused_by_name(name: str, begun: Path, world: World) -> None:
    trainer = world.trainer(begun, replace(SETTINGS, **{name: OTHER[name]}))
    want = f"{begun / CHECKPOINT}: is of a run with other settings ({name.replace('_', ' ')}); give another -o, or"
    assert refusal(trainer.resume).startswith(want)


def test_a_run_of_another_head_is_refused(begun: Path, world: World) -> None:
    """The same settings, and another size of the feed-forward layer."""
    trainer = world.trainer(begun)
    head = DraftHead(HeadConfig.of(world.target.config, TAPS, VOCAB, ffn_size=20))
    other = HeadTrainer(head, trainer.frozen, world.corpus, SETTINGS, begun)
    assert refusal(other.resume).startswith(f"{begun / CHECKPOINT}: ")


def test_a_run_of_other_texts_is_refused(begun: Path, world: World) -> None:
    """Its steps would be of other batches: no longer the same weights."""
    texts = {split: each[:-1] if split == "train" else each for split, each in world.corpus.texts.items()}
    trainer = world.trainer(begun)
    other = HeadTrainer(trainer.head, trainer.frozen, Corpus(texts), SETTINGS, begun)
    assert refusal(other.resume).startswith(f"{begun / CHECKPOINT}: ")


def test_a_run_of_another_draft_vocabulary_is_refused(begun: Path, world: World) -> None:
    trainer = world.trainer(begun)
    frozen = Frozen.of(world.target, range(1, VOCAB))
    other = HeadTrainer(trainer.head, frozen, world.corpus, SETTINGS, begun)
    assert refusal(other.resume).startswith(f"{begun / CHECKPOINT}: ")


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """A checkpoint whose fields are changed."""

    def apply(path: Path) -> None:
        values = torch.load(path, weights_only=True)
        change(values)
        torch.save(values, path)

    return apply


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "a text": lambda path: path.write_text("checkpoint\n"),
    "zeros": lambda path: path.write_bytes(b"\0" * 1000),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "its beginning": lambda path: path.write_bytes(path.read_bytes()[:10]),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "a list": lambda path: torch.save([1, 2], path),
    "a number": lambda path: torch.save(3, path),
    "a tensor": lambda path: torch.save(torch.zeros(3), path),
    "an object": lambda path: torch.save(Path("x"), path),
    "no step": changed(lambda values: values.pop("step")),
    "one more": changed(lambda values: values.update(more=1)),
    "no settings": changed(lambda values: values.update(settings=None)),
    "no best": changed(lambda values: values.update(best={"accepted": 1.0})),
    "best is a number": changed(lambda values: values.update(best=1.5)),
    "a weight is missing": changed(lambda values: values["weights"].pop("fuse.weight")),
    "a weight that fits by repetition": changed(
        lambda values: values["weights"].update({"fuse.weight": torch.zeros(1)})
    ),
    "a weight of another shape": changed(lambda values: values["weights"].update({"fuse.weight": torch.zeros(2)})),
    "weights are a list": changed(lambda values: values.update(weights=[1])),
    "no moments": changed(lambda values: values.update(optimizer={})),
    "moments of others": changed(lambda values: values["optimizer"]["param_groups"].pop()),
    "losses are a number": changed(lambda values: values.update(losses=3)),
    "step is a text": changed(lambda values: values.update(step="4")),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_is_refused_by_name(what: str, begun: Path, world: World) -> None:
    DAMAGE[what](begun / CHECKPOINT)
    trainer = world.trainer(begun)
    assert refusal(trainer.resume).startswith(f"{begun / CHECKPOINT}: is damaged (")


def test_no_checkpoint(world: World, tmp_path: Path) -> None:
    trainer = world.trainer(tmp_path)
    assert not trainer.resume() and trainer.loop.step == 0 and not trainer.finished


def test_a_failed_write_leaves_the_old_checkpoint(begun: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (begun / CHECKPOINT).read_bytes()

    def full(values: object, path: Path) -> NoReturn:
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    trainer = world.trainer(begun)
    assert trainer.resume()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_room.torch, "save", full)
        with pytest.raises(OSError, match="No space left"):
            trainer.run(lambda event: None, lambda head, found: None)
    assert (begun / CHECKPOINT).read_bytes() == before
    assert [path.name for path in begun.iterdir()] == [CHECKPOINT]
    again = world.trainer(begun)
    assert again.resume() and again.loop.step == 4


def test_round_trip_of_a_checkpoint(tmp_path: Path) -> None:
    best = Measured((0.5, 0.25), (0.4, 0.1), 1.25, 17, 0.75)
    weights = {"x": torch.randn(3, generator=torch.Generator().manual_seed(0)), "y": torch.zeros(2).half()}
    for found in (best, None):
        one = Checkpoint({"loss": "lk", "seed": 3}, weights, {"state": {0: {"step": 1}}}, 7, 1.5, 9, 2, found, (0.1,))
        save_checkpoint(tmp_path, one)
        other = load_checkpoint(tmp_path, {"seed": 3})
        assert other is not None
        assert all(same(getattr(one, name), getattr(other, name)) for name in Checkpoint.__dataclass_fields__)


# --- settings ----------------------------------------------------------------------------------------------


def test_the_learning_rate_rises_and_falls() -> None:
    settings = TrainSettings(steps=100, warmup=10, learning_rate=0.02)
    rates = [settings.rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.002 * (step + 1) for step in range(10)])
    assert rates[10] == pytest.approx(0.02) and rates[55] == pytest.approx(0.011) and settings.rate(100) == 0.002
    assert rates[10:] == sorted(rates[10:], reverse=True) and rates[99] == pytest.approx(0.002, rel=0.01)
    assert TrainSettings(steps=5, warmup=0).rate(0) == 1e-3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", "mse"),
        ("depth", 0),
        ("depth", 17),
        ("decay", -0.5),
        ("decay", math.nan),
        ("steps", 0),
        ("batch_tokens", 10),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("warmup", -1),
        ("weight_decay", -1.0),
        ("weight_decay", math.nan),
        ("clip", 0.0),
        ("clip", math.nan),
        ("every", 0),
        ("patience", 0),
        ("seed", -1),
    ],
)
def test_settings_that_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue, match=f"{name.replace('_', ' ')} is {value!r}; allowed: "):
        TrainSettings(**{name: value})


# --- the module --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "taps"), [(1, (0,)), (2, (1,)), (3, (1, 2)), (4, (2, 3)), (30, (2, 15, 29)), (28, (2, 14, 27))]
)
def test_default_taps(layers: int, taps: tuple[int, ...]) -> None:
    """Ascending, different, the last layer among them."""
    assert default_taps(layers) == taps


@pytest.mark.parametrize("family", VARIANTS)
@pytest.mark.parametrize("ffn_size", [0, 20])
def test_the_first_weights(family: str, ffn_size: int) -> None:
    """A head begins with weights of the target's last layer, for every family; which ones depends on the seed alone,
    and the target keeps its own."""
    target = tiny_decoder(family)
    before = copy.deepcopy(target.state_dict())
    config = HeadConfig.of(target.config, (0, target.config.layers - 1), VOCAB, ffn_size)
    heads = [DraftHead(config) for _ in range(3)]
    for head, seed in zip(heads, (1, 1, 2), strict=True):
        begin(head, target, torch.Generator().manual_seed(seed))
    one, again, other = (head.state_dict() for head in heads)
    assert same(one, again) and not same(one, other)
    assert same(before, target.state_dict())
    last = target.blocks[-1]
    assert torch.equal(one["qkv.weight"][:, 32:], last.attention.qkv.weight)
    assert torch.equal(one["out.weight"], last.attention.out.weight)
    assert torch.equal(one["gate_up.weight"], last.ffn.gate_up.weight) == (ffn_size == 0)
    assert (one["fuse.weight"][:, 32:] - torch.eye(32)).abs().max() < 0.15 and one["fuse.weight"][:, :32].std() < 0.03
    assert heads[0].parameter_count() == sum(weight.numel() for weight in one.values())
    assert config.state_size == 64 and config.decoder(77).context_length == 77


def test_weights_shared_with_the_target_are_not_trained(world: World, tmp_path: Path) -> None:
    before = copy.deepcopy(world.target.state_dict())
    trainer = world.trainer(tmp_path, replace(SETTINGS, steps=3))
    frozen = copy.deepcopy((trainer.frozen.embedding, trainer.frozen.weight, trainer.frozen.norm.state_dict()))
    weights = copy.deepcopy(trainer.head.state_dict())
    trainer.run(lambda event: None, lambda head, found: None)
    assert same(before, world.target.state_dict())
    assert same(frozen, (trainer.frozen.embedding, trainer.frozen.weight, trainer.frozen.norm.state_dict()))
    assert not any(same(weights[name], weight) for name, weight in trainer.head.state_dict().items())
