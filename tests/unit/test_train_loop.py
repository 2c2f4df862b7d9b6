"""The training loop: the same weights every time, also after interruptions; the best ones kept; what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.errors import InvalidValue, TrainingDataError
from foredraft.train.batches import Corpus
from foredraft.train.checkpoint import CHECKPOINT
from foredraft.train.draft import BEST, DraftSettings, DraftTrainer
from foredraft.train.loop import Event
from tests.support import tiny_training
from tests.support.tiny_training import (
    DRAFT,
    LONG,
    SHORT,
    VOCAB,
    assert_equal,
    made,
    ran,
    trainer,
    weights,
)  # fmt: skip

SOME = tuple(range(0, VOCAB, 2))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return tiny_training.corpus(tmp_path_factory.mktemp("data"))


# --- the same every time ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 2])
def test_two_runs_with_one_seed_agree(rank: int, tmp_path: Path, corpus: Corpus) -> None:
    settings = replace(SHORT, rank=rank)
    runs = [trainer(tmp_path / name, corpus, settings) for name in ("a", "b")]
    events = [[without_time(event) for event in ran(one)] for one in runs]
    assert events[0] == events[1]
    assert_equal(*(weights(one.decoder) for one in runs))
    other = trainer(tmp_path / "c", corpus, replace(settings, seed=4))
    ran(other)
    for name, value in other.loop.weights().items():
        assert not torch.equal(value, runs[0].loop.weights()[name]), name


def without_time(event: Event) -> Event:
    return replace(event, seconds=0.0)


class Stopped(BaseException):
    """As Ctrl-C, at a chosen moment."""


def stop_in_loss(one: DraftTrainer, call: int) -> None:
    counted(one._draft, "loss", call, after=False)


def stop_after_half_a_step(one: DraftTrainer, call: int) -> None:
    """Some weights are new, others old."""
    optimizer, real, calls = one.loop._optimizer, one.loop._optimizer.step, iter(range(1000))

    def step(*args: Any) -> None:
        old = {name: value.clone() for name, value in one.loop.weights().items()}
        real(*args)
        if next(calls) == call:
            name, value = next(iter(one.loop.trainee.trained().items()))
            with torch.no_grad():
                value.copy_(old[name])
            raise Stopped

    optimizer.step = step


def stop_in_measuring(one: DraftTrainer, call: int) -> None:
    counted(one._draft, "measured", 1 + call // 5, after=True)


def stop_while_keeping(one: DraftTrainer, call: int) -> None:
    counted(one, "_keep_best", 1 + call // 5, after=False)


def stop_while_saving(one: DraftTrainer, call: int) -> None:
    counted(one.loop, "save", 1 + call // 5, after=False)


def counted(owner: object, name: str, call: int, after: bool) -> None:
    """Replace a method by one whose ``call``-th call, from 0, is stopped."""
    real, calls = getattr(owner, name), iter(range(1000))

    def method(*args: Any) -> Any:
        here = next(calls) == call
        if here and not after:
            raise Stopped
        result = real(*args)
        if here:
            raise Stopped
        return result

    setattr(owner, name, method)


STOPS: tuple[Callable[[DraftTrainer, int], None], ...] = (
    stop_in_loss, stop_after_half_a_step, stop_in_measuring, stop_while_keeping, stop_while_saving,
)  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> tuple[Any, ...]:
    one = trainer(tmp_path_factory.mktemp("whole"), corpus)
    events = ran(one)
    best = torch.load(one.directory / BEST, weights_only=True)
    return weights(one.decoder), [without_time(event) for event in events if event.measured], best


@pytest.mark.parametrize("call", [1, 4, 5, 11])
@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.__name__)
def test_after_an_interruption_the_weights_are_the_same(
    stop: Callable[[DraftTrainer, int], None], call: int, tmp_path: Path, corpus: Corpus, uninterrupted: tuple[Any, ...]
) -> None:
    """Wherever it happened; a second one follows at once."""
    events: list[Event] = []
    for moment in (call, 0, None):
        one = trainer(tmp_path, corpus)
        resumed = one.resume()
        assert resumed or moment == call
        if moment is None:
            one.run(events.append)
            break
        (stop if moment else stop_in_loss)(one, moment)
        with pytest.raises(Stopped) if moment or not one.loop.finished else nullcontext():
            one.run(events.append)
        assert all(not path.name.endswith(".tmp") for path in tmp_path.iterdir())
    want, measured, best = uninterrupted
    assert_equal(weights(one.decoder), want)
    assert {without_time(event) for event in events if event.measured} <= set(measured)
    kept = torch.load(tmp_path / BEST, weights_only=True)
    assert kept["measured"] == best["measured"]
    assert_equal(kept["weights"], best["weights"])
    assert one.loop.best is not None and asdict(one.loop.best) == best["measured"]


def test_adapters_go_on_too(tmp_path: Path, corpus: Corpus) -> None:
    settings = replace(SHORT, rank=2)
    whole = trainer(tmp_path / "whole", corpus, settings)
    ran(whole)
    one = trainer(tmp_path / "parts", corpus, settings)
    stop_in_loss(one, 7)
    with pytest.raises(Stopped):
        ran(one)
    again = trainer(tmp_path / "parts", corpus, settings)
    assert again.resume() and again.loop.step == 7
    ran(again)
    assert_equal(weights(again.decoder), weights(whole.decoder))
    assert_equal(weights(again.best_decoder()), weights(whole.best_decoder()))


def test_a_finished_run_stays_finished(tmp_path: Path, corpus: Corpus) -> None:
    one = trainer(tmp_path, corpus)
    ran(one)
    again = trainer(tmp_path, corpus)
    assert again.resume() and ran(again) == []
    assert_equal(weights(again.best_decoder()), weights(one.best_decoder()))


def test_a_run_may_be_asked_to_stop(tmp_path: Path, corpus: Corpus) -> None:
    one = trainer(tmp_path, corpus)
    asked = iter([False, False, True])
    one.run(lambda event: None, lambda: next(asked))
    assert one.loop.step == 2 and not one.loop.finished
    again = trainer(tmp_path, corpus)
    assert again.resume() and again.loop.step == 2
    assert_equal(weights(again.decoder), weights(one.decoder))


# --- the best weights, and the end ------------------------------------------------------------------------------------


def test_a_draft_that_only_gets_worse_is_given_back_as_it_came(tmp_path: Path, corpus: Corpus) -> None:
    good = trainer(tmp_path / "good", corpus, LONG)
    ran(good)
    before = weights(good.best_decoder())
    harmful = replace(SHORT, learning_rate=0.9, warmup=0, every=2, patience=2, steps=100)
    one = trainer(tmp_path / "bad", corpus, harmful, good.decoder)
    events = ran(one)
    assert one.loop.step == 4 and one.loop.waited == 2  # two measurements without a better one
    assert [event.step for event in events if event.measured] == [0, 2, 4]
    assert_equal(weights(one.best_decoder()), before)


def test_a_loss_that_is_no_number_ends_the_run_with_whole_weights(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trainer(tmp_path, corpus)
    real, calls = one._draft.loss, iter(range(100))
    monkeypatch.setattr(one._draft, "loss", lambda texts: real(texts) * (float("nan") if next(calls) == 3 else 1.0))
    with pytest.raises(InvalidValue, match=r"learning rate is 0.01; allowed: a smaller one: the loss is nan at step 4"):
        ran(one)
    again = trainer(tmp_path, corpus)
    assert again.resume() and again.loop.step == 3
    assert all(bool(weight.isfinite().all()) for weight in again.decoder.parameters())


def test_nothing_measured_nothing_finished(tmp_path: Path, corpus: Corpus) -> None:
    one = trainer(tmp_path, corpus)
    with pytest.raises(TrainingDataError, match=rf"^{tmp_path}/best.pt: no such file; the draft was not measured yet"):
        one.best_decoder()
    (tmp_path / BEST).write_bytes(b"PK")
    with pytest.raises(TrainingDataError, match=r"best.pt: is damaged \(.*\); train the draft again"):
        one.best_decoder()


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_another_run_is_not_gone_on_with(
    tmp_path: Path, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ran(trainer(tmp_path, corpus))
    fewer = Corpus({**corpus.texts, "train": corpus.texts["train"][:-1]})
    others: dict[str, dict[str, Any]] = {
        "steps, seed": {"settings": replace(SHORT, steps=13, seed=8)},
        "draft model": {"decoder": made(DRAFT, 2)},
        "texts": {"corpus": fewer},
        "draft vocabulary": {"ids": SOME},
        "precision": {"precision": torch.bfloat16},
        "rank": {"settings": replace(SHORT, rank=2)},
    }
    for what, changes in others.items():
        one = trainer(tmp_path, **({"corpus": corpus} | changes))
        with pytest.raises(TrainingDataError, match=rf"checkpoint.pt: is of a run with other settings \({what}\)"):
            one.resume()
    (tmp_path / CHECKPOINT).unlink()
    assert not trainer(tmp_path, corpus).resume()


def test_texts_that_the_draft_cannot_read(tmp_path: Path, corpus: Corpus) -> None:
    decoder = made(replace(DRAFT, vocab_size=VOCAB - 5))
    with pytest.raises(TrainingDataError, match="the texts hold token 39, the draft knows 35; train another draft"):
        trainer(tmp_path, corpus, decoder=decoder, ids=SOME[:4])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rank", -1, r"rank is -1; allowed: 0 \(no adapters\) to 1024"),
        ("scale", 0.0, "scale is 0.0; allowed: a number above 0, up to 1024"),
        ("loss", "l2", "loss is 'l2'; allowed: lk, kl"),
        ("batch_tokens", 1, "batch tokens is 1; allowed: 64 to 1048576"),
        ("learning_rate", 1.0, "learning rate is 1.0; allowed: a number between 0 and 1"),
        ("weight_decay", float("nan"), "weight decay is nan; allowed: 0 or more, less than 1"),
        ("clip", 0.0, "clip is 0.0; allowed: a number above 0"),
    ],
)
def test_settings_outside_their_range(name: str, value: object, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        DraftSettings(**{name: value})  # type: ignore[arg-type]


def test_the_learning_rate_rises_and_falls() -> None:
    settings = DraftSettings(steps=100, warmup=10, learning_rate=0.5)
    rates = [settings.rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.05 * (step + 1) for step in range(10)])
    assert rates[10] == 0.5 and all(one > two for one, two in pairwise(rates[10:]))
    assert settings.rate(100) == pytest.approx(0.05) and settings.rate(55) == pytest.approx(0.275)


def test_an_event_is_a_line_of_json(tmp_path: Path, corpus: Corpus) -> None:
    one = trainer(tmp_path, corpus)
    first, *_, last = ran(one)
    assert {group["lr"] for group in one.loop._optimizer.param_groups} == {last.rate} == {SHORT.rate(11)}
    assert first.as_json()["loss"] is None and first.as_json()["tokens"] == 0
    line: Any = last.as_json()
    assert line["step"] == 12 and line["tokens"] > 0 and len(line["measured"]["overlap"]) == 3
