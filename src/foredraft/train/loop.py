"""The loop that trains a draft on texts and states; can be interrupted at any moment and goes on to the same weights.

What a step does depends on the settings and the step's number alone: which texts, which learning rate. A checkpoint
holds weights, moments and the step. Knows no terminal, and not what it trains: a head, or a whole small model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from foredraft.errors import InvalidValue
from foredraft.train.batches import Batches, Corpus
from foredraft.train.checkpoint import Checkpoint, damaged, load_checkpoint, save_checkpoint
from foredraft.train.heap import trim_heap
from foredraft.train.losses import LOSSES, Loss
from foredraft.train.measures import Measured
from foredraft.train.states import TextStates
from foredraft.train.team import Alone, Team
from foredraft.train.texts import Split


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """``steps`` of the optimizer in all (AdamW, arXiv 1711.05101), each of ``batch_tokens`` tokens; ``learning_rate``
    rises for ``warmup`` steps and falls along a cosine to a tenth; gradients longer than ``clip`` are shortened to it;
    the draft is measured every ``every`` steps, with chains of ``depth`` tokens, and training ends early after
    ``patience`` measurements without a better one."""

    loss: Loss = "lk"
    depth: int = 5
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
        if not 0 <= self.weight_decay < 1:
            raise InvalidValue("weight decay", self.weight_decay, "0 or more, less than 1")
        if not 0 < self.clip < math.inf:
            raise InvalidValue("clip", self.clip, "a number above 0")

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


@dataclass(frozen=True)
class Event:
    """After ``step`` steps: mean ``loss`` since the last event, None before the first step; ``tokens`` predicted and
    ``seconds`` spent in all, and what was ``measured``, if it was."""

    step: int
    loss: float | None
    rate: float
    tokens: int
    seconds: float
    measured: Measured | None = None

    def as_json(self) -> dict[str, object]:
        """One line of the log."""
        line = asdict(self) | {"measured": self.measured.as_json() if self.measured else None}
        return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in line.items()}


_TOLD, _REPORTED, _TRIMMED = 10, 50, 20
"""Steps between two events, steps over which a loss is averaged at most, and steps after which memory is given back."""
Told = Callable[[Event], None]
KeepBest = Callable[[Measured], None]


class Trainee(Protocol):
    """What is trained. Its weights are float32; products are of the loop's precision."""

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        ...

    def trained(self) -> Mapping[str, nn.Parameter]:
        """The weights that change, by name."""
        ...

    def loss(self, texts: Sequence[TextStates]) -> Tensor:
        """The mean loss over the answers of one batch, a scalar."""
        ...

    def measured(self, groups: Iterable[Sequence[TextStates]]) -> Measured:
        """How good it is now on these batches."""
        ...


