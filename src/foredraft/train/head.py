"""A draft head in training: what ``loop`` needs to know of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from foredraft.errors import InvalidValue
from foredraft.models.head import DraftHead
from foredraft.train.batch import Rotation
from foredraft.train.batches import Corpus, collated
from foredraft.train.frozen import Frozen
from foredraft.train.loop import Event, Loop, LoopSettings
from foredraft.train.losses import Guesses, rollout_loss
from foredraft.train.measures import Measured, measure
from foredraft.train.rollout import Batch, answers, rollout
from foredraft.train.states import TextStates
from foredraft.train.team import Alone, Team
from foredraft.train.texts import Split


@dataclass(frozen=True, slots=True)
class TrainSettings(LoopSettings):
    """``depth``: steps of a rollout, each later one counting ``decay`` times the one before."""

    decay: float = 0.8

    def __post_init__(self) -> None:
        LoopSettings.__post_init__(self)  # super() does not know a class with slots
        if not 0 < self.decay <= 1:
            raise InvalidValue("decay", self.decay, "a number above 0, up to 1")


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


class Trainee:
    """A head while it is trained: see ``loop.Trainee``. ``length``: tokens of the longest text."""

    def __init__(self, head: DraftHead, frozen: Frozen, settings: TrainSettings, length: int) -> None:
        self.head, self.frozen, self.settings = head, frozen, settings
        room = length + settings.depth
        self._rotation = Rotation(head.config.decoder(room), frozen.embedding, room)

    @property
    def device(self) -> torch.device:
        """Where the head is."""
        device: torch.device = self.frozen.embedding.device
        return device

    def trained(self) -> dict[str, nn.Parameter]:
        """All of its weights."""
        return dict(self.head.named_parameters())

    def loss(self, texts: Sequence[TextStates]) -> Tensor:
        """Of one batch."""
        batch = collated(texts, self.device, torch.float32)
        return head_loss(self.head, self.frozen, batch, self.settings, self._rotation)

    def measured(self, groups: Iterable[Sequence[TextStates]]) -> Measured:
        """How good its chains are."""
        found: Measured = measure(self.head, self.frozen, groups, self.settings.depth, self._rotation)
        return found


KeepBest = Callable[[DraftHead, Measured], None]
"""Given the head whenever it is better than before, and how good it is."""


@dataclass
class HeadTrainer:
    """One run, its checkpoint in ``directory``. ``precision``: of products while training; weights are float32.
    ``trained_before``: the head is measured as it came, so that training that only harms gives it back."""

    head: DraftHead
    frozen: Frozen
    corpus: Corpus
    settings: TrainSettings
    directory: Path
    precision: torch.dtype = torch.float32
    team: Team = field(default_factory=Alone)
    trained_before: bool = False

    def __post_init__(self) -> None:
        longest = max(len(text.text) for texts in self.corpus.texts.values() for text in texts)
        about = {
            "head": repr(asdict(self.head.config)),
            "draft_vocabulary": hashlib.sha256(self.frozen.ids.cpu().numpy().tobytes()).hexdigest()[:16],
        }
        trainee = Trainee(self.head, self.frozen, self.settings, longest)
        self.loop = Loop(trainee, self.corpus, self.settings, self.directory, self.precision, about, self.team)

    def resume(self) -> bool:
        """Go on from the checkpoint in ``directory``, if there is one; TrainingDataError if it is of another run."""
        return self.loop.resume()

    @property
    def trained(self) -> int:
        """Weights that change."""
        return sum(weight.numel() for weight in self.loop.weights().values())

    @property
    def vocabulary(self) -> int:
        """Tokens it is trained for."""
        return len(self.frozen.ids)

    @property
    def finished(self) -> bool:
        """Whether the steps are done, or nothing got better for too long."""
        return self.loop.finished

    def run(self, told: Callable[[Event], None], keep_best: KeepBest, stop: Callable[[], bool] = lambda: False) -> None:
        """See ``Loop.run``; ``keep_best`` is given the head whenever it measures better than before."""

        def keep(found: Measured) -> None:
            keep_best(self.head, found)

        if self.trained_before and self.loop.best is None:
            self.loop.measure(told, keep)
        self.loop.run(told, keep, stop)

    def measured(self, split: Split, most: int | None = None) -> Measured:
        """The head as it is now on the texts of one split, or on ``most`` of them."""
        return self.loop.measured(split, most)
