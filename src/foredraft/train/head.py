"""Trains a draft head on texts and states; can be interrupted after any step and goes on to the same weights.

What a step does depends on the settings and the step's number alone: which texts, which learning rate. A checkpoint
holds weights, moments and the step. Knows no terminal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn

from foredraft.errors import InvalidValue
from foredraft.models.head import DraftHead
from foredraft.train.batch import Rotation
from foredraft.train.batches import Batches, Corpus, collated
from foredraft.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from foredraft.train.frozen import Frozen
from foredraft.train.losses import LOSSES, Guesses, Loss, rollout_loss
from foredraft.train.measures import Measured, measure
from foredraft.train.rollout import Batch, answers, rollout
from foredraft.train.states import TextStates
from foredraft.train.texts import Split


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """``depth``: steps of a rollout, each later one counting ``decay`` times the one before; ``steps`` of the optimizer
    in all (AdamW, arXiv 1711.05101), each of ``batch_tokens`` tokens; ``learning_rate`` rises for ``warmup`` steps and
    falls along a cosine to a tenth; the head is measured every ``every`` steps and training ends early after
    ``patience`` measurements without a better one."""

    loss: Loss = "lk"
    depth: int = 5
    decay: float = 0.8
    steps: int = 3000
    batch_tokens: int = 4096
    learning_rate: float = 1e-3
    warmup: int = 100
    weight_decay: float = 0.01
    clip: float = 1.0
    every: int = 200
    patience: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise InvalidValue("loss", self.loss, ", ".join(LOSSES))
        for name, least, most in (
            ("depth", 1, 16), ("steps", 1, 1 << 24), ("batch_tokens", 64, 1 << 20), ("warmup", 0, 1 << 20),
            ("every", 1, 1 << 20), ("patience", 1, 1 << 20), ("seed", 0, 1 << 32),
        ):  # fmt: skip
            if not least <= getattr(self, name) <= most:
                raise InvalidValue(name.replace("_", " "), getattr(self, name), f"{least} to {most}")
        if not 0 < self.learning_rate < 1:
            raise InvalidValue("learning rate", self.learning_rate, "a number between 0 and 1")

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


@dataclass(frozen=True)
class Event:
    """After ``step`` steps: mean ``loss`` since the last event, ``tokens`` predicted and ``seconds`` spent in all,
    and what was ``measured``, if it was."""

    step: int
    loss: float
    rate: float
    tokens: int
    seconds: float
    measured: Measured | None = None

    def as_json(self) -> dict[str, object]:
        """One line of the log."""
        line = asdict(self) | {"measured": self.measured.as_json() if self.measured else None}
        return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in line.items()}


def head_loss(head: DraftHead, frozen: Frozen, batch: Batch, settings: TrainSettings, rotation: Rotation) -> Tensor:
    """The loss of one batch, averaged over the answers' places and over the steps of the rollout (each weighted)."""
    rows, positions = answers(batch)
    normed, weights = [], []
    for step, output in enumerate(rollout(head, frozen.embedding, batch, settings.depth, rotation)):
        at = positions - 1 - step
        known = (at >= 0).float()
        normed.append(head.norm(output[rows, at.clamp_min(0)]))
        weights.append(known * (settings.decay**step / known.sum().clamp_min(1)))
    share = sum(settings.decay**step for step in range(settings.depth))

    def law(piece: slice) -> Tensor:
        return frozen.law(batch, rows[piece], positions[piece])

    return rollout_loss(settings.loss, Guesses(torch.stack(normed), torch.stack(weights) / share, law, frozen))


KeepBest = Callable[[DraftHead, Measured], None]
"""Given the head whenever it is better than before, and how good it is."""


