"""Training a head: it learns, the best one is kept, and it refuses settings that cannot be."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.errors import InvalidValue
from foredraft.models.head import DraftHead, HeadConfig, begin, default_taps
from foredraft.train.batch import Rotation
from foredraft.train.batches import Batches, collated
from foredraft.train.frozen import Frozen
from foredraft.train.head import HeadTrainer, TrainSettings, head_loss
from foredraft.train.loop import Event
from foredraft.train.measures import Measured
from foredraft.train.texts import SPLITS
from tests.support.head_runs import SETTINGS, Ended, Heard, World, same, whole_run
from tests.support.tiny_torch import VARIANTS
from tests.support.training import VOCAB, tiny_decoder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.of(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(world: World, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run that nothing interrupts."""
    return whole_run(world, tmp_path_factory.mktemp("whole"))


def loss_at(heard: Heard, place: int) -> float:
    found = heard.events[place].loss
    assert found is not None
    return found


# --- learning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["lk", "kl"])
def test_it_learns(loss: Any, world: World, tmp_path: Path) -> None:
    """The loss falls, and held-out texts are guessed better at every depth than by a head that was not trained."""
    settings = replace(SETTINGS, loss=loss, learning_rate=1e-2, batch_tokens=256, steps=60, every=20)
    trainer, heard = world.trainer(tmp_path, settings), Heard()
    before = {split: trainer.measured(split) for split in SPLITS}
    trainer.run(heard.told, heard.keep_best)
    assert loss_at(heard, -1) < 0.75 * loss_at(heard, 0)
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
    assert all(event.loss is not None and math.isfinite(event.loss) for event in events)


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
    """Three steps written out (arXiv 1711.05101, algorithm 2): warm-up, decay of matrices, slopes cut to length."""
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
                weight.sub_(settings.rate(step) * (mean / (size.sqrt() + 1e-8) + decay))
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
    assert loss_at(heard, -1) < 0.9 * loss_at(heard, 0)


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
    "case",
    [
        ([1, 2, 3, 2, 3, 3, 9, 9], 3, [2, 4, 6], 12),
        ([1, 1, 1, 1], 1, [2], 4),
        ([3, 1, 2, 4, 1, 1, 9], 2, [2], 6),
        ([1, 2, 3, 4, 5, 6], 1, [2, 4, 6, 8, 10, 12], 12),
    ],
)
def test_early_stopping(case: tuple[list[float], int, list[int], int], world: World, tmp_path: Path) -> None:
    """After so many measurements without a better one; as good is not better."""
    values, patience, kept, steps = case
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
    """It is measured as it came, once, also if the run is interrupted: if training only harms it, it is the best."""
    good = world.trainer(tmp_path / "good", replace(SETTINGS, steps=20, every=20))
    good.run(lambda event: None, lambda head, found: None)
    came = copy.deepcopy(good.head.state_dict())
    settings = replace(SETTINGS, learning_rate=0.9, warmup=0, every=3, patience=2)
    heard = Heard()
    for limit in (1, 99):
        trainer = world.trainer(tmp_path / "bad", settings)
        trainer.head.load_state_dict(came)
        trainer.trained_before = True
        assert trainer.resume() == (limit == 99)
        trainer.run(heard.told, heard.keep_best, lambda: trainer.loop.step >= limit)  # noqa: B023  called in this run
    assert [event.step for event in heard.events if event.measured is not None] == [0, 3, 6]
    assert len(heard.kept) == 1 and same(heard.kept[0][0], came) and heard.kept[0][1] == good.measured("validation")


def test_some_texts_of_a_split(world: World, tmp_path: Path) -> None:
    trainer = world.trainer(tmp_path)
    some, every = trainer.measured("train", 4), trainer.measured("train")
    assert some.tokens == sum(28 - SETTINGS.depth + 1 for _ in range(4)) < every.tokens
    assert trainer.measured("train", 999) == every


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