@dataclass
class Loop:
    """One run, its checkpoint in ``directory``. ``precision``: of products while training. ``about``: what else the run
    is made of, plain values; from a checkpoint with other ones no run goes on. ``team``: processes that share every
    step."""

    trainee: Trainee
    corpus: Corpus
    settings: LoopSettings
    directory: Path
    precision: torch.dtype = torch.float32
    about: Mapping[str, Any] = field(default_factory=dict)
    team: Team = field(default_factory=Alone)
    seconds: float = 0.0
    tokens: int = 0
    best: Measured | None = None
    waited: int = 0
    step: int = 0
    _losses: list[float] = field(default_factory=list)
    _whole: bool = True

    def __post_init__(self) -> None:
        self._batches = Batches(self.corpus.texts["train"], self.settings.batch_tokens, self.settings.seed)
        self._made_of = {
            **asdict(self.settings),
            "texts": _texts_hash(self.corpus),
            "precision": str(self.precision),
            "processes": self.team.size,
            **self.about,
        }
        weights = list(self.trainee.trained().values())
        decayed = [weight for weight in weights if weight.dim() > 1]
        plain = [weight for weight in weights if weight.dim() <= 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": self.settings.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=self.settings.learning_rate,
            betas=(0.9, 0.95),
        )

    def resume(self) -> bool:
        """Go on from the checkpoint in ``directory``, if there is one; TrainingDataError if it is of another run."""
        found = load_checkpoint(self.directory, self._made_of)
        if found is None:
            return False
        try:
            self._check(found.weights)
            self.load(found.weights)
            self._optimizer.load_state_dict(dict(found.optimizer))
        except (KeyError, ValueError, TypeError, RuntimeError, AttributeError) as error:
            raise damaged(self.directory, error) from None
        self.step, self.seconds, self.tokens, self.waited = found.step, found.seconds, found.tokens, found.waited
        self.best, self._losses, self._whole = found.best, list(found.losses), True
        return True

    def _check(self, weights: Mapping[str, Tensor]) -> None:
        """ValueError unless these are the weights that are trained."""
        wanted = {name: (weight.shape, weight.dtype) for name, weight in self.weights().items()}
        if {name: (weight.shape, weight.dtype) for name, weight in weights.items()} != wanted:
            raise ValueError("its weights are others")

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite the weights that are trained."""
        with torch.no_grad():
            for name, parameter in self.trainee.trained().items():
                parameter.copy_(weights[name])

    def weights(self) -> dict[str, Tensor]:
        """The weights that are trained; not copies."""
        return {name: parameter.detach() for name, parameter in self.trainee.trained().items()}

    @property
    def finished(self) -> bool:
        """Whether the steps are done, or nothing got better for too long."""
        return self.step >= self.settings.steps or self.waited >= self.settings.patience

    def run(self, told: Told, keep_best: KeepBest, stop: Callable[[], bool] = lambda: False) -> None:
        """Train until it is finished, or ``stop`` says so between two steps; ``keep_best`` is called whenever the
        trainee measures better than before.

        Whatever ends the run, a checkpoint of the last whole step is left; if it ended while weights were changing,
        the one of the last measurement. InvalidValue if the loss is no longer a number.
        """
        assert self._whole, "an interrupted step is taken up with resume()"
        try:
            self._measure_if_due(told, keep_best)
            for texts in self._upcoming():
                if self.finished or self.team.told(stop()):
                    break
                self._train(texts)
                self._measure_if_due(told, keep_best)
                if self._losses and self.step % _TOLD == 0:
                    event = self._event(None)
                    self._losses = self._losses if len(self._losses) < _REPORTED else []
                    self._tell(told, event)
        finally:
            if self._whole:
                self.save()

    def _upcoming(self) -> Iterator[list[TextStates]]:
        """This process's batches from the current step on, epoch after epoch."""
        number, first, size = 0, 0, self.team.size
        while True:
            groups = self._batches.epoch(number)
            begin = max(first, self.step * size)
            at = range(begin + (self.team.rank - begin) % size, first + len(groups), size)
            yield from (groups[index - first] for index in at)
            number, first = number + 1, first + len(groups)

    def _train(self, texts: Sequence[TextStates]) -> None:
        started = perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self.trainee.loss(texts)
        value = float(loss.detach())
        if not math.isfinite(value):
            allowed = f"a smaller one: the loss is {value} at step {self.step + 1}"
            raise InvalidValue("learning rate", self.settings.learning_rate, allowed)
        loss.backward()
        self.team.average(self.trainee.trained().values())
        nn.utils.clip_grad_norm_(self.trainee.trained().values(), self.settings.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate(self.step)
        self._whole = False
        self._optimizer.step()
        self.step += 1
        self._losses.append(value)
        self.tokens += sum(len(text.text) - text.text.prompt_tokens for text in texts)
        self._whole = True
        if self.step % _TRIMMED == 0:
            trim_heap()
        self.seconds += perf_counter() - started

    def _measure_if_due(self, told: Told, keep_best: KeepBest) -> None:
        """Due as long as the losses of a step that ends with a measurement were not reported; also after an
        interruption in the midst of it."""
        if self._losses and (self.step % self.settings.every == 0 or self.step == self.settings.steps):
            self.measure(told, keep_best)

    def measure(self, told: Told, keep_best: KeepBest) -> None:
        """Measure the trainee as it is now, and keep it if it is better."""
        found = self.team.told(self.measured("validation") if self.team.rank == 0 else None)
        assert found is not None
        better = self.best is None or found.accepted > self.best.accepted
        if better and self.team.rank == 0:
            keep_best(found)
        event, before = self._event(found), (self.best, self.waited, self._losses)
        self.best, self.waited = (found, 0) if better else (self.best, self.waited + 1)
        self._losses = []
        try:
            self.save()
        except BaseException:  # measured anew by whoever goes on
            self.best, self.waited, self._losses = before
            raise
        self._tell(told, event)

    def _tell(self, told: Told, event: Event) -> None:
        if self.team.rank == 0:
            told(event)

    def measured(self, split: Split, most: int | None = None) -> Measured:
        """The trainee as it is now on the texts of one split, or on ``most`` of them."""
        groups = Batches(self.corpus.texts[split][:most], self.settings.batch_tokens, 0).epoch(0)
        with self._autocast():
            return self.trainee.measured(groups)

    def _autocast(self) -> Any:
        return torch.autocast(self.trainee.device.type, self.precision, enabled=self.precision != torch.float32)

    def _event(self, found: Measured | None) -> Event:
        mean = sum(self._losses) / len(self._losses) if self._losses else None
        return Event(self.step, mean, self.settings.rate(max(0, self.step - 1)), self.tokens, self.seconds, found)

    def save(self) -> None:
        """Write the checkpoint."""
        if self.team.rank != 0:
            return
        save_checkpoint(
            self.directory,
            Checkpoint(
                settings=self._made_of,
                weights=self.weights(),
                optimizer=self._optimizer.state_dict(),
                step=self.step,
                seconds=self.seconds,
                tokens=self.tokens,
                waited=self.waited,
                best=self.best,
                losses=tuple(self._losses),
            ),
        )


def _texts_hash(corpus: Corpus) -> str:
    """Changes if texts come, go or change in length: batches would be others then."""
    texts = [(split, [(text.text.number, len(text.text)) for text in texts]) for split, texts in corpus.texts.items()]
    return hashlib.sha256(repr(texts).encode()).hexdigest()[:16]