@dataclass
class HeadTrainer:
    """One run, its checkpoint in ``directory``. ``precision``: of products while training; weights are float32."""

    head: DraftHead
    frozen: Frozen
    corpus: Corpus
    settings: TrainSettings
    directory: Path
    precision: torch.dtype = torch.float32
    seconds: float = 0.0
    tokens: int = 0
    best: Measured | None = None
    waited: int = 0
    step: int = 0
    _losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        longest = max(len(text.text) for texts in self.corpus.texts.values() for text in texts)
        length = longest + self.settings.depth
        self._rotation = Rotation(self.head.config.decoder(length), self.frozen.embedding, length)
        self._batches = Batches(self.corpus.texts["train"], self.settings.batch_tokens, self.settings.seed)
        decayed = [weight for weight in self.head.parameters() if weight.dim() > 1]
        plain = [weight for weight in self.head.parameters() if weight.dim() <= 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": self.settings.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=self.settings.learning_rate,
            betas=(0.9, 0.95),
        )

    def resume(self) -> bool:
        """Go on from the checkpoint in ``directory``, if there is one; TrainingDataError if it is of another run."""
        found = load_checkpoint(self.directory, asdict(self.settings))
        if found is None:
            return False
        self.head.load_state_dict(found.weights)
        self._optimizer.load_state_dict(found.optimizer)
        self.step, self.seconds, self.tokens, self.waited = found.step, found.seconds, found.tokens, found.waited
        self.best, self._losses = found.best, list(found.losses)
        return True

    @property
    def finished(self) -> bool:
        """Whether the steps are done, or nothing got better for too long."""
        return self.step >= self.settings.steps or self.waited >= self.settings.patience

    def run(self, told: Callable[[Event], None], keep_best: KeepBest, stop: Callable[[], bool] = lambda: False) -> None:
        """Train until it is finished, or ``stop`` says so between two steps. ``keep_best`` is given the head whenever
        it measures better than before. A checkpoint is left at the end, and at every measurement; an error in the
        middle of a step leaves the one before."""
        whole = True
        try:
            for texts in self._upcoming():
                if self.finished or stop():
                    break
                started, whole = perf_counter(), False
                self._train(texts)
                self.step += 1
                self.seconds += perf_counter() - started
                whole = True
                if self.step % self.settings.every == 0 or self.step == self.settings.steps:
                    self._measure(told, keep_best)
                elif self.step % 10 == 0:
                    told(self._event(None))
        finally:
            if whole:
                self.save()

    def _upcoming(self) -> Iterator[list[TextStates]]:
        """The batches from the current step on, epoch after epoch."""
        number, first = 0, 0
        while True:
            groups = self._batches.epoch(number)
            yield from groups[max(0, self.step - first) :] if self.step < first + len(groups) else ()
            number, first = number + 1, first + len(groups)

    def _train(self, texts: list[TextStates]) -> None:
        batch = collated(texts, self.frozen.embedding.device, self.precision)
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate(self.step)
        device = self.frozen.embedding.device.type
        with torch.autocast(device, self.precision, enabled=self.precision != torch.float32):
            value = head_loss(self.head, self.frozen, batch, self.settings, self._rotation)
        value.backward()
        nn.utils.clip_grad_norm_(self.head.parameters(), self.settings.clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._losses.append(float(value.detach()))
        self.tokens += int((batch.end - batch.first).sum())

    def _measure(self, told: Callable[[Event], None], keep_best: KeepBest) -> None:
        found = self.measured("validation")
        if self.best is None or found.accepted > self.best.accepted:
            self.best, self.waited = found, 0
            keep_best(self.head, found)
        else:
            self.waited += 1
        told(self._event(found))
        self.save()

    def measured(self, split: Split, most: int | None = None) -> Measured:
        """The head as it is now on the texts of one split, or on ``most`` of them."""
        groups = Batches(self.corpus.texts[split][:most], self.settings.batch_tokens, 0).epoch(0)
        device = self.frozen.embedding.device.type
        with torch.autocast(device, self.precision, enabled=self.precision != torch.float32):
            return measure(self.head, self.frozen, groups, self.settings.depth, self._rotation)

    def _event(self, found: Measured | None) -> Event:
        mean = sum(self._losses) / max(1, len(self._losses))
        if found is not None or len(self._losses) >= 50:
            self._losses = []
        return Event(self.step, mean, self.settings.rate(max(0, self.step - 1)), self.tokens, self.seconds, found)

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(
            self.directory,
            Checkpoint(
                settings=asdict(self.settings),
                weights=self.head.state_dict(),
                optimizer=self._optimizer.state_dict(),
                step=self.step,
                seconds=self.seconds,
                tokens=self.tokens,
                waited=self.waited,
                best=self.best,
                losses=tuple(self._losses),
            ),
        )
