"""A run that is interrupted anywhere goes on to the same bits, and not from what is not its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from foredraft.models.head import DraftHead, HeadConfig, begin
from foredraft.train import head as head_room
from foredraft.train import loop as loop_room
from foredraft.train import measures
from foredraft.train.batches import Corpus
from foredraft.train.checkpoint import CHECKPOINT, Checkpoint, load_checkpoint, save_checkpoint
from foredraft.train.frozen import Frozen
from foredraft.train.head import HeadTrainer, TrainSettings
from foredraft.train.measures import Measured
from tests.support.head_runs import SETTINGS, TAPS, Ended, Heard, World, refusal, same, whole_run
from tests.support.training import VOCAB


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.of(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(world: World, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run that nothing interrupts."""
    return whole_run(world, tmp_path_factory.mktemp("whole"))


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
        patch.setattr(head_room, "measure", counted(limit, measures.measure, first=first))

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
                trainer.run(heard.told, heard.keep_best)  # looked up now, when they may be broken
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


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "a text": lambda path: path.write_text("checkpoint\n"),
    "zeros": lambda path: path.write_bytes(b"\0" * 1000),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "its beginning": lambda path: path.write_bytes(path.read_bytes()[:10]),
    "a directory": directory,
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
        patch.setattr(torch, "save", full)
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
