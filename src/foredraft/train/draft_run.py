"""One small draft model from texts to a Hugging Face directory: pruned where that was asked for, trained, written.

The output directory holds a checkpoint, a log and a curve while training, and ``model`` when it is finished.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foredraft import __version__
from foredraft.errors import InvalidValue, MissingExtra, TrainingDataError
from foredraft.export.source import open_source
from foredraft.hf_tokenizer import HfTokenizer
from foredraft.models.config import DecoderConfig
from foredraft.models.decoder import Decoder
from foredraft.models.head import default_taps
from foredraft.models.hf_write import check_writable, write_hugging_face
from foredraft.models.load import load_decoder, read_config
from foredraft.pair import check_pair
from foredraft.tokens import Tokenizer
from foredraft.train.batches import Corpus
from foredraft.train.curve import draw_curve
from foredraft.train.draft import DraftSettings, DraftTrainer
from foredraft.train.frozen import Frozen
from foredraft.train.head_run import CURVE, LOG, Told, check_data, read_log
from foredraft.train.loop import Event
from foredraft.train.prune import Kept, Removal, TargetScore, first_layers, keep_layers, pruned, sample
from foredraft.train.states import kept_taps, missing, read_states
from foredraft.train.target import Machine, Target
from foredraft.train.team import Alone, Team
from foredraft.train.vocabulary import draft_vocabulary
from foredraft.whole_files import write_whole

MODEL, LAYERS, IDS, CARD = "model", "layers.json", "draft_ids.json", "card.json"
SAMPLE = 6000
"""Tokens on which layers are judged."""


@dataclass(frozen=True)
class DraftPlan:
    """``data``: directory of texts; ``directory``: where the draft goes; ``draft``: the model to begin with, None: the
    target's own first ``layers``; ``layers`` to keep, 0 = all; ``rows``: size of the draft vocabulary, 0 = all of
    it."""

    data: Path
    directory: Path
    settings: DraftSettings
    draft: Path | None = None
    layers: int = 0
    rows: int = 0

    def __post_init__(self) -> None:
        if self.draft is None and not self.layers:
            raise InvalidValue("layers to keep", 0, "1 or more of the target's own, where no draft model is given")


@dataclass
class DraftRun:
    """A plan on its way: ``prepare``, then ``train``, then ``finish``. ``removed`` is told of layers that go."""

    plan: DraftPlan
    target: Target
    machine: Machine
    told: Told = field(default_factory=Told)
    team: Team = field(default_factory=Alone)
    removed: Callable[[Removal], None] = lambda removal: None
    events: list[Event] = field(default_factory=list)
    coverage: float = 1.0
    result: str = "the draft in model"

    def check(self) -> None:
        """All that can be wrong before anything is loaded or trained: texts of another target, a vocabulary that does
        not fit (PairMismatch), more layers than there are, a shape that cannot be written, a ``model`` that is
        there."""
        check_data(self.plan.data, self.target)
        config = self._config()
        if self.plan.layers > config.layers:
            raise InvalidValue("layers to keep", self.plan.layers, f"1 to {config.layers}, the model's")
        if self.plan.draft is not None:
            report = check_pair(self.target.tokenizer, _tokenizer(self.plan.draft))
            report.raise_if_bad(self.target.name, self.plan.draft.name)
        self.plan.directory.mkdir(parents=True, exist_ok=True)
        check_writable(config, self._source, self.plan.directory / MODEL)

    @property
    def _source(self) -> Path:
        """Where shape and tokenizer come from."""
        return self.plan.draft or self.target.source.path

    def _config(self) -> DecoderConfig:
        return read_config(self._source)

    def prepare(self) -> DraftTrainer:
        """Let the target read the texts, choose layers and draft vocabulary, begin or go on with training."""
        self.check()
        layers = self.target.decoder.config.layers
        taps = kept_taps(self.plan.data) or default_taps(layers)  # of which only the last layer matters here
        if taps[-1] != layers - 1:
            raise TrainingDataError(f"{self.plan.data}: its states lack the target's last layer; remove them")
        if self.team.rank == 0 and (parts := missing(self.plan.data, taps)):
            self.told.stage("the target reads the texts")
            read_states(self.target.decoder, taps, parts, self.told.tokens)
        self.team.told(True)  # the others wait
        corpus = Corpus.read(self.plan.data)
        ids = self._vocabulary(corpus)
        frozen = Frozen.of(self.target.decoder, ids)
        decoder = self._decoder(frozen, corpus)
        trainer = DraftTrainer(
            decoder,
            frozen,
            corpus,
            self.plan.settings,
            self.plan.directory,
            precision=self.machine.dtype,
            team=self.team,
        )
        if trainer.resume():
            known = trainer.loop.step
            self.events = [event for event in read_log(self.plan.directory / LOG) if event.step <= known]
        return trainer

    def _vocabulary(self, corpus: Corpus) -> tuple[int, ...]:
        size = min(self._config().vocab_size, self.target.decoder.config.vocab_size)
        if not self.plan.rows:
            return tuple(range(size))
        found = draft_vocabulary(
            corpus.texts["train"], corpus.texts["validation"], self.target.tokenizer, self.plan.rows
        )
        self.coverage = found.coverage
        write_whole(self.plan.directory / IDS, json.dumps([id for id in found.ids if id < size]) + "\n")
        return tuple(id for id in found.ids if id < size)

    def _decoder(self, frozen: Frozen, corpus: Corpus) -> Decoder:
        """What is trained, on the machine's device."""
        plan = self.plan
        if plan.draft is None:
            return first_layers(self.target.decoder, plan.layers)
        decoder = load_decoder(plan.draft, self.machine.dtype).to(self.machine.device)
        if not plan.layers or plan.layers == decoder.config.layers:
            return decoder  # type: ignore[no-any-return]
        return pruned(decoder, self._layers(decoder, frozen, corpus))

    def _layers(self, decoder: Decoder, frozen: Frozen, corpus: Corpus) -> tuple[int, ...]:
        """The layers that stay, measured once and kept."""
        path = self.plan.directory / LAYERS
        if path.exists():
            known = json.loads(path.read_text("utf-8"))["layers"]
            if len(known) == self.plan.layers:
                return tuple(known)
        self.told.stage("choosing layers")
        score = TargetScore(decoder, frozen, sample(corpus.texts["train"], SAMPLE))
        kept: Kept = keep_layers(decoder, self.plan.layers, score, self.removed)
        write_whole(path, json.dumps(asdict(kept), indent=1) + "\n")
        return kept.layers

    def train(self, trainer: DraftTrainer) -> None:
        """Until it is finished or stopped."""

        def told(event: Event) -> None:
            self.events.append(event)
            write_whole(self.plan.directory / LOG, "".join(json.dumps(one.as_json()) + "\n" for one in self.events))
            self.told.event(event)

        trainer.run(told, self.told.stop)

    def finish(self, trainer: DraftTrainer) -> Mapping[str, Any]:
        """Write the best weights as ``model``, measure them on texts they never saw, draw the curve; returns the
        card."""
        decoder = trainer.best_decoder()
        splits = trainer.corpus.texts
        most = len(splits["validation"])
        measured: dict[str, Any] = {
            split: trainer.loop.measured(split, most).as_json() for split, texts in splits.items() if texts
        }
        decoder.to(self.machine.dtype)
        write_hugging_face(decoder, self._source, self.plan.directory / MODEL)
        card: dict[str, Any] = {
            **measured,
            "before": self.events[0].as_json()["measured"] if self.events else None,
            "target": {"name": self.target.name, "sha256": self.target.sha256},
            "draft": self._source.name,
            "layers": decoder.config.layers,
            "draft_vocabulary": {"size": len(trainer.target.ids), "coverage": round(self.coverage, 4)},
            "training": asdict(trainer.settings),
            "step": trainer.loop.step,
            "minutes": round(trainer.loop.seconds / 60, 1),
            "foredraft": __version__,
        }
        write_whole(self.plan.directory / CARD, json.dumps(card, indent=1) + "\n")
        try:
            draw_curve(self.events, self.plan.directory / CURVE, self._source.name)
        except MissingExtra as error:
            self.told.stage(str(error))
        return card


def _tokenizer(path: Path) -> Tokenizer:
    converted = open_source(path).tokenizer()
    return HfTokenizer(converted.tokenizer, converted.facts)
