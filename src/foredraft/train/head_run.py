"""One head from texts to files: states, draft vocabulary, training, the best head so far, log, curve and card.

The output directory is what ``foredraft tune head`` leaves, and what it goes on from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from foredraft import __version__
from foredraft.errors import InvalidValue, MissingExtra, TrainingDataError
from foredraft.models.head import DraftHead, HeadConfig, begin, default_taps
from foredraft.models.head_file import HeadTarget, StoredHead, load_head, read_about, save_head
from foredraft.train.batches import Corpus
from foredraft.train.curve import draw_curve
from foredraft.train.frozen import Frozen
from foredraft.train.head import HeadTrainer, TrainSettings
from foredraft.train.loop import Event
from foredraft.train.measures import Measured
from foredraft.train.states import missing, read_states
from foredraft.train.target import Machine, Target
from foredraft.train.team import Alone, Team
from foredraft.train.texts import read_about as read_data
from foredraft.train.vocabulary import covered_share, draft_vocabulary
from foredraft.whole_files import write_whole

LOG, CURVE = "log.jsonl", "curve.png"


@dataclass(frozen=True)
class HeadPlan:
    """``data``: directory of texts; ``directory``: where the head goes; ``taps`` empty: the default ones; ``rows``:
    size of the draft vocabulary, 0 = by coverage; ``ffn_size`` 0 = the target's; ``start``: a trained head to go on
    from, whose layers and vocabulary stay."""

    data: Path
    directory: Path
    settings: TrainSettings
    taps: tuple[int, ...] = ()
    rows: int = 0
    ffn_size: int = 0
    start: Path | None = None


@dataclass(frozen=True)
class Told:
    """Who hears of what: ``stage`` of what begins; ``tokens`` read by the target, of so many; ``event`` of training;
    ``stop``: whether to end between two steps."""

    stage: Callable[[str], None] = lambda text: None
    tokens: Callable[[int], None] = lambda count: None
    event: Callable[[Event], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False


@dataclass
class HeadRun:
    """A plan on its way. ``prepare`` first, then ``train``, then ``finish``."""

    plan: HeadPlan
    target: Target
    machine: Machine
    told: Told = field(default_factory=Told)
    team: Team = field(default_factory=Alone)
    events: list[Event] = field(default_factory=list)
    coverage: float = 0.0
    result: str = "the head"

    def check(self) -> None:
        """TrainingDataError if another model wrote the texts, InvalidValue for layers that the target does not have."""
        check_data(self.plan.data, self.target)
        layers, taps = self.target.decoder.config.layers, self.taps
        if list(taps) != sorted(set(taps)) or taps[-1] != layers - 1 or taps[0] < 0:
            allowed = f"layers from 0 to {layers - 1}, ascending, the last one among them"
            raise InvalidValue("tapped layers", list(taps), allowed)

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers whose states are fused."""
        if self.plan.start is not None:
            return read_about(self.plan.start)[1].taps
        return self.plan.taps or default_taps(self.target.decoder.config.layers)

    def prepare(self) -> HeadTrainer:
        """Let the target read the texts, choose the draft vocabulary, and begin or go on with training."""
        self.check()
        if self.team.rank == 0 and (parts := missing(self.plan.data, self.taps)):
            self.told.stage("the target reads the texts")
            read_states(self.target.decoder, self.taps, parts, self.told.tokens)
        self.team.told(True)  # the others wait
        corpus = Corpus.read(self.plan.data)
        head, ids = self._begun(corpus)
        head.to(self.machine.device)
        frozen = Frozen.of(self.target.decoder, ids)
        self.plan.directory.mkdir(parents=True, exist_ok=True)
        trainer = HeadTrainer(
            head,
            frozen,
            corpus,
            self.plan.settings,
            self.plan.directory,
            precision=self.machine.dtype,
            team=self.team,
            trained_before=self.plan.start is not None,
        )
        if trainer.resume():
            known = trainer.loop.step
            self.events = [event for event in read_log(self.plan.directory / LOG) if event.step <= known]
        return trainer

    def _begun(self, corpus: Corpus) -> tuple[DraftHead, tuple[int, ...]]:
        """A head to train and its draft vocabulary: a new one, or one that goes on."""
        train, held_out = corpus.texts["train"], corpus.texts["validation"]
        if self.plan.start is not None:
            stored = load_head(self.plan.start)
            stored.check_target(self.target.decoder.config, self.target.name)
            self.coverage = covered_share(stored.ids, held_out)
            return stored.head.requires_grad_(True).train(), stored.ids
        chosen = draft_vocabulary(train, held_out, self.target.tokenizer, self.plan.rows)
        self.coverage = chosen.coverage
        config = HeadConfig.of(self.target.decoder.config, self.taps, len(chosen.ids), self.plan.ffn_size)
        head = DraftHead(config)
        begin(head, self.target.decoder, torch.Generator().manual_seed(self.plan.settings.seed))
        return head, chosen.ids

    def train(self, trainer: HeadTrainer) -> None:
        """Until it is finished or stopped; the best head so far is always in the directory."""

        def told(event: Event) -> None:
            self.events.append(event)
            write_whole(self.plan.directory / LOG, "".join(json.dumps(one.as_json()) + "\n" for one in self.events))
            self.told.event(event)

        def keep_best(head: DraftHead, measured: Measured) -> None:
            self._save(trainer, head, {"validation": measured.as_json()})

        trainer.run(told, keep_best, self.told.stop)

    def finish(self, trainer: HeadTrainer) -> Mapping[str, Any]:
        """Measure the best head on texts it never saw, complete its card, draw the curve; returns the card."""
        stored = load_head(self.plan.directory)
        trainer.head.load_state_dict(stored.head.state_dict())
        measured = {"validation": stored.card["validation"]}
        for split in ("train", "test"):
            if trainer.corpus.texts[split]:
                measured[split] = trainer.measured(split, most=len(trainer.corpus.texts["validation"])).as_json()
        card = self._save(trainer, trainer.head, measured)
        try:
            draw_curve(self.events, self.plan.directory / CURVE, self.target.name)
        except MissingExtra as error:
            self.told.stage(str(error))
        return card

    def _save(self, trainer: HeadTrainer, head: DraftHead, measured: Mapping[str, Any]) -> Mapping[str, Any]:
        about = read_data(self.plan.data)
        assert about is not None
        card = {
            **measured,
            "before": self.events[0].as_json()["measured"] if self.plan.start is not None and self.events else None,
            "from": None if self.plan.start is None else self.plan.start.name,
            "parameters": head.parameter_count(),
            "draft_vocabulary": {"size": head.config.rows, "coverage": round(self.coverage, 4)},
            "data": asdict(about),
            "texts": {split: len(texts) for split, texts in trainer.corpus.texts.items()},
            "training": asdict(trainer.settings),
            "step": trainer.loop.step,
            "tokens": trainer.loop.tokens,
            "minutes": round(trainer.loop.seconds / 60, 1),
            "dtype": str(self.machine.dtype).removeprefix("torch."),
            "foredraft": __version__,
        }
        ids = tuple(trainer.frozen.ids.tolist())
        target = HeadTarget(self.target.name, self.target.sha256)
        save_head(self.plan.directory, StoredHead(head, ids, target, card))
        return card


def check_data(data: Path, target: Target) -> None:
    """TrainingDataError if the texts in ``data`` were written by another model."""
    about = read_data(data)
    assert about is not None
    if about.sha256 != target.sha256:
        raise TrainingDataError(
            f"{data}: was written by {about.target}, another file than {target.name}; a draft learns from its own "
            "target's text: make the data with it"
        )


def read_log(path: Path) -> list[Event]:
    """The events of a log; TrainingDataError for a damaged one."""
    if not path.exists():
        return []
    try:
        return [_event(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TrainingDataError(f"{path}: is damaged ({str(error)[:80]}); remove it") from None


def _event(data: dict[str, Any]) -> Event:
    found = data["measured"]
    if found is not None:
        found = Measured(**found | {name: tuple(found[name]) for name in ("greedy", "overlap")})
    return Event(**data | {"measured": found})
